"""The types that the package states are those that it has."""

import subprocess
import sys

from conftest import ROOT


def checked(*words):
    ended = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_mypy(tmp_path):
    checked("mypy", "--cache-dir", str(tmp_path), "-p", "clad")
    checked("mypy", "--cache-dir", str(tmp_path), "examples/web.py")
    checked("mypy", "--cache-dir", str(tmp_path), "examples/tasks.py")
    checked("mypy", "--cache-dir", str(tmp_path), "tests/agent.py")


def test_the_stubs_of_the_extension():
    checked("mypy.stubtest", "clad._clad", "--ignore-disjoint-bases")
