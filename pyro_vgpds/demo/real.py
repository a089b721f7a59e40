# SPDX-License-Identifier: Apache-2.0
"""The third chapter, if the data are available: recorded walks, one of them with a missing leg."""

from __future__ import annotations

import numpy as np

from pyro_vgpds.baselines import nearest_neighbour
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.datasets import Motion, load_cmu_mocap
from pyro_vgpds.demo.common import Demo, rms
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.metrics import coverage
from pyro_vgpds.plotting import animate_poses, plot_reconstruction, save_animation
from pyro_vgpds.plotting.pages import Chapter, ReportFigure, ReportTable

__all__ = ["find_walks", "real_chapter"]

_TRIALS = (1, 2, 3, 8, 7)  # walks of subject 07; the last one is held out
_LEG = ("lfemur", "ltibia", "lfoot", "ltoes")
_JOINT = "lfemur.rx"  # the angle that is plotted over time


def find_walks() -> Motion | None:
    """Walks of the CMU graphics lab, 30 frames per second, if they are in the data folder."""
    try:
        return load_cmu_mocap("07", _TRIALS, every=4)
    except FileNotFoundError:
        return None


def real_chapter(demo: Demo, walks: Motion) -> Chapter:
    """Train on all walks except the last one, and reconstruct its left leg."""
    names = [name for name in walks.columns or [] if name not in ("root.tx", "root.tz")]  # the place is no pose
    used = [walks.skeleton.channels.index(name) for name in names]
    length, lost = (20, 6) if demo.small else (None, 20)
    t = [part[:length] for part in walks.t[: 2 if demo.small else None]]
    y = [part[:length, used] for part in walks.y[: 2 if demo.small else None]]
    leg = [i for i, name in enumerate(names) if name.startswith(_LEG)]
    partly = y[-1].copy()
    partly[lost:, leg] = np.nan

    data = Sequences(t[:-1], y[:-1], columns=names)
    demo.say(f"recorded walks: training on {len(t) - 1} walks, {data.num_frames} frames of {len(names)} channels ...")
    kernel = Matern32() + White(1e-2) + Bias(0.1)
    trained = demo.train(
        "walks.safetensors", data, kernel, min(8, len(names)), min(30, data.num_frames), source="CMU subject 07"
    )
    demo.say("recorded walks: reconstructing ...")
    found = trained.posterior.reconstruct(t[-1], partly)
    near = np.asarray(nearest_neighbour(y[:-1], partly))
    guess, hidden = found.mean.numpy(), np.isnan(partly)
    mean = np.broadcast_to(np.concatenate(y[:-1]).mean(0), guess.shape)
    inside = 100 * coverage(np.where(hidden, y[-1], np.nan), *found.interval(0.95))

    def joints(rows: np.ndarray) -> np.ndarray:
        full = np.zeros((len(rows), len(walks.skeleton.channels)))
        full[:, used] = rows
        return walks.skeleton.positions(full)

    moving = {"recorded": joints(y[-1]), "model": joints(np.where(hidden, guess, y[-1]))}
    gif = save_animation(animate_poses(walks.skeleton, moving, fps=15), demo.output / "walks.gif", fps=15, dpi=72)
    line = plot_reconstruction(found, _JOINT, truth=y[-1], baseline=near, seen=partly)
    line.set(xlabel="seconds", ylabel="angle of the left thigh (degrees)")
    return Chapter(
        "A recorded walk with a missing leg",
        [
            f"The same task with real motion capture: {len(t)} walks of a person, {len(names)} channels at 30 frames "
            f"per second. One walk was held out. The model got {lost / 30.0:.1f} seconds of it, and after that "
            f"everything except the left leg.",
            ReportFigure(gif, "Left: the held-out walk. Right: the same with the left leg as the model predicts it."),
            ReportFigure(demo.picture(line, "walks_reconstruction.png"),
                   f"An angle of the left thigh, hidden in the shaded part. {inside:.0f} per cent of all hidden "
                   "numbers lie in their 95 per cent intervals."),
            ReportTable(
                ["root mean squared error, degrees", "hidden leg"],
                [
                    ["the model", f"{rms(y[-1], guess, hidden):.2f}"],
                    ["nearest pose", f"{rms(y[-1], near, hidden):.2f}"],
                    ["mean pose", f"{rms(y[-1], mean, hidden):.2f}"],
                ],
                walks.terms,
            ),
        ],
    )  # fmt: skip
