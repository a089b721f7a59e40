# SPDX-License-Identifier: Apache-2.0
"""The real data sets that training is timed on, from the folder that PYRO_VGPDS_DATA names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.io

from pyro_vgpds import Sequences


def folder() -> Path:
    home = os.environ.get("PYRO_VGPDS_DATA")
    if not home:
        raise SystemExit("set PYRO_VGPDS_DATA to the folder of the data sets")
    return Path(home)


def cmu35() -> Sequences:
    """The paper's motion capture data: 31 walks and runs, 59 features a frame, 0.05 a frame."""
    file = scipy.io.loadmat(folder() / "cmu35" / "cmu35WalkJog.mat")
    raw, labels = file["Y"], file["lbls"]
    joints = [*range(6, 38), *range(40, 47), 48, 49, *range(52, 59), 60, 61]
    radians = np.pi / 180
    t, y = [], []
    for s in range(labels.shape[1]):
        rows = raw[labels[:, s] > 0]
        before, now = rows[:-1], rows[1:]
        features = [np.arcsin(np.sin(now[:, joints] * radians)), (before - now)[:, [0, 2]], now[:, [1]]]
        for wave in (np.sin, np.cos):
            turned, last = wave(now[:, [3, 4, 5]] * radians), wave(before[:, [4]] * radians)
            features += [turned[:, [0, 2]], last - turned[:, [1]]]
        y.append(np.concatenate(features, 1))
        t.append(0.05 * np.arange(len(now)))
    return Sequences(t, y)


def yeast() -> Sequences:
    """Spellman's cdc15 experiment: 24 uneven times, the genes that are complete."""
    frame = pd.read_csv(folder() / "spellman_yeast" / "combined.csv", index_col=0)
    columns = [c for c in frame.columns if c.startswith("cdc15_")]
    return Sequences([float(c.split("_")[1]) for c in columns], frame[columns].dropna().to_numpy().T)


def robot() -> Sequences:
    """Wireless signal strengths along a robot's walk, 53 % missing; a strength that is not seen is missing."""
    names = ["t", "mac", "x", "y", "dbm"]
    frame = pd.read_csv(folder() / "robot_wireless" / "uw-floor.txt", sep=" ", header=None, names=names)
    wide = frame.pivot_table(index="t", columns="mac", values="dbm")
    return Sequences(wide.index.to_numpy() - wide.index[0], wide.to_numpy())


def french() -> Sequences:
    """Monthly portfolio returns, in months."""
    frame = pd.read_csv(folder() / "french" / "french.csv.bz2", index_col=0)
    return Sequences(np.arange(len(frame)), frame.to_numpy())


def missa() -> Sequences:
    """Miss America at QCIF size: 150 frames of 25,344 pixels."""
    with np.load(folder() / "missa_qcif" / "missa_qcif.npz", allow_pickle=False) as file:
        frames = file["frames"]
    return Sequences(np.arange(len(frames)), frames.reshape(len(frames), -1).astype(float))


#                                          Q   M
DATA: dict[str, tuple[Callable[[], Sequences], int, int]] = {
    "cmu35": (cmu35, 9, 100),
    "yeast": (yeast, 6, 20),
    "robot": (robot, 6, 60),
    "french": (french, 8, 60),
    "missa": (missa, 25, 85),
}
