# SPDX-License-Identifier: Apache-2.0
"""Motion capture in BVH files: a skeleton and its motion in one file."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

import numpy as np

from pyro_vgpds.checks import check_count, check_number, check_path
from pyro_vgpds.datasets.mocap import Motion
from pyro_vgpds.datasets.skeleton import Skeleton
from pyro_vgpds.types import PathLike

__all__ = ["load_bvh", "read_bvh"]

_LONGEST = 1_000_000  # characters of a line
_MOST_JOINTS = 10_000
_SAME = 1e-3  # offsets that differ by less than this share of the longest bone are those of one skeleton
_KINDS = {f"{axis}{kind}": f"{kind[0].replace('p', 't')}{axis}" for axis in "xyz" for kind in ("position", "rotation")}


def load_bvh(paths: PathLike | Sequence[PathLike], *, every: int = 1, metres: float = 1.0) -> Motion:
    r"""Load motion capture from ``.bvh`` files, one sequence for each file.

    Outputs are the channels in the order of the file, angles in degrees; their names are such as ``"Hips.tx"`` and
    ``"LeftLeg.rz"``. Times are in seconds, from the frame time of the file, and start at 0 in every sequence. An angle
    that jumps from 180 to -180 degrees can be made continuous by ``numpy.unwrap(y, period=360, axis=0)``.

    :param paths: a file, or several files of one skeleton.
    :param every: keep every ``every``-th frame, from the first: 4 turns 120 frames per second into 30.
    :param metres: length in metres of one unit of the files, which do not state it: 0.01 for centimetres.
    :raises FileNotFoundError: if there is no such file.
    :raises ValueError: if a file cannot be read; the message names the file and the line. Or if the skeletons of the
        files differ, ``every`` is not a positive whole number, or ``metres`` is not positive.

    >>> from pathlib import Path
    >>> from pyro_vgpds.datasets import load_bvh
    >>> text = '''HIERARCHY
    ... ROOT Hips
    ... { OFFSET 0 0 0
    ...   CHANNELS 4 Xposition Yposition Zposition Zrotation
    ...   End Site
    ...   { OFFSET 0 2 0 }
    ... }
    ... MOTION
    ... Frames: 2
    ... Frame Time: 0.5
    ... 0 1 0 0
    ... 0 1 0 90'''
    >>> _ = Path("hips.bvh").write_text(text)
    >>> motion = load_bvh("hips.bvh")
    >>> motion.columns, motion.t[0].tolist()
    (['Hips.tx', 'Hips.ty', 'Hips.tz', 'Hips.rz'], [0.0, 0.5])
    >>> motion.positions(0)[1].round(6).tolist()  # turned by 90 degrees about z
    [[0.0, 1.0, 0.0], [-2.0, 1.0, 0.0]]
    """
    check_count("every", every)
    check_number("metres", metres, "a positive number", lambda value: value > 0.0)
    for path in [paths] if isinstance(paths, str) or not isinstance(paths, Sequence) else paths:
        check_path("paths", path)
    files = [Path(p) for p in ([paths] if isinstance(paths, str) or not isinstance(paths, Sequence) else paths)]
    if not files:
        raise ValueError("paths must be a file or a list of at least one file, but got an empty list.")
    t, channels, skeletons, rates = [], [], [], []
    for path in files:
        skeleton, seconds, rows = read_bvh(path)
        skeletons.append(skeleton)
        _check_same(files[0], skeletons[0], path, skeleton)
        channels.append(rows[::every].copy())  # not a view, which would keep the frames that are dropped
        t.append(np.arange(0, len(rows), every) * seconds)
        rates.append(1.0 / (seconds * every))
    first = skeletons[0]
    fps = f"{rates[0]:.4g}" if max(rates) - min(rates) < 1e-6 * rates[0] else f"{min(rates):.4g} to {max(rates):.4g}"
    return Motion(
        t,
        channels,
        f"{files[0].name}{' and others' if files[1:] else ''}, {len(first.joints)} joints, {fps} frames per second",
        columns=list(first.channels),
        names=[path.stem for path in files],
        skeleton=Skeleton(first.joints, first.parents, first.offsets, first.channels, metres=metres, convention="bvh"),
        channels=channels,
    )


def read_bvh(path: PathLike) -> tuple[Skeleton, float, np.ndarray]:
    r"""Read the skeleton, the seconds between frames, and the channels (T, C) of a ``.bvh`` file, angles in degrees.

    The end of a bone without a joint (``End Site``) is a joint named after its parent, such as ``"Hand_end"``. Joints
    may have any channels in any order. Memory grows with the size of the file, not with what its header promises.

    :param path: the file.
    :raises FileNotFoundError: if there is no such file.
    :raises ValueError: if the file cannot be read; the message names the file and the line.

    >>> from pathlib import Path
    >>> from pyro_vgpds.datasets import read_bvh
    >>> skeleton = "ROOT Hips { OFFSET 0 0 0\n CHANNELS 1 Zrotation\n End Site { OFFSET 0 2 0 } }"
    >>> _ = Path("hips.bvh").write_text(f"HIERARCHY\n{skeleton}\nMOTION\nFrames: 2\nFrame Time: 0.5\n0\n90")
    >>> skeleton, seconds, channels = read_bvh("hips.bvh")
    >>> skeleton.joints, seconds, channels.tolist()
    (('Hips', 'Hips_end'), 0.5, [[0.0], [90.0]])
    """
    check_path("path", path)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with path.open(encoding="latin-1", newline=None) as file:
        reader = _Reader(path, file)
        skeleton = _hierarchy(reader)
        return skeleton, *_motion(reader, skeleton.channels)


class _Reader:
    """The lines of a file, one at a time, with braces as lines of their own."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self.path, self.at, self.pieces = path, 0, self._split(file)

    def _lines(self, file: TextIO) -> Iterator[str]:
        while line := file.readline(_LONGEST + 1):
            self.at += 1
            if len(line) > _LONGEST:
                self.fail(f"the line has more than {_LONGEST:,} characters")
            yield line

    def _split(self, file: TextIO) -> Iterator[list[str]]:
        for line in self._lines(file):
            for piece in line.replace("{", "\n{\n").replace("}", "\n}\n").split("\n"):
                if words := piece.split():
                    yield words

    def take(self, wanted: str) -> list[str]:
        """The words of the next line that is not empty; what is ``wanted`` is for the error at the end of the file."""
        words = next(self.pieces, None)
        if words is None:
            self.fail(f"expected {wanted}, but the file ends. Is it truncated?")
        return words

    def expect(self, *wanted: str) -> list[str]:
        """The words after these words, in upper or lower case."""
        words = self.take(repr(" ".join(wanted)))
        if [word.lower() for word in words[: len(wanted)]] != [word.lower() for word in wanted]:
            self.fail(f"expected {' '.join(wanted)!r}, but got {_short(words)!r}")
        return words[len(wanted) :]

    def numbers(self, words: list[str], count: int, what: str) -> list[float]:
        """Finite numbers."""
        if len(words) != count:
            self.fail(f"{what} must be {count} numbers, but got {len(words)}")
        for word in words:
            try:
                if math.isfinite(float(word)):
                    continue
            except ValueError:
                pass
            self.fail(f"{what} must be finite numbers, but got {word[:40]!r}")
        return [float(word) for word in words]

    def whole(self, words: list[str], what: str) -> int:
        if len(words) != 1 or not (words[0].isascii() and words[0].isdigit()) or len(words[0]) > 12:
            self.fail(f"{what} must be a whole number, but got {_short(words)!r}")
        return int(words[0])

    def fail(self, problem: str) -> NoReturn:
        raise ValueError(f"{self.path}, line {self.at}: {problem}.")


