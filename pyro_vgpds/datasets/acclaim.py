# SPDX-License-Identifier: Apache-2.0
"""Readers of Acclaim motion capture: ``.asf`` skeletons and ``.amc`` motions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pyro_vgpds.checks import check_kind, check_path
from pyro_vgpds.datasets.skeleton import Skeleton, euler
from pyro_vgpds.types import PathLike

__all__ = ["read_amc", "read_asf"]

_INCH = 0.0254


def read_asf(path: PathLike) -> Skeleton:
    """Read the skeleton of an ``.asf`` file. The root's channels come first, then those of the bones in file order.

    Positions are in the file's unit. ``metres`` is the length of that unit under CMU's convention: an inch divided by
    the ``length`` given in the section ``:units``.

    :param path: the file.
    :raises ValueError: if it is not an ``.asf`` file; the message names the file.

    >>> from pathlib import Path
    >>> from pyro_vgpds.datasets import read_asf
    >>> text = ''':root
    ...   order TX TY TZ
    ... :bonedata
    ...   begin
    ...     name leg
    ...     direction 0 -1 0
    ...     length 2
    ...     axis 0 0 0 XYZ
    ...     dof rx
    ...   end
    ... :hierarchy
    ...   root leg'''
    >>> _ = Path("leg.asf").write_text(text)
    >>> read_asf("leg.asf").channels
    ('root.tx', 'root.ty', 'root.tz', 'leg.rx')
    """
    check_path("path", path)
    path = Path(path)
    sections = _sections(path)
    for needed in ("root", "bonedata", "hierarchy"):
        if needed not in sections:
            raise ValueError(f"{path} is not an .asf skeleton: it has no section ':{needed}'.")
    units = {line[0]: line[1] for line in sections.get("units", []) if len(line) > 1}
    to_degrees = np.degrees(1.0) if units.get("angle", "deg").lower().startswith("rad") else 1.0
    root = {line[0]: line[1:] for line in sections["root"]}
    bones = {bone["name"][0]: bone for bone in _bones(sections["bonedata"])}
    parent_of = {child: line[0] for line in sections["hierarchy"] for child in line[1:] if line[0] != "begin"}
    if missing := [name for name in bones if name not in parent_of]:
        raise ValueError(f"{path}: ':hierarchy' gives no parent for {', '.join(missing)}.")
    joints = ["root"]
    while len(joints) <= len(bones):  # in the file's order, but every parent before its children
        ready = [name for name in bones if name not in joints and parent_of[name] in joints]
        if not ready:
            raise ValueError(f"{path}: ':hierarchy' does not connect every bone to the root.")
        joints.append(ready[0])
    try:
        parents = [-1] + [joints.index(parent_of[name]) for name in joints[1:]]
        offsets = [_numbers(root.get("position", ["0"] * 3))]
        axes = [_frame(root.get("orientation", ["0"] * 3) + root.get("axis", ["XYZ"]), to_degrees)]
        for bone in (bones[name] for name in joints[1:]):
            offsets.append(_numbers(bone["direction"]) * float(bone["length"][0]))
            axes.append(_frame(bone["axis"], to_degrees))
        channels = [f"root.{kind.lower()}" for kind in root["order"]]
        channels += [f"{name}.{kind.lower()}" for name, bone in bones.items() for kind in bone.get("dof", [])]
        unit = _INCH / float(units.get("length", 1.0))
        return Skeleton(tuple(joints), tuple(parents), np.array(offsets), tuple(channels), np.array(axes), unit)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as an .asf skeleton: {error}") from error


def read_amc(path: PathLike, skeleton: Skeleton) -> tuple[np.ndarray, np.ndarray]:
    r"""Read the frame numbers (T,) and the channels (T, C) of an ``.amc`` file, angles in degrees.

    Frames may start at any number. Columns are in the order of ``skeleton.channels``.

    :param path: the file.
    :param skeleton: the skeleton of the same subject.
    :raises ValueError: if a line cannot be read, a bone is unknown, or a channel is missing in a frame.

    >>> from pathlib import Path
    >>> import numpy as np
    >>> from pyro_vgpds.datasets import Skeleton, read_amc
    >>> offsets = np.array([[0, 0, 0], [0, -2, 0]])
    >>> leg = Skeleton(("root", "leg"), (-1, 0), offsets, channels=("root.ty", "leg.rx"))
    >>> _ = Path("leg.amc").write_text(":DEGREES\n1\nroot 5\nleg 30\n2\nroot 6\nleg 40")
    >>> frames, channels = read_amc("leg.amc", leg)
    >>> frames.tolist(), channels.tolist()
    ([1, 2], [[5.0, 30.0], [6.0, 40.0]])
    """
    check_path("path", path)
    check_kind("skeleton", skeleton, Skeleton, "a Skeleton")
    path = Path(path)
    columns: dict[str, list[int]] = {}
    angles = np.array([".r" in channel for channel in skeleton.channels])
    for column, channel in enumerate(skeleton.channels):
        columns.setdefault(channel.partition(".")[0], []).append(column)
    numbers: list[int] = []
    rows: list[np.ndarray] = []
    radians = False
    for at, line in enumerate(path.read_text(encoding="latin-1").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0].startswith(":"):
            radians = radians or words[0].upper() == ":RADIANS"
        elif len(words) == 1 and words[0].isdigit():
            numbers.append(int(words[0]))
            rows.append(np.full(len(skeleton.channels), np.nan))
        else:
            place = columns.get(words[0])
            if place is None or not rows or len(place) != len(words) - 1:
                known = f"{len(place)} numbers for {words[0]!r}" if place else f"no bone {words[0]!r}"
                raise ValueError(
                    f"{path}, line {at}: {line.strip()!r} does not match the skeleton, which has {known}"
                    f"{'' if rows else ', and the line comes before the first frame number'}."
                )
            try:
                rows[-1][place] = [float(word) for word in words[1:]]
            except ValueError as error:
                raise ValueError(f"{path}, line {at}: {error}") from None
    if not rows:
        raise ValueError(f"{path} is not an .amc motion: it has no frames.")
    frames, channels = np.array(numbers), np.stack(rows)
    if np.isnan(channels).any():
        row, column = np.argwhere(np.isnan(channels))[0]
        raise ValueError(f"{path}: frame {frames[row]} has no {skeleton.channels[column]}. Is the file truncated?")
    if (np.diff(frames) <= 0).any():
        later = frames[1:][np.diff(frames) <= 0][0]
        raise ValueError(f"{path}: frame numbers must increase, but {later} follows a number that is not smaller.")
    if radians:
        channels[:, angles] = np.degrees(channels[:, angles])
    return frames, channels


def _sections(path: Path) -> dict[str, list[list[str]]]:
    """The lines of each ':name' section, split into words."""
    sections: dict[str, list[list[str]]] = {}
    current: list[list[str]] = []
    for line in path.read_text(encoding="latin-1").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0].startswith(":"):
            current = sections.setdefault(words[0][1:].lower(), [])
        else:
            current.append(words)
    return sections


def _bones(lines: list[list[str]]) -> list[dict[str, list[str]]]:
    bones: list[dict[str, list[str]]] = []
    for words in lines:
        if words[0] == "begin":
            bones.append({})
        elif words[0] != "end" and bones:
            bones[-1][words[0].lower()] = words[1:]
    return bones


def _numbers(words: list[str]) -> np.ndarray:
    if len(words) < 3:
        raise ValueError(f"expected three numbers, but got {words}")
    return np.array([float(word) for word in words[:3]])


def _frame(words: list[str], to_degrees: float) -> np.ndarray:
    """The frame of 'a b c XYZ': rotated by a about the first named axis, then by b about the second, and so on."""
    order = ["XYZ".index(letter) for letter in words[3].upper()]
    return euler(to_degrees * _numbers(words)[None], order)[0]
