# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of several processes: each writes the rows of its own frames, and the first one everything else.

The parts are written first. The checkpoint itself, which names them, replaces the one before only when they are
complete, and the parts of the one before are deleted after that. So the checkpoint is complete at every moment. Any
number of processes can continue: each reads the rows of its own frames.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.communication import ProcessError
from pyro_vgpds.data.batches import SequenceDataset
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.shards import Shard
from pyro_vgpds.files.container import FileFormatError
from pyro_vgpds.training.settings import ResumeError

__all__ = ["check_parts", "part_file", "part_name", "regrouped", "remove_old_parts", "split_rows", "unpack_parts"]

Reader: TypeAlias = Callable[[Path], Any]
_Data: TypeAlias = Sequences | SequenceDataset
_LISTS = ("state", "best")  # of a snapshot, whose tensors may have a row for each frame


def split_rows(content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A snapshot without what belongs to the sequences of this process, and this: the rows of frames, and of the
    optimiser's state what it stores as "own".
    """
    places = content["frame_tensors"]
    part: dict[str, Any] = {name: [content[name][i] for i in places if content[name]] for name in _LISTS}
    rest = dict(content)
    for name in _LISTS:
        rest[name] = [_frames(x, 0, 0) if i in places else x for i, x in enumerate(content[name])]
    rest["loop"] = {key: value for key, value in content["loop"].items() if key != "own"}
    return rest, {**part, "own": content["loop"].get("own")}


def part_name(path: Path, step: int, rank: int) -> str:
    """The name of the file of one process."""
    return f"{path.name}.part{rank}.{step}"


def part_file(path: Path, name: object) -> Path:
    """The file of a part of a checkpoint; a FileFormatError if it does not exist."""
    plain = isinstance(name, str) and Path(name).name == name
    file = path.absolute().parent / str(name)
    if not plain or not file.is_file():
        raise FileFormatError(f"{path} needs its part {file}, which does not exist.")
    return file


def remove_old_parts(path: Path, kept: list[str]) -> None:
    """Delete parts of earlier checkpoints that are not among those to keep."""
    pattern = re.compile(re.escape(path.name) + r"\.part\d+\.\d+")
    for file in path.absolute().parent.iterdir():
        if pattern.fullmatch(file.name) and file.name not in kept:
            file.unlink(missing_ok=True)


def check_parts(path: Path, names: list[str]) -> None:
    """Raise a ProcessError if a part cannot be seen from here."""
    missing = [name for name in names if not (path.absolute().parent / name).is_file()]
    if missing:
        raise ProcessError(
            f"checkpoint must be in a folder that all processes see, but {missing[0]} of another process is not in "
            f"{path.absolute().parent}."
        )


def unpack_parts(path: Path, content: dict[str, Any], data: _Data, read: Reader) -> dict[str, Any]:
    """A snapshot with the rows of this process, for data that may be shared by another number of processes."""
    first, stop = data.offset, data.offset + data.num_frames
    if "parts" in content:
        rest, names, frames = content, content["parts"], content.get("frames", [])
        if not _are_parts(names, frames):
            raise FileFormatError(f"{path} is not a checkpoint of fit: it has other parts, {names!r:.80}.")
    elif data.frame_communicator.size == 1:
        return content
    else:  # of one process
        if "frame_tensors" not in content:
            raise ResumeError("Cannot resume with several processes: the checkpoint is of an earlier version.")
        if len(content["best"]) not in (0, len(content["state"])):
            raise FileFormatError(f"{path} is not a checkpoint of fit: it has another number of best values.")
        rest, whole = split_rows(content)
        tensors = [x for name in _LISTS for x in whole[name]]
        names, frames = [path.name], [x.shape[-2] if x.dim() > 1 else len(x) for x in tensors[:1]]
        if any(not _has_frames(x, frames[0]) for x in tensors):
            raise FileFormatError(f"{path} is not a checkpoint of fit: its tensors have different numbers of frames.")
    if sum(frames) != total_frames(data):
        raise ResumeError(
            f"Cannot resume: the checkpoint has {sum(frames)} frames, but the data have {total_frames(data)}."
        )
    found: dict[str, list[list[Tensor]]] = {name: [[] for _ in content["frame_tensors"]] for name in _LISTS}
    now, begin, owns = data.frame_communicator.all_gather(data.num_frames), 0, []
    for name, count in zip(names, frames, strict=True):
        low, high = max(first, begin), min(stop, begin + count)
        if low < high or ("batches" in rest["loop"] and now != frames):  # of batches, what each process visited
            part = _read_part(path, name, count, read) if rest is content else whole
            _add(found, part, low - begin, max(low, high) - begin)
            owns.append(part["own"])
        begin += count
    new = dict(rest)
    for name in _LISTS:
        values = list(rest[name])
        for i, pieces in zip(content["frame_tensors"], found[name], strict=True):
            if values:
                values[i] = torch.cat(pieces, -2)
        new[name] = values
    if "batches" in rest["loop"]:
        new["loop"] = {**rest["loop"], "own": owns[0] if now == frames else _regrouped(path, owns, frames, data)}
    return new


def _regrouped(path: Path, owns: list[Any], frames: list[int], data: _Data) -> dict[str, Any]:
    if not isinstance(data, SequenceDataset):
        raise ResumeError("Cannot resume: the checkpoint is of a run in batches. Give its batch_size.")
    try:
        return regrouped(owns, frames, data)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, ResumeError):
            raise
        raise FileFormatError(f"{path} is not a checkpoint of fit: {error!r}.") from None


def total_frames(data: _Data) -> int:
    """The number of frames in all processes that have the data together."""
    return data.num_frames if isinstance(data, Sequences) and not isinstance(data, Shard) else data.total_frames


def _are_parts(names: object, frames: object) -> bool:
    if not isinstance(names, list) or not isinstance(frames, list) or len(names) != len(frames):
        return False
    plain = all(isinstance(name, str) and Path(name).name == name for name in names)
    return plain and all(isinstance(count, int) and count > 0 for count in frames)


def _read_part(path: Path, name: str, count: int, read: Reader) -> dict[str, Any]:
    file = part_file(path, name)
    part = read(file)
    good = isinstance(part, dict) and part.keys() == {*_LISTS, "own"}
    if not good or any(not _has_frames(x, count) for name in _LISTS for x in part[name]):
        raise FileFormatError(f"{file} is not the part of a checkpoint with {count} frames.")
    return part


def _add(found: dict[str, list[list[Tensor]]], part: dict[str, Any], low: int, high: int) -> None:
    for name in _LISTS:
        for pieces, rows in zip(found[name], part[name], strict=bool(part[name])):
            pieces.append(_frames(rows, low, high))


def _frames(x: Tensor, first: int, stop: int) -> Tensor:
    """Some of the frames of a tensor (..., N, Q)."""
    return x[..., first:stop, :]


def _has_frames(x: object, count: int) -> bool:
    return isinstance(x, Tensor) and x.dim() > 1 and x.shape[-2] == count


def regrouped(owns: list[dict[str, Any]], frames: list[int], data: SequenceDataset) -> dict[str, Any]:
    """What this process begins with, if the sequences were with other processes before.

    :param owns: what each of them kept: "order" (S,), "position" (batches of the epoch so far, and in all),
        "generator", and "undo", the rows of the last batch and their sites, or None.
    :raises ResumeError: if they had another number of sequences.
    """
    sizes = [len(own["order"]) for own in owns]
    if sum(sizes) != data.total_sequences:
        raise ResumeError(
            f"Cannot resume: the checkpoint has {sum(sizes)} sequences, but the data have {data.total_sequences}."
        )
    generator = torch.Generator()
    generator.set_state(owns[0]["generator"])
    seeds = torch.randint(1 << 62, (data.communicator.size,), generator=generator)  # another one for each process
    generator.manual_seed(int(seeds[data.communicator.rank]))
    mine = _visited(owns)[data.first_sequence :][: data.num_sequences]
    order = torch.randperm(data.num_sequences, generator=generator)
    order = order[(~mine[order]).to(torch.uint8).argsort(stable=True)]
    undo = None
    if all(own["undo"] is not None for own in owns):
        undo = _own_rows([own["undo"] for own in owns], frames, data)
    return {"order": order, "position": owns[0]["position"], "generator": generator.get_state(), "undo": undo}


def _visited(owns: list[dict[str, Any]]) -> Tensor:
    """Which sequences of all processes were visited in this epoch."""
    parts = []
    for own in owns:
        order, (batch, count) = own["order"].long(), own["position"]
        seen = torch.zeros(len(order), dtype=torch.bool)
        for indices in order.tensor_split(int(count))[: int(batch)]:
            seen[indices] = True
        parts.append(seen)
    return torch.cat(parts)


def _own_rows(undos: list[list[Tensor]], frames: list[int], data: SequenceDataset) -> list[Tensor]:
    """The rows of this process among those of all, with their sites."""
    starts = accumulate(frames[:-1], initial=0)
    rows = torch.cat([undo[0].long() + start for undo, start in zip(undos, starts, strict=True)]) - data.offset
    own = (rows >= 0) & (rows < data.num_frames)
    eta, lam, factors = (torch.cat(sites, -2)[..., own, :] for sites in zip(*(undo[1:] for undo in undos), strict=True))
    return [rows[own], eta, lam, factors]
