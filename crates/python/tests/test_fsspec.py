"""The file system for fsspec, with fsspec's own tests."""

import uuid

import fsspec
import pytest
from fsspec.tests import abstract

from nacre.fs import NacreFileSystem


class NacreFixtures(abstract.AbstractFixtures):
    """The file system under test."""

    @pytest.fixture
    def fs(self, source):
        return NacreFileSystem(source[0], **source[1], auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, fs):
        path = f"/fsspec-{uuid.uuid4().hex}"
        fs.mkdir(path)
        return path


class TestCopy(abstract.AbstractCopyTests, NacreFixtures):
    pass


class TestGet(abstract.AbstractGetTests, NacreFixtures):
    pass


class TestPut(abstract.AbstractPutTests, NacreFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, NacreFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, NacreFixtures):
    pass


def url_of(source, path):
    nid, _, fsname = source[0].partition(":/")
    return f"nacre://{nid.partition('@')[0]}:{source[1]['port']}/{fsname}{path}"


def test_url_opens_files_and_names_the_file_system(source, top):
    url = url_of(source, f"{top}/f")
    with fsspec.open(url, "wt") as file:
        file.write("by URL")
    with fsspec.open(url) as file:
        assert file.read() == b"by URL"
    fs, path = fsspec.core.url_to_fs(url)
    assert isinstance(fs, NacreFileSystem) and path == f"{top}/f"
    assert fs.unstrip_protocol(path) == url
    assert fs.cat_file(path, 3) == b"URL" and fs.cat_file(path, -3, -1) == b"UR"
    assert fs.cat_ranges([path, path], [0, 3], [2, 6]) == [b"by", b"URL"]
    missing, found = fs.cat_ranges([f"{top}/no", path], [0, 0], [1, 2])
    assert isinstance(missing, FileNotFoundError) and found == b"by"
    assert fs.glob(f"{top}/*") == [path] and fs.du(top) == 6
    fs.close()


def test_listing_moving_and_removing(source, top):
    fs = fsspec.filesystem("nacre", source=source[0], **source[1])
    fs.makedirs(f"{top}/a/b")
    fs.pipe_file(f"{top}/a/b/f", b"123")
    assert fs.ls(f"{top}/a/b", detail=False) == [f"{top}/a/b/f"]
    [info] = fs.ls(f"{top}/a/b")
    assert (info["type"], info["size"]) == ("file", 3) and fs.info(f"{top}/a")["type"] == "directory"
    fs.mv(f"{top}/a/b/f", f"{top}/g")
    assert fs.cat(f"{top}/g") == b"123" and not fs.exists(f"{top}/a/b/f")
    assert fs.modified(f"{top}/g").tzinfo is not None
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{top}/a")
    fs.rm(f"{top}/a", recursive=True)
    assert not fs.exists(f"{top}/a")
    with pytest.raises(ValueError, match="URL"):
        NacreFileSystem()
    fs.close()


def test_unknown_options_are_refused_and_urls_may_have_a_nid(source, top):
    with pytest.raises(TypeError, match="unknown option lisen"):
        fsspec.filesystem("nacre", source=source[0], lisen="127.0.0.1@tcp")
    nid, _, fsname = source[0].partition(":/")
    with fsspec.open(f"nacre://{nid}:{source[1]['port']}/{fsname}{top}/f", "wt") as file:
        file.write("by NID")
    fs = fsspec.filesystem("nacre", source=source[0], **source[1])
    assert fs.cat_file(f"{top}/f") == b"by NID"
    fs.close()
