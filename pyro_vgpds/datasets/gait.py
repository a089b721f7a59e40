# SPDX-License-Identifier: Apache-2.0
"""Generated motion: a stick figure that walks in place in several styles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyro_vgpds.checks import check_count, check_lengths, check_not_negative, check_number, check_seed, check_texts
from pyro_vgpds.datasets.mocap import Motion
from pyro_vgpds.datasets.skeleton import Skeleton

__all__ = ["make_gait", "stick_figure"]

#                      parent, offset in cm at rest (x: left, y: up, z: forward), channels
_BONES: dict[str, tuple[str, tuple[float, float, float], str]] = {
    "spine": ("root", (0, 28, 0), "rx ry rz"),
    "chest": ("spine", (0, 24, 0), "ry"),
    "head": ("chest", (0, 26, 0), "rx"),
    **{
        f"{side}_{bone}": (parent.format(side), (sign * x, y, z), channels)
        for side, sign in (("left", 1), ("right", -1))
        for bone, parent, (x, y, z), channels in (
            ("hip", "root", (10, -4, 0), ""),
            ("knee", "{}_hip", (0, -43, 0), "rx rz"),
            ("ankle", "{}_knee", (0, -42, 0), "rx"),
            ("toe", "{}_ankle", (0, -4, 16), "rx"),
            ("shoulder", "chest", (18, 0, 0), ""),
            ("elbow", "{}_shoulder", (2, -29, 0), "rx rz"),
            ("hand", "{}_elbow", (0, -27, 0), "rx"),
        )
    },
}

#: cadence (cycles per second); stride, knee bend, arm swing, elbow bend, lean and sway (degrees)
_STYLES = {
    "walk": (0.9, 26.0, 48.0, 22.0, 18.0, 3.0, 4.0),
    "run": (1.4, 38.0, 85.0, 38.0, 80.0, 12.0, 6.0),
    "march": (0.8, 34.0, 75.0, 50.0, 8.0, -3.0, 2.0),
    "stroll": (0.6, 18.0, 35.0, 10.0, 12.0, 1.0, 7.0),
}


def stick_figure() -> Skeleton:
    """A skeleton of 18 joints in centimetres with 23 channels: the root's height and rotations, and 19 joint angles.

    >>> from pyro_vgpds.datasets import stick_figure
    >>> figure = stick_figure()
    >>> figure.rest().shape, figure.channels[:3]
    ((18, 3), ('root.ty', 'root.rx', 'root.ry'))
    """
    joints = ["root", *_BONES]
    channels = ["root.ty", "root.rx", "root.ry", "root.rz"]
    channels += [f"{name}.{kind}" for name, (_, _, kinds) in _BONES.items() for kind in kinds.split()]
    return Skeleton(
        tuple(joints),
        (-1, *(joints.index(parent) for parent, _, _ in _BONES.values())),
        np.array([(0.0, 0.0, 0.0), *(offset for _, offset, _ in _BONES.values())]),
        tuple(channels),
        metres=0.01,
    )


def make_gait(
    num_sequences: int = 6,
    length: tuple[int, int] = (60, 110),
    styles: Sequence[str] = ("walk", "run", "march"),
    noise: float = 1.0,
    fps: float = 30.0,
    seed: int = 0,
) -> Motion:
    """Sequences of unequal length of a figure that walks in place. The styles alternate over the sequences.

    Outputs are the channels of :func:`stick_figure`: height in centimetres, angles in degrees. Phase, cadence and
    amplitudes are random for each sequence, and the cadence varies slowly within it. The lower foot is on the ground.
    ``latent`` is (N_s, 2), the cosine and sine of the phase; ``names`` are the styles. To draw a prediction, use
    ``dataset.skeleton.positions(prediction)``.

    :param num_sequences: number of sequences.
    :param length: the shortest and the longest sequence, in frames.
    :param styles: some of "walk", "run", "march" and "stroll".
    :param noise: standard deviation of the noise, in degrees and centimetres.
    :param fps: frames per second; times are in seconds.
    :param seed: random seed.
    :raises ValueError: if a size is not positive or a style is unknown.

    >>> from pyro_vgpds.datasets import make_gait
    >>> walks = make_gait(num_sequences=2, length=(30, 40))
    >>> walks.names, walks.y[0].shape[1], walks.positions(0).shape[1:]
    (['walk', 'run'], 23, (18, 3))
    """
    check_count("num_sequences", num_sequences)
    check_lengths(length)
    check_number("fps", fps, "positive and finite", lambda value: value > 0.0)
    check_not_negative("noise", noise)
    check_seed(seed)
    check_texts("styles", styles)
    unknown = [style for style in styles if style not in _STYLES]
    if unknown or not len(styles):
        raise ValueError(f"styles must be some of {', '.join(_STYLES)}, but got {unknown}.")
    rng = np.random.default_rng(seed)
    skeleton = stick_figure()
    t, y, latent, names = [], [], [], []
    for s in range(num_sequences):
        style = styles[s % len(styles)]
        frames = int(rng.integers(length[0], length[1] + 1))
        times = np.arange(frames) / fps
        cadence = _STYLES[style][0] * rng.uniform(0.9, 1.1)
        waver = 0.15 * np.sin(2 * np.pi * rng.uniform(0.1, 0.3) * times + rng.uniform(0, 2 * np.pi))
        phase = rng.uniform(0, 2 * np.pi) + 2 * np.pi * cadence * times + waver
        size = np.array(_STYLES[style][1:]) * rng.uniform(0.9, 1.1, 6)
        channels = _pose(phase, size, skeleton)
        t.append(times)
        y.append(channels + noise * rng.standard_normal(channels.shape))
        latent.append(np.stack([np.cos(phase), np.sin(phase)], 1))
        names.append(style)
    return Motion(
        t,
        y,
        f"{num_sequences} sequences of a figure's gait: {', '.join(dict.fromkeys(names))}",
        "Generated.",
        columns=list(skeleton.channels),
        names=names,
        latent=latent,
        skeleton=skeleton,
        channels=y,
    )


def _pose(phase: np.ndarray, size: np.ndarray, skeleton: Skeleton) -> np.ndarray:
    """Channels (T, C) at the phases (T,); left and right are half a cycle apart."""
    stride, knee, arm, elbow, lean, sway = size
    values = {
        "root.rx": lean / 2 + np.cos(2 * phase),
        "root.ry": sway * np.sin(phase),
        "root.rz": 0.6 * sway * np.cos(phase),
        "spine.rx": np.full_like(phase, lean / 2),
        "spine.ry": -0.7 * sway * np.sin(phase),
        "spine.rz": -0.6 * sway * np.cos(phase),
        "chest.ry": -sway * np.sin(phase),
        "head.rx": -0.6 * lean + 1.5 * np.cos(2 * phase),
    }
    for side, sign, turn in (("left", 1.0, phase), ("right", -1.0, phase + np.pi)):
        bend = knee * (0.12 + 0.88 * np.exp(2.2 * (np.cos(turn - 5.8) - 1)))  # once per cycle, in the swing phase
        values[f"{side}_knee.rx"] = -stride * np.sin(turn) - 0.1 * stride  # the thigh, which ends at the knee
        values[f"{side}_knee.rz"] = sign * (2.0 + 0.2 * sway * np.cos(turn))
        values[f"{side}_ankle.rx"] = bend
        values[f"{side}_toe.rx"] = -0.3 * bend + 0.35 * stride * np.sin(turn + 0.4)
        values[f"{side}_elbow.rx"] = arm * np.sin(turn)
        values[f"{side}_elbow.rz"] = np.full_like(phase, sign * 6.0)
        values[f"{side}_hand.rx"] = -elbow * (1 - 0.2 * np.sin(turn))
    channels = np.stack([values.get(name, np.zeros_like(phase)) for name in skeleton.channels], 1)
    feet = [skeleton.joints.index(f"{side}_{end}") for side in ("left", "right") for end in ("ankle", "toe")]
    channels[:, 0] = -skeleton.positions(channels)[:, feet, 1].min(1)
    return channels
