# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the command line loads its modules, which takes seconds: the process ends without a traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

__all__ = ["restore_interrupts"]

_INTERRUPTED = 130


def _is_command() -> bool:
    """Whether this process is the command line, and not a program that imports the library."""
    given = sys.orig_argv
    return ("-m" in given[:-1] and given[given.index("-m") + 1] == "pyro_vgpds") or (
        os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0] == "pyro-vgpds"
    )


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)  # nothing has been done yet that must be finished


def restore_interrupts() -> None:
    """Give Ctrl-C its usual meaning back."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# A process in the background may ignore Ctrl-C: then it is not to end here either.
if (
    _is_command()
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, _leave)
