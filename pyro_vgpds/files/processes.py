# SPDX-License-Identifier: Apache-2.0
"""Whether another process is running."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

__all__ = ["is_running"]

_QUERY = 0x1000  # PROCESS_QUERY_LIMITED_INFORMATION
_DENIED = 5  # ERROR_ACCESS_DENIED
_ACTIVE = 259  # STILL_ACTIVE


def is_running(pid: int) -> bool:
    """Whether a process of this machine is running, also one of another user. No process has a number that is not
    positive or that the system cannot represent.

    On POSIX systems, ``os.kill(pid, 0)`` checks this. On Windows, it would end the process.
    """
    if not 0 < pid < 2**31:
        return False
    if sys.platform == "win32":
        return _is_running_on_windows(pid, ctypes.WinDLL("kernel32", use_last_error=True), ctypes.get_last_error)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is that of another user
        return True
    return True


def _is_running_on_windows(pid: int, kernel32: Any, last_error: Any) -> bool:
    kernel32.OpenProcess.restype = ctypes.c_void_p  # a handle, which an int may be too short for
    kernel32.OpenProcess.argtypes = (ctypes.c_ulong, ctypes.c_int, ctypes.c_ulong)
    handle = kernel32.OpenProcess(_QUERY, False, pid)
    if not handle:
        return bool(last_error() == _DENIED)
    code = ctypes.c_ulong()
    try:
        known = kernel32.GetExitCodeProcess(ctypes.c_void_p(handle), ctypes.byref(code))
    finally:
        kernel32.CloseHandle(ctypes.c_void_p(handle))
    return not known or code.value == _ACTIVE
