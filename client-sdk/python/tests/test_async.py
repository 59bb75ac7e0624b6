"""asyncio: receipts without threads."""

import asyncio
import os
import signal

import pytest

import clad


def threads():
    return len(os.listdir("/proc/self/task"))


def test_a_thousand_receipts_take_no_thread(daemon):
    async def main():
        async with clad.AsyncProducer(daemon.server, component="a") as producer:
            await producer.append("first")
            before = threads()
            tasks = [asyncio.create_task(producer.append(str(i), level="durable")) for i in range(1000)]
            await asyncio.sleep(0)
            assert threads() == before
            receipts = await asyncio.gather(*tasks)
            assert threads() == before
            await producer.flush()
            assert producer.stats().acked == 1001
            return [receipt.offset for receipt in receipts]

    assert asyncio.run(main()) == list(range(1, 1001))
    assert daemon.bodies("a") == ["first"] + [str(i) for i in range(1000)]


def test_another_loop_and_errors(stopped):
    producer = clad.AsyncProducer(stopped.server, delivery_timeout=0.05, backoff=(0.001, 0.01))

    async def one():
        with pytest.raises(clad.DeliveryTimeoutError) as caught:
            await producer.append("x")
        assert not caught.value.maybe_written
        with pytest.raises(ValueError):
            await producer.append("x", level="safe")
        with pytest.raises(clad.TooLargeError):
            await producer.append("x" * (5 << 20))

    asyncio.run(one())
    asyncio.run(one())
    stopped.start()

    async def two():
        assert (await producer.append("y")).count == 1
        await producer.close()
        with pytest.raises(clad.ClosedError):
            await producer.append("z")

    asyncio.run(two())
    assert stopped.bodies() == ["y"]


def test_the_loop_turns_while_the_daemon_hangs(daemon):
    async def main():
        producer = clad.AsyncProducer(daemon.server, connect=True)
        daemon.signal(signal.SIGSTOP)
        task = asyncio.create_task(producer.append("x"))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not task.done()
        with pytest.raises(clad.WaitTimeout):
            await producer.flush(timeout=0.01)
        daemon.signal(signal.SIGCONT)
        assert (await task).offset == 0
        await producer.close()

    asyncio.run(main())


def test_a_wait_for_room_that_is_cancelled_hands_over_nothing(stopped):
    async def main():
        producer = clad.AsyncProducer(stopped.server, max_buffered_bytes=1024, backoff=(0.001, 0.01))
        first = await producer.submit("x" * 600)
        waiting = asyncio.create_task(producer.submit("cancelled" * 60))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        last = asyncio.create_task(producer.append("last"))
        first.cancel()  # cancels nothing
        await asyncio.get_running_loop().run_in_executor(None, stopped.start)
        assert (await last).offset == 1
        await producer.close()

    asyncio.run(main())
    assert stopped.bodies() == ["x" * 600, "last"]


def test_in_shared_memory(daemon):
    async def main():
        async with clad.AsyncProducer("shm://" + daemon.server.removeprefix("unix://"), connect=True) as producer:
            receipts = await asyncio.gather(*(producer.append(str(i), level="durable") for i in range(100)))
            assert [receipt.offset for receipt in receipts] == list(range(100))

    asyncio.run(main())


def test_a_child_of_fork(daemon):
    async def main():
        producer = clad.AsyncProducer(daemon.server)
        await producer.append("parent")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                # A loop of its own: the parent's is watched by its parent.
                asyncio.events._set_running_loop(None)
                asyncio.run(asyncio.wait_for(producer.append("child"), 30))
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        await producer.append("parent again")
        await producer.close()

    asyncio.run(main())
    assert daemon.bodies() == ["parent", "child", "parent again"]
