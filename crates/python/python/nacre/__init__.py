"""File system access for Python programs without a kernel mount.

A :class:`FileSystem` is a mount in this process. Its methods have the names
and parameters of the module ``os``, and :meth:`FileSystem.open` is that of
Python. ``SOURCE`` is a source such as ``127.0.0.1@tcp:/nacre``, which ``nacre
up --no-mount`` and ``nacre status`` print:

>>> import nacre
>>> with nacre.FileSystem(SOURCE, **OPTIONS) as fs:
...     fs.makedirs("/doc/a", exist_ok=True)
...     with fs.open("/doc/a/hello", "w") as file:
...         file.write("hello\\n")
...     fs.listdir("/doc/a")
...     fs.stat("/doc/a/hello").st_size
...     fs.read_many([("/doc/a/hello", 0, 2), ("/doc/a/hello", 2, 100)])
6
['hello']
6
[b'he', b'llo\\n']

A failed call raises ``OSError`` with ``errno``, and with ``filename`` if the
call takes a path or an open file. Ctrl-C ends a waiting call. After
``fork()`` every call on the parent's mount raises ``RuntimeError`` in the child.
"""

from __future__ import annotations

import atexit
import io
import os
import posixpath
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import IO, Any
from urllib.parse import urlsplit

from nacre._nacre import DirEntry, Mounted, OpenFile, StatFs, StatResult, __version__

__all__ = [
    "DirEntry",
    "File",
    "FileSystem",
    "StatFs",
    "StatResult",
    "__version__",
]

#: Size of the buffer of buffered files, in bytes.
BUFFER_SIZE = 1 << 20
#: Size of the pieces of a read of the rest of a file, in bytes.
_READ_SIZE = 16 << 20

#: Values of the option ``atime``.
_ATIMES = ("relatime", "strictatime", "noatime")
#: The scheme of URLs.
_SCHEME = "nacre://"

_mounted: weakref.WeakSet[FileSystem] = weakref.WeakSet()
#: The worker process of ``multiprocessing`` that will unmount at its end.
_worker: int | None = None


@atexit.register
def _unmount_all() -> None:
    """Unmounts at the end of the program, so that servers need not evict it.

    Reports lost data on standard error, because it cannot change the exit status.
    """
    for fs in list(_mounted):
        if fs._pid != os.getpid():
            continue  # The mount of a parent process.
        try:
            fs.close()
        except BaseException:
            sys.excepthook(*sys.exc_info())


def _unmount_at_end_of_worker() -> None:
    """Makes a worker of ``multiprocessing`` unmount at its end: forked workers skip ``atexit``."""
    global _worker
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is None or util is None or _worker == os.getpid() or process.parent_process() is None:
        return
    _worker = os.getpid()
    util.Finalize(None, _unmount_all, exitpriority=0)


def _split_url(url: str) -> tuple[str, int | None, str, str]:
    """The host or NID, the port, the file system's name and the path of a URL."""
    address, _, path = url.removeprefix(_SCHEME).partition("/")
    fsname, _, path = path.partition("/")
    if "@" in address:
        nid, _, port = address.partition(":")
        return nid, int(port) if port else None, fsname, path
    split = urlsplit(url)
    return split.hostname or "", split.port, fsname, path


def _nid_of(host: str) -> str:
    """The NID of a host; a NID stays as it is."""
    if "@" in host:
        return host
    try:
        return f"{socket.gethostbyname(host)}@tcp"
    except socket.gaierror as error:
        raise socket.gaierror(error.errno, f"{error.strerror}: the host {host!r} of the MGS") from error


class _Entries(list[DirEntry]):
    """The entries of a directory, also for ``with``, as the iterator of ``os.scandir``."""

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def close(self) -> None:
        """Does nothing: the list is complete."""


