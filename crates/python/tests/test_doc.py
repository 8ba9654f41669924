"""The examples in the documentation of the package and its manual page."""

import doctest
from pathlib import Path

import nacre
import nacre.aio

MANUAL = Path(__file__).parents[3] / "docs" / "manual" / "python.md"


def run(examples, source):
    failed, attempted = examples(extraglobs={"SOURCE": source[0], "OPTIONS": source[1]})
    assert failed == 0 and attempted > 0


def test_module(source):
    run(lambda extraglobs: doctest.testmod(nacre, extraglobs=extraglobs), source)


def test_asynchronous_module(source):
    run(lambda extraglobs: doctest.testmod(nacre.aio, extraglobs=extraglobs), source)


def test_manual(source):
    values = {"SOURCE": source[0], "OPTIONS": source[1]}
    failed, attempted = doctest.testfile(str(MANUAL), module_relative=False, globs=values)
    assert failed == 0 and attempted > 0
