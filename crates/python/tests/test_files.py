"""Files, names, attributes, listings and many reads."""

import errno
import gc
import io
import os
import stat
import threading

import pytest

import nacre


def test_text_and_binary_files_have_the_contents_written(mounted, top):
    with mounted.open(f"{top}/text", "w", encoding="utf-8") as file:
        file.write("äöü\nsecond\n")
    with mounted.open(f"{top}/text", encoding="utf-8") as file:
        assert list(file) == ["äöü\n", "second\n"]
    with mounted.open(f"{top}/text", "rb") as file:
        assert isinstance(file, io.BufferedReader)
        assert file.read() == "äöü\nsecond\n".encode()


def test_modes_are_those_of_open(mounted, top):
    path = f"{top}/f"
    with mounted.open(path, "xb") as file:
        file.write(b"abc")
    with pytest.raises(FileExistsError):
        mounted.open(path, "xb")
    with mounted.open(path, "ab") as file:
        assert file.tell() == 3
        file.write(b"def")
    with mounted.open(path, "r+b") as file:
        file.seek(1)
        file.write(b"X")
        file.seek(0)
        assert file.read() == b"aXcdef"
    with mounted.open(path, "wb"):
        pass
    assert mounted.stat(path).st_size == 0
    for wrong in ("", "rw", "q", "rbt", "rr"):
        with pytest.raises(ValueError):
            mounted.open(path, wrong)
    with mounted.open(path, "rb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.write(b"x")


def test_raw_file_reads_writes_seeks_and_truncates(mounted, top):
    with mounted.open(f"{top}/raw", "w+b", 0) as file:
        assert isinstance(file, io.RawIOBase)
        assert file.write(bytearray(b"0123456789")) == 10
        assert file.seek(-3, os.SEEK_END) == 7 and file.tell() == 7
        assert file.read(2) == b"78" and file.read() == b"9" and file.read(1) == b""
        buffer = bytearray(4)
        assert file.preadinto(buffer, 2) == 4 and buffer == b"2345"
        assert file.pread(100, 8) == b"89"
        assert file.pwrite(b"ab", 4) == 2
        assert file.truncate(6) == 6
        file.seek(0)
        assert file.readall() == b"0123ab"
        assert file.stat().st_size == 6
        file.fsync()
        with pytest.raises(TypeError):
            file.readinto(b"fixed")
    with pytest.raises(ValueError):
        file.read()


def test_large_file_is_read_as_written(mounted, top):
    data = os.urandom(1 << 16) * 144  # 9 MiB: several requests and stripes
    with mounted.open(f"{top}/large", "wb") as file:
        file.write(data)
    with mounted.open(f"{top}/large", "rb", 0) as file:
        assert file.read() == data
        buffer = memoryview(bytearray(len(data)))
        assert file.preadinto(buffer, 0) == len(data) and buffer == data


def test_errors_have_errno_and_file_names(mounted, top):
    with pytest.raises(FileNotFoundError) as error:
        mounted.stat(f"{top}/missing")
    assert (error.value.errno, error.value.filename) == (errno.ENOENT, f"{top}/missing")
    with pytest.raises(FileNotFoundError) as error:
        mounted.rename(f"{top}/a", f"{top}/b")
    assert (error.value.filename, error.value.filename2) == (f"{top}/a", f"{top}/b")
    with pytest.raises(IsADirectoryError):
        mounted.open(top)
    mounted.open(f"{top}/x", "w").close()
    with pytest.raises(NotADirectoryError):
        mounted.listdir(f"{top}/x/y")
    with pytest.raises(OSError) as error:
        nacre.FileSystem("127.0.0.1@tcp:/")
    assert error.value.errno == errno.EINVAL


def test_names_are_made_moved_and_removed(mounted, top):
    mounted.makedirs(f"{top}/a/b/c")
    mounted.makedirs(f"{top}/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        mounted.makedirs(f"{top}/a/b/c")
    with pytest.raises(OSError) as error:
        mounted.rmdir(f"{top}/a")
    assert error.value.errno == errno.ENOTEMPTY
    mounted.rename(f"{top}/a/b/c", f"{top}/d")
    mounted.rmdir(f"{top}/d")
    assert not mounted.exists(f"{top}/d") and mounted.isdir(f"{top}/a/b")
    mounted.symlink("a/b", f"{top}/link")
    assert mounted.readlink(f"{top}/link") == "a/b"
    assert mounted.isdir(f"{top}/link") and stat.S_ISLNK(mounted.lstat(f"{top}/link").st_mode)
    mounted.unlink(f"{top}/link")
    with mounted.open(f"{top}/one", "w"):
        pass
    mounted.link(f"{top}/one", f"{top}/two")
    assert mounted.stat(f"{top}/two").st_nlink == 2
    mounted.truncate(f"{top}/one", 1000)
    assert mounted.stat(f"{top}/two").st_size == 1000


def test_attributes_and_extended_attributes_are_set(mounted, top):
    path = f"{top}/f"
    with mounted.open(path, "w", permissions=0o600):
        pass
    assert stat.S_IMODE(mounted.stat(path).st_mode) == 0o600
    mounted.chmod(path, 0o640)
    assert stat.S_IMODE(mounted.stat(path).st_mode) == 0o640
    mounted.utime(path, ns=(1_000_000_007, 2_500_000_000))
    st = mounted.stat(path)
    assert (st.st_atime_ns, st.st_mtime_ns, st.st_mtime) == (1_000_000_007, 2_500_000_000, 2.5)
    mounted.chown(path, -1, -1)
    mounted.setxattr(path, "user.color", b"red")
    assert mounted.getxattr(path, "user.color") == b"red"
    assert "user.color" in mounted.listxattr(path)
    mounted.removexattr(path, "user.color")
    with pytest.raises(OSError) as error:
        mounted.getxattr(path, "user.color")
    assert error.value.errno == errno.ENODATA
    assert mounted.access(path, os.R_OK) and mounted.statvfs().f_blocks > 0


def test_listing_has_all_names_with_attributes(mounted, top):
    names = [f"file-{i:04}" for i in range(300)] + ["nicht-\udcff-utf8"]
    for i, name in enumerate(names):
        with mounted.open(f"{top}/{name}", "wb") as file:
            file.write(b"x" * i)
    mounted.mkdir(f"{top}/dir")
    mounted.symlink("nowhere", f"{top}/link")
    assert sorted(mounted.listdir(top)) == sorted([*names, "dir", "link"])
    entries = {entry.name: entry for entry in mounted.scandir(top)}
    assert [entries[name].size for name in names] == list(range(len(names)))
    assert entries["dir"].is_dir() and not entries["dir"].is_file()
    assert entries["link"].is_symlink() and entries["file-0000"].is_file()
    one = entries["file-0007"]
    assert one.path == os.fspath(one) == f"{top}/file-0007"
    assert one.mtime == one.stat().st_mtime == mounted.stat(one).st_mtime
    assert one.inode() == mounted.stat(one).st_ino


def test_many_reads_return_the_ranges_in_their_order(mounted, top):
    for name in "abc":
        with mounted.open(f"{top}/{name}", "wb") as file:
            file.write(name.encode() * 1000 + b"end")
    requests = [(f"{top}/{name}", offset, 5) for offset in (998, 0, 2000) for name in "cab"]
    expected = [b"ccend", b"aaend", b"bbend", b"ccccc", b"aaaaa", b"bbbbb", b"", b"", b""]
    assert mounted.read_many(requests) == expected
    assert mounted.read_many([]) == []
    with pytest.raises(FileNotFoundError) as error:
        mounted.read_many([*requests, (f"{top}/missing", 0, 1)])
    assert error.value.filename == f"{top}/missing"
    with pytest.raises(OSError):
        mounted.read_many([(f"{top}/a", -1, 1)])


def test_other_threads_use_the_mount_during_many_reads(mounted, top):
    with mounted.open(f"{top}/f", "wb") as file:
        file.write(bytes(range(256)) * 256)
    requests = [(f"{top}/f", i * 256, 256) for i in range(256)]
    results = []
    threads = [threading.Thread(target=lambda: results.append(mounted.read_many(requests))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[bytes(range(256))] * 256] * 4


def test_file_system_is_unmounted_when_it_and_its_files_are_dropped(source):
    fs = nacre.FileSystem(source[0], **source[1])
    file = fs.open("/dropped", "wb", 0)
    handle = file._handle
    del fs
    gc.collect()
    assert file.write(b"kept") == 4
    del file
    gc.collect()
    with pytest.raises(ValueError):
        handle.write(b"x")
    with nacre.FileSystem(source[0], **source[1]) as fs:
        with fs.open("/dropped", "rb") as file:
            assert file.read() == b"kept"
        fs.unlink("/dropped")


def test_unmount_closes_files_and_later_calls_fail(source):
    fs = nacre.FileSystem(source[0], **source[1])
    file = fs.open("/unmounted", "wb", 0)
    file.write(b"kept")
    fs.close()
    fs.close()
    assert fs.closed
    with pytest.raises(ValueError, match="unmounted"):
        fs.listdir()
    with pytest.raises(ValueError, match="unmounted"):
        file.write(b"x")
    file.close()
    with nacre.FileSystem(source[0], **source[1]) as fs:
        with fs.open("/unmounted", "rb") as file:
            assert file.read() == b"kept"
        fs.unlink("/unmounted")


def test_unmount_writes_the_buffers_of_open_files(source):
    with nacre.FileSystem(source[0], **source[1]) as fs:
        text, binary = fs.open("/open-text", "w"), fs.open("/open-binary", "wb")
        text.write("text")
        binary.write(b"binary")
    assert text.closed and binary.closed
    with nacre.FileSystem(source[0], **source[1]) as fs:
        for name in ("text", "binary"):
            with fs.open(f"/open-{name}", "rb") as file:
                assert file.read() == name.encode()
            fs.unlink(f"/open-{name}")


def test_unmount_reports_the_error_of_an_open_file_and_unmounts(source):
    fs = nacre.FileSystem(source[0], **source[1])
    file = fs.open("/failing", "wb")
    file.write(b"lost")
    file.raw._handle.close()
    fs.unlink("/failing")
    with pytest.raises(ValueError, match="closed file"):
        fs.close()
    assert fs.closed


def test_errors_of_open_files_have_the_file_name(mounted, top):
    with mounted.open(f"{top}/f", "w+b", 0) as file, pytest.raises(OSError) as error:
        file.pread(1, -1)
    assert (error.value.errno, error.value.filename) == (errno.EINVAL, f"{top}/f")


def test_programs_written_for_os_find_its_forms(mounted, top):
    mounted.makedirs(f"{top}/dir/sub")
    with mounted.open(f"{top}/dir/f", "w"):
        pass
    mounted.symlink("dir", f"{top}/link")
    mounted.symlink("nowhere", f"{top}/broken")
    with mounted.scandir(top) as entries:
        entries = {entry.name: entry for entry in entries}
    link, broken = entries["link"], entries["broken"]
    assert link.is_dir() and not link.is_dir(follow_symlinks=False) and not link.is_file()
    assert stat.S_ISDIR(link.stat().st_mode) and stat.S_ISLNK(link.stat(follow_symlinks=False).st_mode)
    assert not broken.is_dir() and not broken.is_file() and broken.is_symlink()
    with pytest.raises(FileNotFoundError):
        broken.stat()
    found = [(path, sorted(dirs), sorted(files)) for path, dirs, files in mounted.walk(top)]
    assert found[0] == (top, ["dir", "link"], ["broken"])
    assert found[1:] == [(f"{top}/dir", ["sub"], ["f"]), (f"{top}/dir/sub", [], [])]
    assert [path for path, _, _ in mounted.walk(top, topdown=False)][-1] == top
    errors = []
    assert list(mounted.walk(f"{top}/no", onerror=errors.append)) == [] and errors[0].errno == errno.ENOENT
    mounted.utime(f"{top}/dir/f", (1.5, -0.25))
    st = mounted.stat(f"{top}/dir/f")
    assert (st.st_atime_ns, st.st_mtime) == (1_500_000_000, -0.25)
    with pytest.raises(ValueError, match="not both"):
        mounted.utime(f"{top}/dir/f", (1, 1), ns=(1, 1))
    mounted.replace(f"{top}/dir/f", f"{top}/g")
    assert mounted.isfile(f"{top}/g") and mounted.statvfs("/").f_blocks > 0


def test_many_reads_take_any_iterable_and_read_to_the_end(mounted, top):
    with mounted.open(f"{top}/f", "wb") as file:
        file.write(b"0123456789" * 1_000_000)
    assert mounted.read_many([f"{top}/f", i, 2] for i in range(2)) == [b"01", b"12"]
    [whole, rest] = mounted.read_many([(f"{top}/f", 0, None), (f"{top}/f", 9_999_998, None)])
    assert (len(whole), rest) == (10_000_000, b"89")
    for wrong in (f"{top}/f", (f"{top}/f", 0), (f"{top}/f", "0", 1)):
        with pytest.raises(TypeError, match=r"request 1 .*tuple \(path, offset, length\)"):
            mounted.read_many([(f"{top}/f", 0, 1), wrong])


def test_source_may_be_a_url_and_wrong_options_are_named(source, top):
    nid, _, fsname = source[0].partition(":/")
    for host in (nid, nid.partition("@")[0]):
        with nacre.FileSystem(f"nacre://{host}:{source[1]['port']}/{fsname}{top}") as fs:
            assert fs.listdir() == []
    with pytest.raises(ValueError, match="atime='never'.*noatime"):
        nacre.FileSystem(source[0], atime="never")