class FileSystem(Mounted):
    """A file system that is mounted in this process.

    ``source`` is ``MGSNID[,MGSNID...]:/FSNAME[/DIRECTORY]``, for example
    ``10.0.0.1@tcp:/nacre``, or a URL ``nacre://HOST[:PORT]/FSNAME[/DIRECTORY]``.

    ``listen`` is the NID of this client, ``port`` the port of the servers,
    ``threads`` the number of threads for network and caches, ``atime`` one of
    ``relatime``, ``strictatime`` and ``noatime``. ``diratime`` is False if reads
    leave the access times of directories as they are. ``jobid_var`` is the source
    of the job's name that requests carry: ``procname_uid``, ``nodelocal``,
    ``session``, an environment variable such as ``SLURM_JOB_ID``, or ``disable``;
    ``jobid_name`` is its pattern.
    """

    source: str
    _pid: int
    _files: weakref.WeakSet[IO[Any]]
    _lock: threading.Lock

    def __new__(
        cls,
        source: str,
        *,
        listen: str | None = None,
        port: int | None = None,
        threads: int | None = None,
        atime: str | None = None,
        diratime: bool = True,
        jobid_var: str | None = None,
        jobid_name: str | None = None,
    ) -> FileSystem:
        if source.startswith(_SCHEME):
            host, url_port, fsname, path = _split_url(source)
            port = url_port if port is None else port
            source = f"{_nid_of(host)}:/{fsname}{'/' if path else ''}{path}"
        if atime is not None and atime not in _ATIMES:
            raise ValueError(f"atime={atime!r}: use one of {', '.join(_ATIMES)}")
        named = {
            "listen": listen,
            "port": port,
            "threads": threads,
            "jobid_var": jobid_var,
            "jobid_name": jobid_name,
        }
        options = [f"{name}={value}" for name, value in named.items() if value is not None]
        if atime is not None:
            options.append(atime)
        if not diratime:
            options.append("nodiratime")
        fs = super().__new__(cls, source, ",".join(options))
        fs.source = source
        fs._pid = os.getpid()
        fs._files = weakref.WeakSet()
        fs._lock = threading.Lock()
        _mounted.add(fs)
        _unmount_at_end_of_worker()
        return fs

    def __enter__(self) -> FileSystem:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes the buffers of open files, closes all files and unmounts.

        Raises the first error: the data of that file is lost. The end of the
        program does the same.
        """
        first = None
        if self._pid == os.getpid() and not self.closed:
            with self._lock:
                files = list(self._files)
            for file in files:
                try:
                    file.close()
                except Exception as error:
                    first = first or error
        super().close()
        if first is not None:
            raise first

    def __repr__(self) -> str:
        state = "unmounted" if self.closed else "mounted"
        return f"<nacre.FileSystem {self.source!r} {state}>"

    def open(
        self,
        path: str | os.PathLike[str],
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
    ) -> IO[Any]:
        """Opens a file like the built-in ``open``.

        With ``buffering=0`` returns the raw :class:`File`. ``permissions`` are
        those of a new file, less the umask.
        """
        kind = mode.replace("b", "").replace("t", "")
        binary = "b" in mode
        flags = _FLAGS.get(kind.replace("+", ""))
        if flags is None or (binary and "t" in mode) or len(set(mode)) != len(mode):
            raise ValueError(f"invalid mode: {mode!r}")
        if binary and (encoding or errors or newline is not None):
            raise ValueError("binary mode takes no encoding, errors or newline")
        if buffering == 0 and not binary:
            raise ValueError("can't have unbuffered text I/O")
        access, extra = flags
        if "+" in kind:
            access = os.O_RDWR
        raw = File(self, self.open_file(path, access | extra, permissions), path, mode, access, extra)
        try:
            if extra & os.O_APPEND:
                raw.seek(0, os.SEEK_END)
            if buffering == 0:
                return raw
            size = buffering if buffering > 1 else BUFFER_SIZE
            if access == os.O_RDWR:
                buffered = io.BufferedRandom(raw, size)
            elif access == os.O_WRONLY:
                buffered = io.BufferedWriter(raw, size)
            else:
                buffered = io.BufferedReader(raw, size)
            file: IO[Any] = buffered
            if not binary:
                file = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
            with self._lock:
                self._files.add(file)
            return file
        except BaseException:
            raw.close()
            raise

    def makedirs(self, path: str | os.PathLike[str], mode: int = 0o777, exist_ok: bool = False) -> None:
        """Makes a directory and the missing directories that lead to it."""
        path = os.fspath(path)
        parent, name = posixpath.split(path.rstrip("/"))
        if name and parent.strip("/") and not self.exists(parent):
            self.makedirs(parent, exist_ok=True)
        try:
            self.mkdir(path, mode)
        except FileExistsError:
            if not exist_ok or not self.isdir(path):
                raise

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether the path leads to a file, also through symbolic links."""
        return self._mode(path) != 0

    def isdir(self, path: str | os.PathLike[str]) -> bool:
        """Whether the path leads to a directory."""
        return self._mode(path) & 0o170000 == 0o040000

    def isfile(self, path: str | os.PathLike[str]) -> bool:
        """Whether the path leads to a regular file."""
        return self._mode(path) & 0o170000 == 0o100000

    def _mode(self, path: str | os.PathLike[str]) -> int:
        try:
            return self.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def lstat(self, path: str | os.PathLike[str]) -> StatResult:
        """The attributes of a file; follows no symbolic link at the end of the path."""
        return self.stat(path, follow_symlinks=False)

    remove = Mounted.unlink
    replace = Mounted.rename

    def scandir(self, path: str | os.PathLike[str] = "/") -> _Entries:
        """The entries of a directory with their attributes, as a list."""
        return _Entries(super().scandir(path))

    def walk(
        self,
        top: str | os.PathLike[str] = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """The directories of a tree, each with the names in it, like ``os.walk``."""
        top = os.fspath(top)
        try:
            entries = self.scandir(top)
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        dirs, files = [], []
        for entry in entries:
            (dirs if entry.is_dir() else files).append(entry.name)
        links = {entry.name for entry in entries if entry.is_symlink()}
        if topdown:
            yield top, dirs, files
        for name in dirs:
            if followlinks or name not in links:
                yield from self.walk(posixpath.join(top, name), topdown, onerror, followlinks)
        if not topdown:
            yield top, dirs, files

    def __del__(self) -> None:
        # In a child process the mount is its parent's. A mount that failed has no process.
        if getattr(self, "_pid", None) == os.getpid():
            self.close()

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a mounted file system: pass its source and mount in the other process")


#: Access and flags of open(2) for the first letter of a mode.
_FLAGS = {
    "r": (os.O_RDONLY, 0),
    "w": (os.O_WRONLY, os.O_CREAT | os.O_TRUNC),
    "x": (os.O_WRONLY, os.O_CREAT | os.O_EXCL),
    "a": (os.O_WRONLY, os.O_CREAT | os.O_APPEND),
}


class File(io.RawIOBase):
    """An unbuffered open file, made by :meth:`FileSystem.open` with ``buffering=0``.

    Beside the methods of ``io.RawIOBase`` it has ``pread``, ``preadinto``,
    ``pwrite``, ``stat`` and ``fsync``. Any thread may use it.
    """

    def __init__(
        self,
        fs: FileSystem,
        handle: OpenFile,
        path: str | os.PathLike[str],
        mode: str,
        access: int,
        extra: int,
    ) -> None:
        # An open file keeps the file system mounted.
        self._fs = fs
        self._handle = handle
        self.name = path
        self.mode = mode
        self._readable = access != os.O_WRONLY
        self._writable = access != os.O_RDONLY
        self._appends = bool(extra & os.O_APPEND)

    def __repr__(self) -> str:
        return f"<nacre.File name={self.name!r} mode={self.mode!r}>"

    def readable(self) -> bool:
        self._check()
        return self._readable

    def writable(self) -> bool:
        self._check()
        return self._writable

    def seekable(self) -> bool:
        self._check()
        return True

    def read(self, size: int | None = -1) -> bytes:
        self._check_readable()
        if size is None or size < 0:
            return self.readall()
        return self._handle.read(size)

    def readall(self) -> bytes:
        self._check_readable()
        pieces = []
        while piece := self._handle.read(_READ_SIZE):
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        self._check_readable()
        return self._handle.readinto(buffer)

    def pread(self, size: int, offset: int) -> bytes:
        """Reads up to ``size`` bytes at an offset; leaves the file position as it is."""
        self._check_readable()
        return self._handle.pread(size, offset)

    def preadinto(self, buffer: Any, offset: int) -> int:
        """Reads at an offset into a buffer; returns the number of bytes."""
        self._check_readable()
        return self._handle.preadinto(buffer, offset)

    def write(self, data: Any) -> int:
        self._check_writable()
        return self._handle.write(data)

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes at an offset, or at the end of a file that is open for appending."""
        self._check_writable()
        return self._handle.pwrite(data, offset)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._handle.seek(offset, whence)

    def tell(self) -> int:
        return self._handle.seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None) -> int:
        self._check_writable()
        size = self.tell() if size is None else size
        self._handle.truncate(size)
        return size

    def stat(self) -> StatResult:
        """The attributes of the file."""
        return self._handle.stat()

    def fsync(self, data_only: bool = False) -> None:
        """Waits until the written data and the attributes are on the servers' disks."""
        self._handle.fsync(data_only)

    def close(self) -> None:
        """Sends written data to the servers and closes the file."""
        if not self.closed:
            try:
                self._handle.close()
            finally:
                super().close()

    def __del__(self) -> None:
        # In a child process the file is its parent's.
        try:
            self.close()
        except (AttributeError, RuntimeError):
            pass

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check_readable(self) -> None:
        self._check()
        if not self._readable:
            raise io.UnsupportedOperation("the file is not open for reading")

    def _check_writable(self) -> None:
        self._check()
        if not self._writable:
            raise io.UnsupportedOperation("the file is not open for writing")
