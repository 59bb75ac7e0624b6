"""A real daemon for each test: the binary of $CLAD_BIN, in a folder of $CLAD_TEST_DIR."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

import clad

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEADLINE_SECONDS = 60
"""The end of every wait in these tests: a bound, and no figure that is looked at."""


class Daemon:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.socket = folder / "clad-data" / "clad.sock"
        self.server = f"unix://{self.socket}"
        self.settings: "dict[str, str]" = {}
        self.process: "subprocess.Popen[bytes] | None" = None

    def start(self, **settings: str) -> "Daemon":
        self.settings.update({name.replace("__", "."): value for name, value in settings.items()})
        common = {
            "ingest.tcp.listen": "",
            "ingest.grpc.listen": "",
            "metrics.listen": "",
            "access.read_group": "",
            "journal.segment_bytes": "8MiB",
            "journal.power_loss_protected": "true",
        }
        words = [word for pair in {**common, **self.settings}.items() for word in ("--set", "=".join(pair))]
        out = open(self.folder / "said", "ab")
        self.process = subprocess.Popen(
            [os.environ["CLAD_BIN"], "run", *words],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            stdout=out,
            stderr=out,
        )
        out.close()
        # Whoever reads the socket's file may meet an earlier daemon's: a connection says that this one listens.
        for _ in range(100 * DEADLINE_SECONDS):
            try:
                with socket.socket(socket.AF_UNIX) as tried:
                    tried.connect(str(self.socket))
                    return self
            except OSError:
                time.sleep(0.01)
        raise AssertionError(f"the daemon does not listen: {(self.folder / 'said').read_text()}")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # returns when each thread has stopped: one that runs may still answer
            tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
            until(lambda: all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir()))

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def records(self, component: "str | None" = None) -> "list[clad.Record]":
        with clad.Reader(self.server) as reader:
            found = [event for event in reader if isinstance(event, clad.Record)]
        return [record for record in found if component in (None, record.component)]

    def bodies(self, component: "str | None" = None) -> "list[object]":
        """Of what the program logged: without the reports of drops."""
        return [record.body for record in self.records(component) if record.event_name != "clad.records_dropped"]


@pytest.fixture
def stopped():
    """A daemon that does not run yet."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="clad-py-", dir=os.environ.get("CLAD_TEST_DIR")))
    daemon = Daemon(folder)
    yield daemon
    daemon.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def daemon(stopped):
    return stopped.start()


class Disk:
    """A file system of its own below a daemon: it hangs (no write ends), and gets full."""

    MEBIBYTES = 96

    def __init__(self, folder: pathlib.Path) -> None:
        image, self.at = folder / "image", folder / "disk"
        with open(image, "wb") as file:
            file.truncate(self.MEBIBYTES << 20)
        self.at.mkdir()
        self.sh("mkfs.ext4", "-q", "-F", "-m", "0", image)
        self.sh("mount", "-o", "loop", image, self.at)
        self.is_hanging = False
        self.daemon = Daemon(self.at)

    def sh(self, *words: object) -> None:
        subprocess.run([str(word) for word in words], check=True, stdin=subprocess.DEVNULL)

    def hang(self) -> None:
        self.sh("fsfreeze", "--freeze", self.at)
        self.is_hanging = True

    def resume(self) -> None:
        self.sh("fsfreeze", "--unfreeze", self.at)
        self.is_hanging = False

    def fill(self) -> None:
        free = os.statvfs(self.at)
        with open(self.at / "others", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (1 << 20))

    def make_room(self) -> None:
        (self.at / "others").unlink()

    def end(self) -> None:
        if self.is_hanging:
            self.resume()
        self.daemon.kill()
        self.sh("umount", "--lazy", self.at)


@pytest.fixture
def disk(stopped):
    disk = Disk(stopped.folder)
    yield disk
    disk.end()


def run(
    script: str, server: str = "", status: "int | None" = 0, timeout: float = DEADLINE_SECONDS, **env: str
) -> "subprocess.CompletedProcess[str]":
    """Runs a program in Python to its end."""
    environment = {**os.environ, **env}
    environment.pop("CLAD_SERVER", None)
    if server:
        environment["CLAD_SERVER"] = server
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert status is None or ended.returncode == status, (ended.returncode, ended.stdout, ended.stderr)
    return ended


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


def until(condition, what: str = "it does not come") -> None:
    """Waits for a condition."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)
