"""The file system for ``fsspec``.

The URL is ``nacre://HOST[:PORT]/FSNAME/path``: the host of the MGS (an
address, a name that is resolved, or a NID), the port of the servers (by
default 988, or 7988 if the MGS listens only there),
the name of the file system. Paths without a URL need the option ``source``.
Other options are those of :class:`nacre.FileSystem`.
"""

from __future__ import annotations

import datetime
import os
import stat as modes

try:
    from fsspec.spec import AbstractFileSystem
except ImportError as error:
    raise ImportError("nacre.fs needs the package fsspec: pip install 'nacre[fsspec]'") from error

import nacre

__all__ = ["NacreFileSystem"]

#: Options of :class:`nacre.FileSystem`.
_MOUNT_OPTIONS = ("listen", "threads", "atime", "diratime", "jobid_var", "jobid_name")
#: Options of fsspec itself.
_FSSPEC_OPTIONS = (
    "asynchronous",
    "batch_size",
    "listings_expiry_time",
    "loop",
    "max_paths",
    "skip_instance_cache",
    "use_listings_cache",
)
_TYPES = {modes.S_IFDIR: "directory", modes.S_IFREG: "file", modes.S_IFLNK: "link"}


class NacreFileSystem(AbstractFileSystem):
    """A Nacre file system for ``fsspec``. Mounts at the first use."""

    protocol = "nacre"
    root_marker = "/"

    def __init__(self, source=None, host=None, port=None, fsname=None, auto_mkdir=False, **options):
        super().__init__(source=source, host=host, port=port, fsname=fsname, **options)
        if source is None:
            if host is None or fsname is None:
                raise ValueError("nacre: pass a URL nacre://HOST[:PORT]/FSNAME/path or source='NID:/FSNAME'")
            source = f"{nacre._nid_of(host)}:/{fsname}"
        unknown = [name for name in options if name not in (*_MOUNT_OPTIONS, *_FSSPEC_OPTIONS)]
        if unknown:
            raise TypeError(
                f"nacre: unknown option {', '.join(unknown)}: use source, auto_mkdir, port, {', '.join(_MOUNT_OPTIONS)}"
            )
        self._options = {name: options[name] for name in _MOUNT_OPTIONS if name in options}
        self._options["port"] = port
        self._source = source
        self._prefix = f"nacre://{host}{'' if port is None else f':{port}'}/{fsname}" if host else None
        self.auto_mkdir = auto_mkdir
        self._fs = None

    @property
    def fs(self) -> nacre.FileSystem:
        """The mount, made in this process at the first use."""
        if self._fs is None or self._pid_of_mount != os.getpid() or self._fs.closed:
            self._fs = nacre.FileSystem(self._source, **self._options)
            self._pid_of_mount = os.getpid()
        return self._fs

    def close(self) -> None:
        """Unmounts; the next use mounts again."""
        if self._fs is not None and self._pid_of_mount == os.getpid():
            self._fs.close()

    @property
    def fsid(self) -> str:
        return f"nacre_{self._source}"

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = os.fspath(path)
        if path.startswith("nacre://"):
            _, _, path = path.removeprefix("nacre://").partition("/")
            _, _, path = path.partition("/")
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path):
        if not str(path).startswith("nacre://"):
            return {}
        host, port, fsname, _ = nacre._split_url(str(path))
        found = {"host": host, "port": port, "fsname": fsname}
        return {name: value for name, value in found.items() if value}

    def unstrip_protocol(self, name: str) -> str:
        if self._prefix is None:
            return super().unstrip_protocol(name)
        return self._prefix + self._strip_protocol(name)

    @staticmethod
    def _info(name: str, st) -> dict:
        kind = modes.S_IFMT(st.st_mode)
        return {
            "name": name,
            "size": st.st_size,
            "type": _TYPES.get(kind, "other"),
            "islink": kind == modes.S_IFLNK,
            "mode": st.st_mode,
            "uid": st.st_uid,
            "gid": st.st_gid,
            "ino": st.st_ino,
            "nlink": st.st_nlink,
            "mtime": st.st_mtime,
            "created": st.st_ctime,
        }

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        st = self.fs.lstat(path)
        info = self._info(path, st)
        if info["islink"]:
            info["destination"] = self.fs.readlink(path)
            try:
                target = self.fs.stat(path)
            except FileNotFoundError:
                return info
            info["size"] = target.st_size
            info["type"] = _TYPES.get(modes.S_IFMT(target.st_mode), "other")
        return info

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        try:
            entries = self.fs.scandir(path)
        except NotADirectoryError:
            return [self.info(path)] if detail else [path]
        infos = []
        for entry in entries:
            infos.append(self.info(entry.path) if entry.is_symlink() else self._info(entry.path, entry.stat()))
        return infos if detail else [info["name"] for info in infos]

    def exists(self, path, **kwargs):
        return self.fs.exists(self._strip_protocol(path))

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if create_parents:
            self.fs.makedirs(path)
        else:
            self.fs.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.fs.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.fs.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self.fs.unlink(self._strip_protocol(path))

    def _rm(self, path):
        self.rm_file(path)

    def rm(self, path, recursive=False, maxdepth=None):
        for name in path if isinstance(path, list) else [path]:
            name = self._strip_protocol(name)
            # The name of a file may look like a pattern.
            found = [name] if self.lexists(name) else self.expand_path(name, maxdepth=maxdepth)
            for name in found:
                self._remove(name, recursive)

    def _remove(self, path: str, recursive: bool) -> None:
        if not modes.S_ISDIR(self.fs.lstat(path).st_mode):
            self.fs.unlink(path)
        elif not recursive:
            raise IsADirectoryError(f"{path} is a directory: pass recursive=True")
        else:
            for entry in self.fs.scandir(path):
                self._remove(entry.path, recursive)
            self.fs.rmdir(path)

    def lexists(self, path, **kwargs):
        try:
            self.fs.lstat(self._strip_protocol(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def mv_file(self, path1, path2, **kwargs):
        self.fs.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path2):
            path2 = f"{path2.rstrip('/')}/{path1.rsplit('/', 1)[-1]}"
        self.fs.rename(path1, path2)

    def cp_file(self, path1, path2, **kwargs):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        self._make_parent(path2)
        with self.fs.open(path1, "rb", 0) as source, self.fs.open(path2, "wb") as target:
            while piece := source.read(4 << 20):
                target.write(piece)

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        self._make_parent(path)
        with self.fs.open(path, "wb" if truncate else "ab"):
            pass
        self.fs.utime(path)

    def created(self, path):
        return self._time(self.fs.stat(self._strip_protocol(path)).st_ctime)

    def modified(self, path):
        return self._time(self.fs.stat(self._strip_protocol(path)).st_mtime)

    @staticmethod
    def _time(seconds: float) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)

    def cat_file(self, path, start=None, end=None, **kwargs):
        path = self._strip_protocol(path)
        if not start and end is None:
            with self.fs.open(path, "rb", 0) as file:
                return file.readall()
        with self.fs.open(path, "rb", 0) as file:
            first, length = self._range(start, end, lambda: file.stat().st_size)
            file.seek(first)
            return file.read(length) if length > 0 else b""

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        paths = [self._strip_protocol(path) for path in paths]
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends must have the same length")
        requests = []
        try:
            for path, start, end in zip(paths, starts, ends):
                first, length = self._range(start, end, lambda path=path: self.fs.stat(path).st_size)
                requests.append((path, first, max(length, 0)))
            return self.fs.read_many(requests)
        except OSError:
            # Some failed: the general way returns or raises the error of each.
            return super().cat_ranges(paths, starts, ends, max_gap, on_error=on_error, **kwargs)

    @staticmethod
    def _range(start, end, size_of) -> tuple[int, int]:
        """The offset and the length of a range; a negative bound counts from the end of the file."""
        size = size_of() if end is None or end < 0 or (start or 0) < 0 else None
        first = start or 0
        first = max(size + first, 0) if first < 0 else first
        last = size if end is None else size + end if end < 0 else end
        return first, last - first

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        if not autocommit:
            raise NotImplementedError("nacre: writes in an fsspec transaction are not supported")
        path = self._strip_protocol(path)
        if mode[0] in "wxa":
            self._make_parent(path)
        return self.fs.open(path, mode)
