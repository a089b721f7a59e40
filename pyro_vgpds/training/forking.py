# SPDX-License-Identifier: Apache-2.0
"""Independent jobs in forked processes, such as restarts and folds.

A forked process has everything that its parent has, so that jobs may be closures, and scripts need no ``__main__``
guard. It uses one thread: the threads of its parent do not exist in it, and torch's do not start again there. A job's
result comes back in a file that holds numbers, text and tensors, never code. If a process fails, the job is run in the
parent, whose error is then the one that the user sees. Processes are forked on Linux only, and not if a GPU is in use,
whose state cannot be copied: all jobs are then run in the parent.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pyro_vgpds.compiled import loop_threads
from pyro_vgpds.files.container import FileFormatError
from pyro_vgpds.training.checkpoints import read_checkpoint, write_checkpoint

__all__ = ["can_fork", "run_forked"]


def can_fork() -> bool:
    """Whether processes can be forked safely."""
    return sys.platform == "linux" and not torch.cuda.is_initialized()


def run_forked(jobs: Sequence[Callable[[], Any]], processes: int) -> Iterator[tuple[int, Any]]:
    """The number and the result of each job, in the order in which they end.

    :param jobs: functions; their results are nestings of numbers, strings, lists, dictionaries and tensors.
    :param processes: how many jobs run at a time. With 1, they run one after the other in this process.
    """
    if processes == 1 or len(jobs) == 1 or not can_fork():
        for i, job in enumerate(jobs):
            yield i, job()
        return
    running: dict[int, int] = {}  # process id ↦ job
    waiting = list(range(len(jobs)))[::-1]
    with tempfile.TemporaryDirectory(prefix="pyro-vgpds-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    i = waiting.pop()
                    running[_start(jobs[i], Path(folder, str(i)))] = i
                pid, status = _next_of(running)
                i = running.pop(pid)
                found = _result(Path(folder, str(i))) if status == 0 else None
                yield i, jobs[i]() if found is None else found[0]
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _start(job: Callable[[], Any], path: Path) -> int:
    """Fork a process that runs a job and writes its result."""
    _flush()  # or both processes would write what is in the buffers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; see above
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
        torch.set_num_threads(1)
        with loop_threads(1):
            write_checkpoint(path, [job()])
        status = 0
    except BaseException:  # the parent runs the job again, and has the error
        pass
    finally:
        _flush()
        os._exit(status)  # nothing of the parent is finalised here


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _next_of(running: dict[int, int]) -> tuple[int, int]:
    """The process that ends next, and its status. Other child processes of the user are not waited for."""
    while True:
        for pid in running:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return pid, status
        time.sleep(0.01)


def _result(path: Path) -> list[Any] | None:
    try:
        return read_checkpoint(path)
    except (FileFormatError, FileNotFoundError):
        return None
