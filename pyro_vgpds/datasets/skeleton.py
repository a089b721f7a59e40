# SPDX-License-Identifier: Apache-2.0
"""Skeletons: bones, the channels that move them, and forward kinematics, so that poses can be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

__all__ = ["Skeleton", "euler"]

_AXES = {"rx": 0, "ry": 1, "rz": 2, "tx": 0, "ty": 1, "tz": 2}


@dataclass(frozen=True)
class Skeleton:
    """A tree of bones. Joint j is the far end of the bone of that name; joint 0 is the root.

    ``channels`` say what a row of motion data means: ``"lfemur.rx"`` is the angle about the x axis of the bone
    ``lfemur``, in degrees, and ``"root.ty"`` a position. The rotations of a bone are done in the order in which its
    channels stand, about axes that do not turn with it. What has no channel stays at rest.

    :raises ValueError: where sizes disagree, a parent comes after its child, or a channel is not of a joint.

    >>> import numpy as np
    >>> from pyro_vgpds.datasets import Skeleton
    >>> offsets = np.array([[0, 0, 0], [1, 0, 0], [1, 0, 0]])
    >>> arm = Skeleton(("root", "elbow", "hand"), (-1, 0, 1), offsets, channels=("hand.rz",))
    >>> arm.bones
    [(0, 1), (1, 2)]
    """

    joints: tuple[str, ...]  #: names, J of them; the first is the root
    parents: tuple[int, ...]  #: the joint that each hangs on, always an earlier one; -1 for the root
    offsets: np.ndarray  #: (J, 3) from each joint's parent to it, at rest; the root's own position
    channels: tuple[str, ...]  #: what the columns of motion data are, C of them
    axes: np.ndarray | None = None  #: (J, 3, 3) frame in which each bone turns; None: the axes of the room
    metres: float = 1.0  #: length of one unit of the positions

    def __post_init__(self) -> None:
        count = len(self.joints)
        if len(self.parents) != count or np.shape(self.offsets) != (count, 3):
            raise ValueError(
                f"{count} joints need {count} parents and offsets ({count}, 3), but got {len(self.parents)} parents "
                f"and offsets {np.shape(self.offsets)}."
            )
        if self.axes is not None and np.shape(self.axes) != (count, 3, 3):
            raise ValueError(f"axes must be ({count}, 3, 3), but got {np.shape(self.axes)}.")
        for j, parent in enumerate(self.parents):
            if not (parent == -1 if j == 0 else 0 <= parent < j):
                raise ValueError(f"the parent of joint {j}, {self.joints[j]!r}, must come before it, but is {parent}.")
        for channel in self.channels:
            joint, _, kind = channel.partition(".")
            if joint not in self.joints or kind not in _AXES or (kind[0] == "t" and joint != self.joints[0]):
                raise ValueError(
                    f"channel {channel!r} is not 'joint.rx', '.ry' or '.rz' of a joint, or '.tx', '.ty', '.tz' of the "
                    f"root {self.joints[0]!r}; the joints are {', '.join(self.joints)}."
                )
        if len(set(self.channels)) < len(self.channels) or len(set(self.joints)) < count:
            raise ValueError("a joint or a channel stands twice.")

    @property
    def bones(self) -> list[tuple[int, int]]:
        """Pairs (parent, joint) to draw lines between."""
        return [(parent, j) for j, parent in enumerate(self.parents) if parent >= 0]

    @cached_property
    def _turns(self) -> list[tuple[list[int], list[int]]]:
        """For each joint, the columns of its rotations in the order in which they are done, and their axes."""
        turns: list[tuple[list[int], list[int]]] = [([], []) for _ in self.joints]
        for column, channel in enumerate(self.channels):
            joint, _, kind = channel.partition(".")
            if kind[0] == "r":
                columns, axes = turns[self.joints.index(joint)]
                columns.append(column)
                axes.append(_AXES[kind])
        return turns

    def positions(self, channels: np.ndarray) -> np.ndarray:
        """Where the joints are, (T, J, 3).

        A bone with frame C that turns by M is turned by C M C⁻¹ within its parent, so with R the turn of the parent
        R' = R C M C⁻¹, and the joint is at the parent's position + R' offset.

        :param channels: rows (T, C); of one row (C,) the joints are (J, 3).
        :raises ValueError: where the last axis is not C.

        >>> arm.positions([90.0]).round(6).tolist()  # the forearm points up
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
        """
        rows = np.asarray(channels, dtype=np.float64)
        if rows.ndim not in (1, 2) or rows.shape[-1] != len(self.channels):
            raise ValueError(f"channels must be (T, {len(self.channels)}), but got {rows.shape}.")
        if rows.ndim == 1:
            return self.positions(rows[None])[0]
        turned: list[np.ndarray] = []
        places = np.empty((len(rows), len(self.joints), 3))
        for j, (parent, (columns, axes)) in enumerate(zip(self.parents, self._turns, strict=True)):
            own = euler(rows[:, columns], axes)
            if self.axes is not None:
                own = self.axes[j] @ own @ self.axes[j].T
            if parent < 0:
                turned.append(own)
                places[:, 0] = self.offsets[0]
                for column, channel in enumerate(self.channels):
                    if channel.startswith(f"{self.joints[0]}.t"):
                        places[:, 0, _AXES[channel[-2:]]] += rows[:, column]
            else:
                turned.append(turned[parent] @ own)
                places[:, j] = places[:, parent] + turned[j] @ self.offsets[j]
        return places

    def rest(self) -> np.ndarray:
        """The joints (J, 3) with every channel at zero."""
        return self.positions(np.zeros(len(self.channels)))


def euler(degrees: np.ndarray, axes: list[int]) -> np.ndarray:
    """Rotations (T, 3, 3) by angles (T, A) about fixed ``axes`` (0, 1, 2), the first of them done first."""
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