def _hierarchy(reader: _Reader) -> Skeleton:
    if reader.expect("HIERARCHY"):
        reader.fail("expected nothing after 'HIERARCHY'")
    joints: list[str] = []
    parents: list[int] = []
    offsets: list[list[float]] = []
    channels: list[str] = []
    known: set[str] = set()
    moving: set[str] = set()  # joints that have channels
    stack: list[int] = []  # joints whose braces are open

    def begin(name: str) -> None:
        if name in known:
            reader.fail(f"the name {name!r} of a joint occurs twice")
        if len(joints) == _MOST_JOINTS:
            reader.fail(f"the skeleton has more than {_MOST_JOINTS:,} joints")
        known.add(name)
        joints.append(name)
        parents.append(stack[-1] if stack else -1)
        reader.expect("{")
        offsets.append(reader.numbers(reader.expect("OFFSET"), 3, f"the offset of {name!r}"))
        stack.append(len(joints) - 1)

    def named(words: list[str]) -> str:
        return " ".join(words[1:]) or reader.fail(f"expected a name after {words[0]!r}")

    words = reader.take("'ROOT'")
    if words[0].lower() != "root":
        reader.fail(f"expected 'ROOT', but got {_short(words)!r}")
    begin(named(words))
    while stack:
        words = reader.take("'}'")
        kind, parent = words[0].lower(), joints[stack[-1]]
        if kind == "}":
            stack.pop()
        elif kind == "channels":
            if parent in moving:
                reader.fail(f"{parent!r} has CHANNELS twice")
            moving.add(parent)
            channels += _channels(reader, parent, words[1:])
        elif kind == "joint":
            begin(named(words))
        elif [word.lower() for word in words] == ["end", "site"]:
            begin(next(name for name in _endings(parent) if name not in known))
            reader.expect("}")
            stack.pop()
        else:
            reader.fail(f"expected 'CHANNELS', 'JOINT', 'End Site' or '}}' in {parent!r}, but got {_short(words)!r}")
    if not channels:
        reader.fail("the skeleton has no channels")
    return Skeleton(tuple(joints), tuple(parents), np.array(offsets), tuple(channels), convention="bvh")


