"""``asyncio`` for :class:`nacre.FileSystem`: each call runs on a thread, so the event loop continues.

If a timeout or a cancellation ends a task's wait, the call continues on its thread.

>>> import asyncio, nacre.aio
>>> async def main():
...     async with nacre.aio.FileSystem(SOURCE, **OPTIONS) as fs:
...         await fs.makedirs("/doc/aio", exist_ok=True)
...         async with fs.open("/doc/aio/x", "wb") as file:
...             await file.write(b"0123456789")
...         return await fs.read_many([("/doc/aio/x", n, 2) for n in (0, 4)])
>>> asyncio.run(main())
[b'01', b'45']
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor

import nacre

__all__ = ["File", "FileSystem"]

#: Largest number of calls of a file system that run at the same time.
CONCURRENT_MAX = 32


def _method(name: str, original):
    """The asynchronous form of a method."""

    @functools.wraps(original)
    async def call(self, *args, **options):
        await self.mount()
        return await self._run(getattr(self._wrapped, name), *args, **options)

    return call


class _Wrapper:
    """An object whose methods run on the threads of a pool."""

    def __init__(self, wrapped, pool: ThreadPoolExecutor) -> None:
        self._wrapped = wrapped
        self._pool = pool

    async def _run(self, function, *args, **options):
        call = functools.partial(function, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


class File(_Wrapper):
    """An open file: the methods of Python's files as coroutines."""

    async def __aenter__(self) -> File:
        return self

    async def __aexit__(self, *exception) -> None:
        await self.close()

    def __aiter__(self) -> File:
        return self

    async def __anext__(self):
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    def __getattr__(self, name: str):
        value = getattr(self._wrapped, name)
        if not callable(value) or name.startswith("_"):
            return value
        return functools.partial(self._run, value)


class _Opening:
    """An open of a file: ``await`` it for the file, or use it in ``async with``."""

    def __init__(self, opening) -> None:
        self._opening = opening

    def __await__(self):
        return self._opening.__await__()

    async def __aenter__(self) -> File:
        self._file = await self._opening
        return self._file

    async def __aexit__(self, *exception) -> None:
        await self._file.close()


class FileSystem(_Wrapper):
    """A mounted file system: the methods of :class:`nacre.FileSystem` as coroutines.

    Mounts at ``async with``, at ``await``, or at the first call.
    """

    def __init__(self, source: str, **options) -> None:
        super().__init__(None, ThreadPoolExecutor(CONCURRENT_MAX, "nacre-aio"))
        self._mount = functools.partial(nacre.FileSystem, source, **options)
        self._mounting = asyncio.Lock()

    async def mount(self) -> None:
        """Mounts, unless it is mounted already."""
        if self._wrapped is None:
            async with self._mounting:
                if self._wrapped is None:
                    self._wrapped = await self._run(self._mount)
        elif self._wrapped.closed:
            raise ValueError("the file system is unmounted: make another nacre.aio.FileSystem")

    def __await__(self):
        return self.__aenter__().__await__()

    async def __aenter__(self) -> FileSystem:
        await self.mount()
        return self

    async def __aexit__(self, *exception) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all files and unmounts."""
        if self._wrapped is not None:
            await self._run(self._wrapped.close)
        self._pool.shutdown(wait=False)

    def open(self, path, mode="r", **options) -> _Opening:
        """Opens a file, for ``await`` or ``async with``; the options are those of
        :meth:`nacre.FileSystem.open`."""
        return _Opening(self._open(path, mode, options))

    async def _open(self, path, mode, options) -> File:
        await self.mount()
        return File(await self._run(self._wrapped.open, path, mode, **options), self._pool)


for _name in (
    "access chmod chown exists getxattr isdir isfile link listdir listxattr lstat makedirs mkdir read_many readlink "
    "remove removexattr rename replace rmdir scandir setxattr stat statvfs symlink truncate unlink utime"
).split():
    setattr(FileSystem, _name, _method(_name, getattr(nacre.FileSystem, _name)))
