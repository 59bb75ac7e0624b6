"""The chaos agent does what its harness expects."""

import subprocess
import sys

import pytest

import clad

from conftest import DEADLINE_SECONDS, ROOT, until


def start(daemon, mode, producer_id="-", epoch=0):
    words = [sys.executable, "tests/agent.py", daemon.server, producer_id, "agent", str(epoch), mode]
    return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_keeps_over_its_deaths(daemon):
    kept = {}
    for epoch in range(1, 5):
        agent = start(daemon, "keeps", "ef" * 16, epoch)
        lines = [agent.stdout.readline() for _ in range(100)]
        agent.kill() if epoch < 4 else agent.stdin.close()
        lines += agent.stdout.readlines()
        assert agent.wait(DEADLINE_SECONDS) == (0 if epoch == 4 else -9)
        for word, number, offset in (line.split() for line in lines if line.endswith("\n")):
            assert word == "receipt"
            kept[int(number)] = int(offset)
    stored = {int(record.body): record.offset for record in daemon.records("agent")}
    assert list(stored) == list(range(len(stored))) and kept.items() <= stored.items() and len(kept) >= 400


@pytest.mark.parametrize("mode", ["drops-newest", "drops-oldest", "drops-below", "mixed"])
def test_drops_add_up(daemon, mode):
    agent = start(daemon, mode)
    until(lambda: len(daemon.bodies("agent")) > 200)
    daemon.kill()
    lines = [agent.stdout.readline() for _ in range(500)]
    daemon.start()
    agent.stdin.close()
    lines += agent.stdout.readlines()
    assert agent.wait(DEADLINE_SECONDS) == 0
    *outcomes, last = [line.split() for line in lines]
    count = {word: sum(line[0] == word for line in outcomes) for word in ("receipt", "sent", "never", "error")}
    word, logged, acked, dropped, refused = last
    assert word == "stats" and count["error"] == 0
    assert (count["receipt"] + count["sent"], count["never"]) == (int(acked), int(dropped) + int(refused))
    assert int(logged) == len(outcomes) and (count["sent"] > 0) == (mode == "mixed")


def test_follows_over_a_death(daemon):
    agent, end = start(daemon, "follows"), 0
    for _ in range(2):
        with clad.Producer(daemon.server) as producer:
            tickets = [producer.append("record", level="durable") for _ in range(100)]
        expected = end + len(tickets)
        while end < expected:
            word, first, count = agent.stdout.readline().split()
            assert (word, int(first)) == ("records", end)
            end += int(count)
        daemon.kill()
        daemon.start()
    agent.stdin.close()
    assert agent.wait(DEADLINE_SECONDS) == 0 and agent.stdout.read() == ""


def test_an_unknown_mode(daemon):
    assert start(daemon, "sleeps").wait(DEADLINE_SECONDS) == 2
