# SPDX-License-Identifier: Apache-2.0
"""Whether a process is running, and that asking leaves it alone."""

import os
import subprocess
import sys

import pytest

from pyro_vgpds.files import processes
from pyro_vgpds.files.processes import is_running


def test_running_and_ended_processes():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_running(process.pid)
        assert process.poll() is None  # it still is
        process.communicate(b"\n")
    assert process.returncode == 0
    assert not is_running(process.pid)
    assert is_running(os.getpid())


@pytest.mark.parametrize("pid", [0, -1, -os.getpid(), 2**31, 2**70], ids=["zero", "all", "own group", "large", "huge"])
def test_numbers_that_no_process_has(pid):
    assert not is_running(pid)


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill is something else there")
def test_processes_of_other_users_run(monkeypatch):
    def refuse(pid, signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert is_running(1)


class Kernel32:
    """Processes as Windows tells them: number ↦ exit code, 259 for those that run."""

    def __init__(self, codes, denied=()):
        self.codes, self.denied, self.open, self.error = codes, denied, [], 0
        self.OpenProcess = self.function(self.open_process)
        self.GetExitCodeProcess = self.function(self.exit_code)
        self.CloseHandle = self.function(lambda handle: self.open.remove(handle.value))

    @staticmethod
    def function(work):
        def call(*arguments):
            return work(*arguments)

        return call

    def open_process(self, access, inherits, pid):
        assert access == 0x1000  # to query, never to terminate
        if pid not in self.codes:
            self.error = 5 if pid in self.denied else 87
            return None
        self.open.append(2**40 + pid)
        return 2**40 + pid

    def exit_code(self, handle, code):
        code._obj.value = self.codes[handle.value - 2**40]
        return 1


def test_windows_is_asked_without_ending_a_process(monkeypatch):
    kernel32 = Kernel32({12: 259, 16: 0}, denied=[4])
    monkeypatch.setattr(os, "kill", None)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(processes.ctypes, "WinDLL", lambda name, use_last_error: kernel32, raising=False)
    monkeypatch.setattr(processes.ctypes, "get_last_error", lambda: kernel32.error, raising=False)
    assert [is_running(pid) for pid in (12, 16, 4, 20)] == [True, False, True, False]
    assert kernel32.open == []
