# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of training: any nesting of numbers, texts, lists, dictionaries and tensors, in a safe file."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from pyro_vgpds.checks import check_count
from pyro_vgpds.files.container import FileFormatError, pack, read_file, unpack, write_file

__all__ = ["Checkpoints", "read_checkpoint", "write_checkpoint"]


class _HasStep(Protocol):
    @property
    def step(self) -> int: ...


class Checkpoints:
    """Writes a snapshot to ``path`` every ``steps`` steps, or where ``seconds`` have passed since the last.

    :raises ValueError: where an argument is out of its range, or the folder of ``path`` does not exist.
    """

    def __init__(self, path: str | os.PathLike[str], steps: int | None, seconds: float | None) -> None:
        if steps is not None:
            check_count("checkpoint_steps", steps)
        if seconds is not None and not 0.0 <= seconds < math.inf:
            raise ValueError(f"checkpoint_seconds must be 0 or more, but got {seconds!r}.")
        if not Path(path).absolute().parent.is_dir():
            raise ValueError(f"checkpoint: there is no folder {Path(path).absolute().parent}.")
        if Path(path).is_dir():
            raise ValueError(f"checkpoint must be a file, but {path} is a folder.")
        self.path, self.steps = Path(path), steps
        self.seconds = 60.0 if steps is None and seconds is None else seconds
        self._last = time.monotonic()

    def offer(self, record: _HasStep, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Write ``snapshot()`` if it is time."""
        due = self.steps is not None and record.step % self.steps == 0
        due = due or (self.seconds is not None and time.monotonic() - self._last >= self.seconds)
        if due:
            self.write(snapshot)

    def write(self, snapshot: Callable[[], dict[str, Any]]) -> None:
        write_checkpoint(self.path, snapshot())
        self._last = time.monotonic()


def write_checkpoint(path: str | os.PathLike[str], content: Any) -> None:
    """Write ``content``, tensors by the side and all else as JSON."""
    tensors: dict[str, Tensor] = {}
    write_file(path, "checkpoint", {"content": pack(content, tensors)}, tensors)


def read_checkpoint(path: str | os.PathLike[str]) -> Any:
    """What :func:`write_checkpoint` wrote; tuples come back as lists.

    :raises FileFormatError: where the file is cut short, changed, of another kind, or of a later version.
    """
    header, tensors = read_file(path, "checkpoint")
    try:
        return unpack(header["content"], tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} does not hold a checkpoint: {error!r}.") from None
