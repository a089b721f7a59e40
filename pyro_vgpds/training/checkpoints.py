# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of training: nested numbers, strings, lists, dictionaries and tensors, in a safe file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from torch import Tensor

from pyro_vgpds.checks import check_count, check_not_negative, check_path
from pyro_vgpds.data.batches import SequenceDataset
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.container import FileFormatError, pack, read_file, unpack, write_file
from pyro_vgpds.training.checkpoint_parts import check_parts, part_name, remove_old_parts, split_rows, unpack_parts
from pyro_vgpds.training.settings import METHODS, SAME_CALL
from pyro_vgpds.types import PathLike

__all__ = ["CheckpointOptions", "Checkpoints", "Snapshot", "read_checkpoint", "read_snapshot", "write_checkpoint"]


class Snapshot(TypedDict):
    """Everything that a run needs to continue as if it had never stopped."""

    method: str
    settings: list[float]  #: learning rate, natural rate, warm-up and tolerance
    state: list[Tensor]  #: current values
    best: list[Tensor]  #: values of the best bound
    best_bound: float
    history: list[list[float]]  #: step, seconds and bound of each record
    num_undone: int
    loop: dict[str, Any]  #: the optimiser's state, as it stores it; "own" is that of the sequences of this process
    frame_tensors: list[int]  #: which tensors of ``state`` and ``best`` have a row for each frame


@dataclass(frozen=True)
class CheckpointOptions:
    """The arguments of :func:`~pyro_vgpds.fit` for checkpoints.

    :raises ValueError: if an argument is out of its range, given without a file, or the file's folder does not exist.
    """

    path: PathLike | None
    steps: int | None
    seconds: float | None

    def __post_init__(self) -> None:
        check_path("checkpoint", self.path, optional=True)
        if self.path is None:
            if self.steps is not None or self.seconds is not None:
                raise ValueError(
                    "checkpoint_steps and checkpoint_seconds need checkpoint, the file to write, but got "
                    f"checkpoint=None, checkpoint_steps={self.steps}, checkpoint_seconds={self.seconds}."
                )
            return
        if self.steps is not None:
            check_count("checkpoint_steps", self.steps)
        if self.seconds is not None:
            check_not_negative("checkpoint_seconds", self.seconds)
        folder = Path(self.path).absolute().parent
        if not folder.is_dir():
            raise ValueError(f"checkpoint: the folder {folder} does not exist. Create it first.")
        if Path(self.path).is_dir():
            raise ValueError(f"checkpoint must be the name of a file, but {self.path} is a folder.")

    def open(self, data: Sequences | SequenceDataset) -> Checkpoints | None:
        """The checkpoints of a run on data; None without a file. All processes that have the data call this.

        :raises ProcessError: if only some of them have a file.
        """
        data.communicator.check_equal("whether there is a checkpoint", self.path is not None, SAME_CALL)
        if self.path is None:
            return None
        seconds = 60.0 if self.steps is None and self.seconds is None else self.seconds
        return Checkpoints(Path(self.path), self.steps, seconds, data)


