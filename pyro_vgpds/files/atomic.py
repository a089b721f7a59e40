# SPDX-License-Identifier: Apache-2.0
"""Files appear complete or not at all: they are written under a temporary name and moved to their place.

A temporary name contains the process and the machine that write it. A process that was killed leaves its file behind,
and the next one that writes into the same folder removes it. Files of processes that may be alive are never removed: of
another machine, or from before a restart of this one, only those that nobody has written to for a week.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import platform
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyro_vgpds.files.processes import is_running

__all__ = ["atomic_write", "destination", "temporary_path"]

_WEEK = 7 * 24 * 3600.0
_STEM = 40  # characters of a file's name in the temporary name, which must not be too long
_PART = re.compile(r"\..*\.(?P<machine>[0-9a-f]{12})-(?P<pid>\d{1,10})-(?P<start>\d{1,20})-[0-9a-f]{8}\.part(\.[^.]*)?")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary name in the folder of ``path``. The file is moved to ``path`` when complete, and otherwise removed.

    If ``path`` is a symbolic link, the file that it points to is replaced, and the link stays.

    :raises OSError: with the name ``path``; also if it is a folder or a device.
    """
    target = destination(path)
    part = temporary_path(target)
    try:
        try:
            yield part
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
            _remove_leftovers(target.parent)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(part), part):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def destination(path: Path) -> Path:
    """The file that is replaced: ``path``, or what it points to; an OSError if it is a folder or a device."""
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if target.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return target


def temporary_path(path: Path) -> Path:
    """An unused name in the same folder, with the same suffix, which some writers depend on."""
    pid = os.getpid()
    owner = f"{_machine(pid)}-{pid}-{_start(pid) or 0}"
    suffix = path.suffix if len(path.suffix) <= _STEM else ""
    return path.with_name(f".{path.stem[:_STEM]}.{owner}-{secrets.token_hex(4)}.part{suffix}")


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of processes that have ended."""
    with suppress(OSError), os.scandir(folder) as entries:  # what cannot be listed or removed stays
        for entry in entries:
            if entry.name.startswith(".") and (found := _PART.fullmatch(entry.name)):
                with suppress(OSError):
                    if _is_abandoned(entry, found["machine"], int(found["pid"]), int(found["start"])):
                        os.unlink(entry.path)


def _is_abandoned(entry: os.DirEntry[str], machine: str, pid: int, start: int) -> bool:
    if machine == _machine(os.getpid()):
        return not _is_alive(pid, start)
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > _WEEK


def _is_alive(pid: int, start: int) -> bool:
    """Whether a process of this machine is running; another one may have got its number."""
    if not is_running(pid):
        return False
    now = _start(pid)
    return now is None or not start or now == start


def _start(pid: int) -> int | None:
    """When a process was started, in ticks since the machine was; None if unknown, 1 if it has ended already."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return 1 if state in "ZX" else int(fields[18])  # killed, but its parent has not asked for it yet
    except (OSError, ValueError, IndexError):
        return None


@functools.lru_cache(maxsize=1)
def _machine(pid: int) -> str:
    """The machine since its last restart, and the set of process numbers of this process: containers have their own."""
    facts = [platform.node()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
