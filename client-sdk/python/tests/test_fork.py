"""Forks: by Python, in C, in the middle of calls, by multiprocessing; and the ends of such processes."""

import concurrent.futures
import ctypes
import logging
import multiprocessing
import os
import sys
import threading

import pytest

import clad
from conftest import DEADLINE_SECONDS, run


def child(work):
    """Runs work in a fork, and returns how it ended. What work raises is 1."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def log(daemon):
    logger = logging.Logger("x")
    handler = clad.Handler(daemon.server, component="shop", flush_timeout=60)
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_a_child_begins_again(daemon, log):
    handler = log.handlers[0]
    log.info("parent 1")

    def work():
        log.info("child 1")
        assert child(lambda: (log.info("grandchild"), handler.flush())) == 0
        log.info("child 2")
        handler.flush()
        assert handler.stats().submitted == 2

    assert child(work) == 0
    assert child(lambda: (log.info("second child"), handler.flush())) == 0
    log.info("parent 2")
    handler.flush()
    records = daemon.records("shop")
    assert sorted(record.body for record in records) == [
        "child 1", "child 2", "grandchild", "parent 1", "parent 2", "second child"
    ]
    assert len({(record.pid, record.producer_id) for record in records}) == 4 == len({record.pid for record in records})


def test_a_fork_in_c_runs_no_hook(daemon, log):
    libc = ctypes.PyDLL(None)
    log.info("parent")
    pid = libc.fork()
    if pid == 0:
        status = 1
        try:
            assert log.handlers[0].stats() == clad.Stats()
            log.info("child")
            log.handlers[0].flush()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    log.handlers[0].flush()
    assert sorted(daemon.bodies("shop")) == ["child", "parent"]


def test_threads_of_a_child_use_one_producer(daemon, log):
    def work():
        sys.setswitchinterval(1e-6)  # between any two steps of one thread another one runs
        barrier = threading.Barrier(8)

        def one(number):
            barrier.wait()
            for i in range(50):
                log.info("%d %d", number, i)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        log.handlers[0].flush()
        assert log.handlers[0].stats().submitted == 400

    log.info("parent")
    for _ in range(5):
        assert child(work) == 0
    log.handlers[0].flush()
    assert len(daemon.bodies("shop")) == 2001


def test_forks_in_the_middle_of_calls(daemon):
    """Threads log, append and wait while others fork: no child hangs, and nothing is lost or there twice."""
    script = """
import clad, logging, os, threading, time
clad.setup(component="shop")
producer = clad.Producer(component="shop")
stop = threading.Event()
# Pauses, so that what is logged on a slow machine is no more than it can take.
def log():
    n = 0
    while not stop.is_set():
        logging.info("parent %d", n); n += 1
        if n % 50 == 0: time.sleep(0.001)
def append():
    while not stop.is_set(): producer.append("appended", level="written").wait()
threads = [threading.Thread(target=f) for f in (log, log, append, append)]
[thread.start() for thread in threads]
for number in range(40):
    pid = os.fork()
    if pid == 0:
        for i in range(5): logging.info("child %d %d", number, i)
        ticket = producer.append("appended %d" % number, level="written")
        ticket.wait()
        logging.getLogger().handlers[0].flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, number
stop.set()
[thread.join() for thread in threads]
print(producer.stats().acked)
"""
    acked = int(run(script, daemon.server, timeout=10 * DEADLINE_SECONDS).stdout)
    bodies = daemon.bodies("shop")
    children = [body for body in bodies if body.startswith("child")]
    assert sorted(children) == sorted(f"child {number} {i}" for number in range(40) for i in range(5))
    assert bodies.count("appended") == acked and sum(body.startswith("appended ") for body in bodies) == 40


def test_what_stays_the_parents(daemon):
    with clad.Producer(daemon.server, producer_id="ab" * 16, epoch=1) as producer, clad.Reader(daemon.server) as reader:
        ticket = producer.append("x")

        def work():
            with pytest.raises(clad.ForkedError) as caught:
                ticket.wait()
            assert caught.value.maybe_written
            with pytest.raises(clad.ForkedError) as caught:
                producer.append("y")
            assert not caught.value.maybe_written
            with pytest.raises(clad.ForkedError):
                next(reader)

        assert child(work) == 0
        ticket.wait()
    assert daemon.bodies() == ["x"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(daemon, method, tmp_path):
    module = tmp_path / "work.py"
    module.write_text(WORK)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import work; work.main({method!r})"
    ended = run(script, daemon.server)
    assert ended.stderr == ""
    bodies = daemon.bodies()
    expected = [f"process {number}" for number in range(4)] + [f"pool {number}" for number in range(20)] + ["main"]
    assert sorted(bodies) == sorted(expected)


WORK = """
import clad, concurrent.futures, logging, multiprocessing
clad.setup()

def process(number): logging.info("process %d", number)
def pool(number): logging.info("pool %d", number)

def main(method):
    logging.info("main")
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=process, args=(number,)) for number in range(4)]
    [process.start() for process in processes]
    [process.join() for process in processes]
    assert [process.exitcode for process in processes] == [0] * 4
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=context) as executor:
        list(executor.map(pool, range(20)))
"""


def test_errors_cross_processes():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        error = executor.submit(refused).exception()
    assert isinstance(error, clad.RefusedError) and (error.code, error.maybe_written, str(error)) == ("busy", True, "no")


def refused():
    raise clad.RefusedError("no", "busy", True, True)