def _endings(parent: str) -> Iterator[str]:
    yield f"{parent}_end"
    yield from (f"{parent}_end{i}" for i in range(2, _MOST_JOINTS))


def _channels(reader: _Reader, joint: str, words: list[str]) -> list[str]:
    count = reader.whole(words[:1], f"the number of channels of {joint!r}")
    if len(words) != count + 1:
        reader.fail(f"CHANNELS of {joint!r} promises {count} names, but {len(words) - 1} follow")
    if unknown := [word for word in words[1:] if word.lower() not in _KINDS]:
        names = ", ".join(name.capitalize() for name in _KINDS)
        reader.fail(f"unknown channel {unknown[0][:40]!r} of {joint!r}; known: {names}")
    kinds = [_KINDS[word.lower()] for word in words[1:]]
    if len(set(kinds)) < len(kinds):
        reader.fail(f"a channel of {joint!r} occurs twice")
    return [f"{joint}.{kind}" for kind in kinds]


def _motion(reader: _Reader, channels: tuple[str, ...]) -> tuple[float, np.ndarray]:
    """The seconds between frames, and the channels (T, C)."""
    reader.expect("MOTION")
    frames = reader.whole(reader.expect("Frames:"), "the number of frames")
    (seconds,) = reader.numbers(reader.expect("Frame", "Time:"), 1, "the frame time")
    if frames < 1 or not seconds > 0.0:
        reader.fail(f"the number of frames and the frame time must be positive, but are {frames} and {seconds:g}")
    values, count = array("d"), 0  # grows with the file: the header may promise anything
    for words in reader.pieces:
        if count == frames:
            reader.fail(f"'Frames: {frames}' is followed by more than {frames} frames")
        values.extend(reader.numbers(words, len(channels), f"the channels of frame {count}"))
        count += 1
    if count < frames:
        reader.fail(f"'Frames: {frames}' is followed by {count} frames, then the file ends. Is it truncated?")
    return seconds, np.array(values).reshape(count, len(channels))


def _check_same(path: Path, skeleton: Skeleton, other_path: Path, other: Skeleton) -> None:
    for what in ("joints", "parents", "channels"):
        if getattr(skeleton, what) != getattr(other, what):
            raise ValueError(f"the skeletons of {path} and {other_path} differ in their {what}: load them separately.")
    size = np.linalg.norm(skeleton.offsets[1:], axis=1).max(initial=0.0)
    if np.abs(skeleton.offsets - other.offsets)[1:].max(initial=0.0) > _SAME * size:  # a root may stand anywhere
        raise ValueError(
            f"the skeletons of {path} and {other_path} differ in the lengths of their bones: load them separately."
        )


def _short(words: list[str]) -> str:
    return " ".join(words)[:60]
