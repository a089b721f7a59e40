# SPDX-License-Identifier: Apache-2.0
"""Skeletons: bones, the channels that move them, and forward kinematics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pyro_vgpds.checks import as_numbers

__all__ = ["Skeleton", "euler"]

_AXES = {"rx": 0, "ry": 1, "rz": 2, "tx": 0, "ty": 1, "tz": 2}


@dataclass(frozen=True)
class Skeleton:
    """A tree of bones. Joint j is the far end of the bone of the same name; joint 0 is the root.

    ``channels`` name the columns of motion data: ``"lfemur.rx"`` is the angle of the bone ``lfemur`` about the x axis,
    in degrees, and ``"root.ty"`` a position. A bone without channels keeps its rest orientation. There are two
    conventions, those of the two file formats:

    - ``"acclaim"``: a rotation turns the bone of the same name, which ends in the joint, and all that follows. The
      rotations of a bone are applied in the order of its channels, about fixed axes. Only the root has positions, which
      are added to its offset.
    - ``"bvh"``: a rotation turns the bones that start in the joint. The rotation of the first channel is the outermost:
      with channels z, x, y it is :math:`R_z R_x R_y`. Every joint can have positions, which replace its offset.

    :raises ValueError: if sizes disagree, a parent comes after its child, a channel belongs to no joint, or the
        convention is unknown.

    >>> import numpy as np
    >>> from pyro_vgpds.datasets import Skeleton
    >>> offsets = np.array([[0, 0, 0], [1, 0, 0], [1, 0, 0]])
    >>> arm = Skeleton(("root", "elbow", "hand"), (-1, 0, 1), offsets, channels=("hand.rz",))
    >>> arm.bones
    [(0, 1), (1, 2)]
    """

    joints: tuple[str, ...]  #: names, J of them; the first is the root
    parents: tuple[int, ...]  #: the parent of each joint, always an earlier one; -1 for the root
    offsets: np.ndarray  #: (J, 3) from the parent to the joint, at rest; for the root its position
    channels: tuple[str, ...]  #: names of the columns of motion data, C of them
    axes: np.ndarray | None = None  #: (J, 3, 3) local frame of each bone's rotations; None: the world axes
    metres: float = 1.0  #: length in metres of one unit of the positions
    convention: str = "acclaim"  #: the meaning of the channels, ``"acclaim"`` or ``"bvh"``

    def __post_init__(self) -> None:
        count = len(self.joints)
        if len(self.parents) != count or np.shape(self.offsets) != (count, 3):
            raise ValueError(
                f"{count} joints need {count} parents and offsets ({count}, 3), but got {len(self.parents)} parents "
                f"and offsets {np.shape(self.offsets)}."
            )
        if self.convention not in ("acclaim", "bvh"):
            raise ValueError(f"convention must be 'acclaim' or 'bvh', but got {self.convention!r}.")
        if self.axes is not None and (np.shape(self.axes) != (count, 3, 3) or self.convention == "bvh"):
            wanted = "None with the convention 'bvh'" if self.convention == "bvh" else f"({count}, 3, 3)"
            raise ValueError(f"axes must be {wanted}, but got {np.shape(self.axes)}.")
        for j, parent in enumerate(self.parents):
            if not (parent == -1 if j == 0 else 0 <= parent < j):
                raise ValueError(f"the parent of joint {j}, {self.joints[j]!r}, must precede it, but is {parent}.")
        movable = set(self.joints) if self.convention == "bvh" else {self.joints[0]}
        known = set(self.joints)
        for channel in self.channels:
            joint, _, kind = channel.rpartition(".")
            if joint not in known or kind not in _AXES or (kind[0] == "t" and joint not in movable):
                raise ValueError(
                    f"channel {channel!r} must be a joint with '.rx', '.ry' or '.rz', or the root {self.joints[0]!r} "
                    f"with '.tx', '.ty' or '.tz'; the joints are {', '.join(self.joints)}."
                )
        if len(set(self.channels)) < len(self.channels) or len(set(self.joints)) < count:
            raise ValueError("the names of joints and of channels must be unique, but one occurs twice.")

    @property
    def bones(self) -> list[tuple[int, int]]:
        """Pairs (parent, joint), one for each bone."""
        return [(parent, j) for j, parent in enumerate(self.parents) if parent >= 0]

    @cached_property
    def _turns(self) -> list[tuple[list[int], list[int]]]:
        """For each joint, the columns of its rotations in the order of application, and their axes."""
        return [
            (found[::-1], axes[::-1]) if self.convention == "bvh" else (found, axes) for found, axes in self._of("r")
        ]

    @cached_property
    def _moves(self) -> list[tuple[list[int], list[int]]]:
        """For each joint, the columns of its positions, and their axes."""
        return self._of("t")

    def _of(self, kind: str) -> list[tuple[list[int], list[int]]]:
        found: dict[str, tuple[list[int], list[int]]] = {joint: ([], []) for joint in self.joints}
        for column, channel in enumerate(self.channels):
            joint, _, which = channel.rpartition(".")
            if which[0] == kind:
                found[joint][0].append(column)
                found[joint][1].append(_AXES[which])
        return list(found.values())

    def positions(self, channels: np.ndarray) -> np.ndarray:
        """Positions of the joints, (T, J, 3).

        With C the local frame of a bone, M its rotation and R the orientation of the parent, the bone's orientation is
        R' = R C M C⁻¹, and the joint is at the parent's position + R' offset. With the convention ``"bvh"``, R' = R M,
        and the joint is at the parent's position + R offset.

        :param channels: rows (T, C), or one row (C,), which gives (J, 3).
        :raises ValueError: if the size of the last axis is not C.

        >>> arm.positions([90.0]).round(6).tolist()  # the forearm points up
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
        """
        rows = as_numbers("channels", channels)
        if rows.ndim not in (1, 2) or rows.shape[-1] != len(self.channels):
            raise ValueError(f"channels must be (T, {len(self.channels)}), but got {rows.shape}.")
        if rows.ndim == 1:
            return self.positions(rows[None])[0]
        turned: list[np.ndarray] = []
        places = np.empty((len(rows), len(self.joints), 3))
        replaces = self.convention == "bvh"
        for j, (parent, (columns, axes)) in enumerate(zip(self.parents, self._turns, strict=True)):
            own = euler(rows[:, columns], axes)
            if self.axes is not None:
                own = self.axes[j] @ own @ self.axes[j].T
            offset = np.repeat(np.asarray(self.offsets[j], dtype=np.float64)[None], len(rows), 0)
            for column, axis in zip(*self._moves[j], strict=True):
                offset[:, axis] = rows[:, column] + (0.0 if replaces else offset[:, axis])
            turned.append(own if parent < 0 else turned[parent] @ own)
            if parent < 0:
                places[:, j] = offset
            else:
                turn = turned[parent] if replaces else turned[j]
                places[:, j] = places[:, parent] + (turn @ offset[..., None])[..., 0]
        return places

    def rest(self) -> np.ndarray:
        """Positions of the joints (J, 3) without rotations, with every joint at its offset."""
        row = np.zeros(len(self.channels))
        if self.convention == "bvh":
            for (columns, axes), offset in zip(self._moves, self.offsets, strict=True):
                row[columns] = np.asarray(offset, dtype=np.float64)[axes]
        return self.positions(row)


def euler(degrees: np.ndarray, axes: list[int]) -> np.ndarray:
    """Rotations (T, 3, 3) by angles (T, A) about fixed ``axes`` (0, 1, 2), the first angle applied first."""
    turn = np.broadcast_to(np.eye(3), (len(degrees), 3, 3))
    for angle, axis in zip(np.radians(degrees).T, axes, strict=True):
        step = np.zeros((len(degrees), 3, 3))
        a, b = (axis + 1) % 3, (axis + 2) % 3
        step[:, axis, axis] = 1.0
        step[:, a, a] = step[:, b, b] = np.cos(angle)
        step[:, b, a] = np.sin(angle)
        step[:, a, b] = -step[:, b, a]
        turn = step @ turn
    return turn
