# SPDX-License-Identifier: Apache-2.0
"""Stick figures: poses of a skeleton in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pyro_vgpds.checks import as_numbers, check_choice, check_parts
from pyro_vgpds.plotting.style import BASELINE, LEARNED, MUTED, Labels, check_labels, choose_frames, new_axes
from pyro_vgpds.types import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from pyro_vgpds.datasets.skeleton import Skeleton

__all__ = ["Motions", "bone_lines", "check_motions", "draw_pose", "flatten", "plot_poses"]

#: positions (T, J, 3), one pose (J, 3), or several of them by name
Motions: TypeAlias = "ArrayLike | Mapping[str, ArrayLike]"

VIEWS = ("side", "front", "three-quarter")
_STYLES = ((MUTED, 4.5), (LEARNED, 1.6), (BASELINE, 1.2))  # a broad pale figure behind, thin ones in front of it


def plot_poses(
    skeleton: Skeleton,
    motions: Motions,
    frames: Sequence[int] | None = None,
    ax: Axes | None = None,
    *,
    view: str = "three-quarter",
    labels: Labels | None = None,
) -> Axes:
    """Plot poses in a row. Several motions are drawn on top of each other, the first as a broad pale figure behind.

    :param skeleton: a :class:`~pyro_vgpds.datasets.Skeleton`.
    :param motions: positions (T, J, 3) of its joints, or one pose (J, 3), as returned by
        ``skeleton.positions(channels)``; or a dictionary of names and positions, such as
        ``{"truth": …, "reconstruction": …}``. Bones with an end that is NaN are not drawn, so a motion can be that of
        one limb.
    :param frames: indices of the frames. Default: up to eight, evenly spaced.
    :param ax: axes to draw on. Default: those of a new figure.
    :param view: ``"side"`` (from its right), ``"front"`` or ``"three-quarter"``.
    :param labels: labels of all T frames, such as their times, printed below the figures. Default: no labels.
    :returns: the axes.
    :raises ValueError: if shapes do not match, a frame does not exist, or the view is unknown.

    >>> from pyro_vgpds.datasets import make_gait
    >>> from pyro_vgpds.plotting import plot_poses
    >>> walks = make_gait(num_sequences=1, length=(30, 30))
    >>> ax = plot_poses(walks.skeleton, walks.positions(0), frames=[0, 10, 20], view="side")
    """
    named = check_motions(skeleton, motions)
    count = len(next(iter(named.values())))
    chosen = choose_frames(frames, count)
    check_labels(labels, max(chosen) + 1)
    flat = {name: flatten(places[chosen], view) for name, places in named.items()}
    everything = np.concatenate(list(flat.values()))
    middle = _middles(list(flat.values()))
    across = np.stack([places[..., 0] for places in flat.values()]) - middle[:, None]
    gap = 1.12 * float(np.nanmax(across) - np.nanmin(across))
    bottom, top = float(np.nanmin(everything[..., 1])), float(np.nanmax(everything[..., 1]))
    ax = new_axes(ax, (max(2.0, 1.2 + 1.15 * len(chosen)), 2.6))
    for m, (name, places) in enumerate(flat.items(), start=0 if len(flat) > 1 else 1):
        for k, pose in enumerate(places):
            draw_pose(
                ax, skeleton, pose + np.array([k * gap - middle[k], 0.0]), m, name if k == 0 and len(flat) > 1 else None
            )
    if labels is not None:
        for k, i in enumerate(chosen):
            ax.text(k * gap, bottom - 0.04 * (top - bottom), str(labels[i]), ha="center", va="top", fontsize="small")
    ax.set_aspect("equal")
    ax.set_axis_off()
    if len(flat) > 1:
        ax.legend(frameon=False, ncols=len(flat), fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 0.99))
    return ax


def _middles(motions: list[np.ndarray]) -> np.ndarray:
    """The horizontal centre of each pose, (T,): the root of the first motion, or if that is NaN, the middle of the
    range of all joints. It is the same for all motions, so that their differences are visible.
    """
    across = np.stack([places[..., 0] for places in motions])
    root = across[0, :, 0]
    half_way = 0.5 * (np.fmin.reduce(across, axis=(0, 2)) + np.fmax.reduce(across, axis=(0, 2)))
    return np.where(np.isnan(root), half_way, root)


def draw_pose(ax: Axes, skeleton: Skeleton, pose: np.ndarray, style: int = 1, label: str | None = None) -> Line2D:
    """Draw a pose (J, 2) as one line with gaps between the bones. Returns the line, which an animation moves."""
    shade, width = _STYLES[min(style, len(_STYLES) - 1)]
    (line,) = ax.plot(*bone_lines(skeleton, pose), color=shade, linewidth=width, solid_capstyle="round", label=label)
    return line


def bone_lines(skeleton: Skeleton, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Horizontal and vertical positions of the ends of all bones, with NaN between bones."""
    ends = np.full((len(skeleton.bones), 3, 2), np.nan)
    for b, (parent, joint) in enumerate(skeleton.bones):
        ends[b, :2] = pose[[parent, joint]]
    return ends[..., 0].ravel(), ends[..., 1].ravel()


def flatten(places: np.ndarray, view: str) -> np.ndarray:
    """Project positions (..., J, 3) to horizontal and vertical positions (..., J, 2); the y axis points up."""
    check_choice("view", view, VIEWS)
    turn = {"side": 0.5 * np.pi, "front": 0.0, "three-quarter": 0.3 * np.pi}[view]
    x, y, z = np.moveaxis(places, -1, 0)
    across = np.cos(turn) * x + np.sin(turn) * z
    depth = np.cos(turn) * z - np.sin(turn) * x
    tilt = 0.0 if view != "three-quarter" else 0.15  # seen slightly from above
    return np.stack([across, y - tilt * depth], -1)


def check_motions(skeleton: Skeleton, motions: Motions) -> dict[str, np.ndarray]:
    """The motions as named arrays. Raises a ValueError if they are not of one shape (T, J, 3)."""
    check_parts("skeleton", skeleton, "a Skeleton", "joints", "bones")
    given = dict(motions) if isinstance(motions, Mapping) else {"motion": motions}
    named = {name: as_numbers(f"motions[{name!r}]", places) for name, places in given.items()}
    named = {name: places[None] if places.ndim == 2 else places for name, places in named.items()}
    expected = (len(skeleton.joints), 3)
    lengths = {places.shape[:1] for places in named.values()}
    if len(lengths) != 1 or not all(places.ndim == 3 and places.shape[1:] == expected for places in named.values()):
        raise ValueError(
            f"motions must be positions (T, {expected[0]}, 3) with the same T, but got "
            + (", ".join(f"{name} {places.shape}" for name, places in named.items()) or "none")
            + "."
        )
    if not any(np.isfinite(places).all(-1).any() for places in named.values()):
        raise ValueError("motions must have joints that are not NaN, but all are NaN.")
    return named
