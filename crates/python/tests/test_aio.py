"""The asynchronous file system."""

import asyncio

import pytest

import nacre.aio


def test_calls_run_beside_the_event_loop(source, top):
    async def main():
        async with nacre.aio.FileSystem(source[0], **source[1]) as fs:
            async with await fs.open(f"{top}/f", "w") as file:
                await file.write("one\ntwo\n")
            async with await fs.open(f"{top}/f") as file:
                assert [line async for line in file] == ["one\n", "two\n"]
            names = [f"{top}/{i}" for i in range(50)]
            await asyncio.gather(*(fs.mkdir(name) for name in names))
            assert len(await fs.listdir(top)) == 51
            return await fs.read_many([(f"{top}/f", 4, 3)])

    assert asyncio.run(main()) == [b"two"]


def test_event_loop_continues_during_a_call(source, top):
    """A call that waits for a turn of the loop would never end if it blocked the loop."""

    async def main():
        async with nacre.aio.FileSystem(source[0], **source[1]) as fs:
            loop = asyncio.get_running_loop()

            def call_back():
                return asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "turn"), loop).result(60)

            assert await fs._run(call_back) == "turn"

    asyncio.run(main())


def test_first_call_mounts_and_open_is_awaited_or_entered(source, top):
    async def main():
        fs = nacre.aio.FileSystem(source[0], **source[1])
        assert await fs.listdir(top) == []
        async with fs.open(f"{top}/f", "w") as file:
            await file.write("one")
        file = await fs.open(f"{top}/f")
        assert await file.read() == "one"
        await fs.close()
        with pytest.raises(ValueError, match="unmounted"):
            await fs.listdir(top)
        mounted = await nacre.aio.FileSystem(source[0], **source[1])
        assert await mounted.exists(f"{top}/f")
        await mounted.close()

    asyncio.run(main())
