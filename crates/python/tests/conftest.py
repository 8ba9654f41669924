"""A mount for the tests: ``NACRE_TEST_SOURCE`` names the file system, ``NACRE_TEST_PORT`` its port."""

import os
import uuid

import pytest

import nacre

SOURCE = os.environ["NACRE_TEST_SOURCE"]
OPTIONS = {"port": int(os.environ.get("NACRE_TEST_PORT", "988"))}


@pytest.fixture(scope="session")
def source():
    """The source and the options of a mount."""
    return SOURCE, OPTIONS


@pytest.fixture(scope="session")
def mounted():
    with nacre.FileSystem(SOURCE, **OPTIONS) as fs:
        yield fs


@pytest.fixture
def top(mounted):
    """A new directory."""
    path = f"/test-{uuid.uuid4().hex}"
    mounted.mkdir(path)
    return path
