# SPDX-License-Identifier: Apache-2.0
"""Generated data, for demonstrations and tests without a download."""

from __future__ import annotations

import numpy as np

from pyro_vgpds.checks import check_count, check_lengths, check_not_negative, check_number, check_seed
from pyro_vgpds.datasets.base import Dataset
from pyro_vgpds.datasets.video import Video
from pyro_vgpds.formatting import counted

__all__ = ["make_pendulum_video", "make_sequences"]


def make_sequences(
    num_sequences: int = 4,
    num_outputs: int = 30,
    length: tuple[int, int] = (40, 70),
    noise: float = 0.1,
    missing: float = 0.0,
    seed: int = 0,
) -> Dataset:
    """Sequences of unequal length at irregular times that share one smooth nonlinear map from a two-dimensional path.

    The path is a circle; its speed and radius differ between sequences. Each output is a random smooth function of it
    (a few random Fourier features), so that no linear model of two dimensions explains the data.

    :param num_sequences: number of sequences.
    :param num_outputs: number of outputs D.
    :param length: the shortest and the longest sequence, in frames.
    :param noise: standard deviation of the noise. Before noise, outputs of two or more frames have unit variance.
    :param missing: fraction of the entries that are NaN.
    :param seed: random seed.
    :raises ValueError: if a size is not positive, or ``missing`` is not in [0, 1).

    >>> from pyro_vgpds.datasets import make_sequences
    >>> make_sequences(num_sequences=3, num_outputs=8, length=(10, 10), missing=0.2).sequences()
    Sequences(3 sequences, 30 frames, 8 outputs, 19.6 % missing)
    """
    check_count("num_sequences", num_sequences)
    check_count("num_outputs", num_outputs)
    check_lengths(length)
    check_number("missing", missing, "in [0, 1)", lambda value: 0.0 <= value < 1.0)
    check_not_negative("noise", noise)
    check_seed(seed)
    rng = np.random.default_rng(seed)
    t, latent = [], []
    for _ in range(num_sequences):
        n = int(rng.integers(length[0], length[1] + 1))
        times = np.cumsum(rng.uniform(0.05, 0.15, n))
        speed, radius, phase = rng.uniform(1.2, 2.0), rng.uniform(0.8, 1.3), rng.uniform(0, 2 * np.pi)
        angle = speed * times + phase
        t.append(times)
        latent.append(radius * np.stack([np.cos(angle), np.sin(angle)], 1))
    features = 6
    frequencies = rng.standard_normal((2, features, num_outputs))
    shifts, weights = rng.uniform(0, 2 * np.pi, (features, num_outputs)), rng.standard_normal((features, num_outputs))
    clean = [(weights * np.cos(np.einsum("nq,qfd->nfd", x, frequencies) + shifts)).sum(1) for x in latent]
    scale = np.concatenate(clean).std(0) if sum(map(len, clean)) > 1 else 1.0  # one frame does not vary
    y = [part / scale + noise * rng.standard_normal(part.shape) for part in clean]
    for part in y:
        part[rng.random(part.shape) < missing] = np.nan
    description = f"{counted(num_sequences, 'sequence')} on a drifting cycle, {counted(num_outputs, 'output')}"
    return Dataset(t, y, description, "Generated.", latent=latent)


def make_pendulum_video(
    num_frames: int = 120,
    height: int = 32,
    width: int = 32,
    period: float = 24.0,
    swing: float = 50.0,
    noise: float = 4.0,
    seed: int = 0,
) -> Video:
    """A video of a swinging pendulum: bright rod and bob on a dark background, 0 to 255, with soft edges.

    The angle is a sinusoid with a random phase, so the path is a circle: ``latent`` is (num_frames, 2), the angle
    and its rate, both with amplitude 1. Pixels are a strongly nonlinear function of it.

    :param num_frames: number of frames.
    :param height: height of a frame in pixels.
    :param width: width of a frame in pixels.
    :param period: frames in one full swing.
    :param swing: the largest angle, in degrees.
    :param noise: standard deviation of the noise in each pixel; values may leave [0, 255].
    :param seed: random seed.
    :raises ValueError: if a size is not positive, a frame is smaller than 8 x 8, or ``swing`` is not in (0, 90].

    >>> from pyro_vgpds.datasets import make_pendulum_video
    >>> video = make_pendulum_video(num_frames=30, height=16, width=16)
    >>> video.y[0].shape, video.frames.shape
    ((30, 256), (30, 16, 16))
    """
    check_count("num_frames", num_frames)
    check_count("height", height, 8)
    check_count("width", width, 8)
    check_number("period", period, "positive and finite", lambda value: value > 0.0)
    check_number("swing", swing, "in (0, 90]", lambda value: 0.0 < value <= 90.0)
    check_not_negative("noise", noise)
    check_seed(seed)
    rng = np.random.default_rng(seed)
    phase = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(num_frames) / period
    latent = np.stack([np.sin(phase), np.cos(phase)], 1)
    angle = np.radians(swing) * latent[:, 0]
    length, rod, bob = min(0.75 * height, 0.4 * width / np.sin(np.radians(swing))), 0.03 * height, 0.11 * height
    rows, columns = np.mgrid[:height, :width] + 0.5
    down, across = rows - 0.08 * height, columns - width / 2  # from the pivot
    tip = length * np.stack([np.cos(angle), np.sin(angle)])  # (2, T): down, across
    along = np.clip((np.multiply.outer(tip[0], down) + np.multiply.outer(tip[1], across)) / length**2, 0, 1)
    tip = tip[:, :, None, None]
    to_rod = np.hypot(down - along * tip[0], across - along * tip[1])
    to_bob = np.hypot(down - tip[0], across - tip[1])
    inside = np.minimum(to_rod - rod, to_bob - bob)  # distance to the edge of the pendulum, negative inside
    frames = 30 + 200 / (1 + np.exp(np.clip(2.5 * inside, -50, 50)))
    pixels = frames.reshape(num_frames, -1) + noise * rng.standard_normal((num_frames, height * width))
    return Video(
        [np.arange(num_frames, dtype=np.float64)],
        [pixels],
        f"a pendulum with a period of {period:g} frames, {num_frames} x {height} x {width}",
        "Generated.",
        latent=[latent],
        shape=(height, width),
        fps=float("nan"),
    )