class Checkpoints:
    """Writes snapshots to ``path``, every ``steps`` steps, or if ``seconds`` have passed since the last one.

    :param data: the sequences of this process. Several processes each write a part, see
        :mod:`pyro_vgpds.training.checkpoint_parts`.
    """

    def __init__(self, path: Path, steps: int | None, seconds: float | None, data: Sequences | SequenceDataset) -> None:
        self.path, self.steps, self.seconds, self.data = path, steps, seconds, data
        self.communicator = data.communicator
        self._written: int | None = None  # step of the last one
        self._time = time.monotonic()

    def offer(self, step: int, snapshot: Callable[[], Snapshot]) -> None:
        """Write ``snapshot()`` if it is due after this step."""
        due = self.steps is not None and step - (self._written or 0) >= self.steps
        due = due or (self.seconds is not None and time.monotonic() - self._time >= self.seconds)
        if self.communicator.any(due):
            self._write(step, snapshot())

    def finish(self, step: int, snapshot: Callable[[], Snapshot]) -> None:
        """Write ``snapshot()`` after the last step, unless this step has been written."""
        if step != self._written:
            self._write(step, snapshot())

    def _write(self, step: int, snapshot: Snapshot) -> None:
        if self.data.frame_communicator.size > 1:
            self._write_together(step, snapshot)
        else:
            with self.communicator.sharing_errors():
                if self.communicator.rank == 0:
                    write_checkpoint(self.path, snapshot)
            self.communicator.check()
        self._written, self._time = step, time.monotonic()

    def _write_together(self, step: int, snapshot: Snapshot) -> None:
        communicator, path = self.communicator, self.path
        rest, rows = split_rows(dict(snapshot))
        names, frames = (
            [part_name(path, step, rank) for rank in range(communicator.size)],
            communicator.all_gather(self.data.num_frames),
        )
        with communicator.sharing_errors():
            write_checkpoint(path.absolute().parent / names[communicator.rank], rows)
        communicator.check()  # all parts are complete
        with communicator.sharing_errors():
            if communicator.rank == 0:
                check_parts(path, names)
                write_checkpoint(path, {**rest, "parts": names, "frames": frames})
                remove_old_parts(path, names)
        communicator.check()


def write_checkpoint(path: PathLike, content: object) -> None:
    """Write ``content``: its tensors, and everything else as JSON."""
    tensors: dict[str, Tensor] = {}
    write_file(path, "checkpoint", {"content": pack(content, tensors)}, tensors)


def read_checkpoint(path: PathLike) -> Any:
    """The content that :func:`write_checkpoint` wrote; tuples come back as lists.

    :raises FileFormatError: if the file is truncated, changed, of another kind, or of a later version.
    """
    header, tensors = read_file(path, "checkpoint")
    try:
        return unpack(header["content"], tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise FileFormatError(f"{path} does not contain a checkpoint: {error!r}.") from None


def read_snapshot(path: PathLike, data: Sequences | SequenceDataset) -> Snapshot:
    """The snapshot of a run, with the rows of the frames of this process.

    :raises FileFormatError: as :func:`read_checkpoint`, or if the checkpoint is not that of a run.
    """
    return cast(Snapshot, unpack_parts(Path(path), _checked(path), data, read_checkpoint))


def _checked(path: PathLike) -> dict[str, Any]:
    content = read_checkpoint(path)
    missing = sorted(_PARTS.keys() - (content if isinstance(content, dict) else {}))
    if missing:
        raise FileFormatError(f"{path} is not a checkpoint of fit: it lacks {', '.join(missing)}.")
    for name, fits in _PARTS.items():
        if not fits(content[name]):
            raise FileFormatError(f"{path} is not a checkpoint of fit: it has another {name}, {content[name]!r:.80}.")
    if not _are_places(content.get("frame_tensors", []), len(content["state"])):
        raise FileFormatError(f"{path} is not a checkpoint of fit: it has another frame_tensors.")
    return cast("dict[str, Any]", content)


def _are_places(value: object, count: int) -> bool:
    return isinstance(value, list) and all(isinstance(i, int) and 0 <= i < count for i in value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _are_numbers(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(_is_number, value))


def _are_tensors(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, Tensor) and one.is_floating_point() for one in value)


def _is_history(value: object) -> bool:
    return isinstance(value, list) and all(_are_numbers(row, 3) and isinstance(row[0], int) for row in value)


#: whether the parts of a :class:`Snapshot` are of their types
_PARTS: dict[str, Callable[[Any], bool]] = {
    "method": lambda value: value in METHODS,
    "settings": lambda value: _are_numbers(value, 4) and isinstance(value[2], int) and value[2] >= 0,
    "state": _are_tensors,
    "best": _are_tensors,
    "best_bound": _is_number,
    "history": _is_history,
    "num_undone": lambda value: isinstance(value, int) and value >= 0,
    "loop": lambda value: isinstance(value, dict) and all(isinstance(key, str) for key in value),
}
