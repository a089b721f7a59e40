# SPDX-License-Identifier: Apache-2.0
"""The second chapter: walks of a stick figure, one of them with a missing leg."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyro

from pyro_vgpds.baselines import nearest_neighbour
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.datasets import Motion, make_gait
from pyro_vgpds.demo.common import Demo, rms
from pyro_vgpds.files.atomic import atomic_write
from pyro_vgpds.kernels import RBF, Bias, Periodic, White
from pyro_vgpds.plotting import animate_poses, plot_forecast, plot_poses, plot_reconstruction, save_animation
from pyro_vgpds.plotting.pages import Chapter, ReportFigure, ReportTable

__all__ = ["gait_chapter"]

_JOINT = "left_knee.rx"  # plotted over time: the bone that ends at the knee is the thigh
_LEG = ("left_hip", "left_knee", "left_ankle", "left_toe")  # the joints between the bones of the hidden leg


def gait_chapter(demo: Demo) -> Chapter:
    """Train on all walks except one; reconstruct its leg, forecast another walk, and generate new ones."""
    count, length, cut, lost = (4, (30, 40), 8, 10) if demo.small else (7, (70, 110), 30, 20)
    motion = make_gait(count, length, styles=("walk", "march"), seed=demo.seed)
    clean = make_gait(count, length, styles=("walk", "march"), noise=0.0, seed=demo.seed)
    names = [f"{style} {i}" for i, style in enumerate(motion.names or [])]
    t, y = list(motion.t), list(motion.y)
    train_t, train_y = t[:-1], y[:-1]
    train_t[0], train_y[0] = t[0][:-cut], y[0][:-cut]  # the end of the first walk is to be forecast
    leg = [i for i, name in enumerate(motion.columns or []) if name.startswith(("left_knee", "left_ankle", "left_toe"))]
    partly = y[-1].copy()
    partly[lost:, leg] = np.nan

    frames = sum(len(part) for part in train_t)
    demo.say(f"gait: training on {len(train_t)} walks, {frames} frames of {len(motion.columns or [])} angles ...")
    data = Sequences(train_t, train_y, columns=motion.columns)
    kernel = Periodic() * RBF(lengthscale=2.0).fix() + White(1e-3) + Bias(0.1)
    trained = demo.train(
        "gait.safetensors", data, kernel, 8, min(50, data.num_frames), source="make_gait", names=names[:-1]
    )
    posterior = trained.posterior
    demo.say("gait: reconstructing, forecasting and generating ...")
    found = posterior.reconstruct(t[-1], partly)
    near = np.asarray(nearest_neighbour(train_y, partly))
    forecast = posterior.forecast(t[0][-cut:], 0)
    pyro.set_rng_seed(demo.seed)
    fresh = np.arange(0.0, 2.0, 1.0 / 30.0)
    generated = posterior.generate(fresh, 2, include_noise=False).numpy()
    _write_files(demo.output, motion, names, train_t, train_y, partly)

    joints, skeleton = motion.skeleton.positions, motion.skeleton
    truth, guess = clean.y[-1], found.mean.numpy()
    limb = joints(near)  # only the leg; the rest would cover the other figures
    limb[:, [i for i, joint in enumerate(skeleton.joints) if joint not in _LEG]] = np.nan
    both = {"truth": joints(truth), "model": joints(guess), "nearest pose": limb}
    times = [f"{time:.2f} s" for time in t[-1]]
    shown = np.linspace(lost, len(truth) - 1, 8).round().astype(int).tolist()
    still = plot_poses(skeleton, both, shown, labels=times)
    line = plot_reconstruction(found, _JOINT, truth=y[-1], baseline=near, seen=partly)
    line.set(xlabel="seconds", ylabel="angle of the left thigh (degrees)")
    moving = {"truth": both["truth"], "model": both["model"]}
    gif = save_animation(animate_poses(skeleton, moving, fps=15), demo.output / "gait.gif", fps=15, dpi=72)
    fan = plot_forecast(forecast, _JOINT, history=(train_t[0], train_y[0]), truth=(t[0][-cut:], y[0][-cut:]))
    fan.set(xlabel="seconds", ylabel="angle of the left thigh (degrees)")
    new = save_animation(
        animate_poses(skeleton, {"first": joints(generated[0]), "second": joints(generated[1])}, fps=15),
        demo.output / "gait_new.gif", fps=15, dpi=72,
    )  # fmt: skip

    hidden = np.isnan(partly)
    ahead, last = clean.y[0][-cut:], np.broadcast_to(train_y[0][-1], (cut, y[0].shape[1]))
    mean = np.concatenate(train_y).mean(0)
    return Chapter(
        "A walk with a missing leg",
        [
            f"The second data set has {count} walks and marches of a stick figure with {y[0].shape[1]} joint angles, "
            f"of different length, pace and step size. The model was trained on {count - 1} of them. Of the last one "
            f"it was given {lost / 30.0:.1f} seconds, and after that everything except the left leg.",
            ReportFigure(gif, "Left: the held-out walk. Right: its reconstruction; the left leg is predicted."),
            ReportFigure(demo.picture(still, "gait_poses.png"),
                   "Poses with the left leg hidden. Grey: the truth. Blue: the model. Orange: the left leg of the "
                   "most similar training pose."),
            ReportFigure(demo.picture(line, "gait_reconstruction.png"),
                   "The angle of the left thigh, hidden in the shaded part. The band should contain 95 per cent of the "
                   "dots."),
            f"All walks share one latent space, of which {int(trained.relevance.active.sum())} dimensions are active. "
            "The phase of the step runs around a circle; walks and marches are at different places.",
            ReportFigure(demo.learned(trained, "gait_learned.png", names[:-1]),
                   "Left: the relevance of each latent dimension before and after training. Right: the walks in the "
                   "plane of the leading two."),
            f"The last second of the first walk ({cut} frames) was held out. The kernel states that steps repeat and "
            "that they drift over seconds:",
            ReportFigure(demo.picture(fan, "gait_forecast.png"),
                   "A forecast of the left thigh's angle. The uncertainty grows with time."),
            "The model also generates new movements, as samples of its predictive distribution:",
            ReportFigure(new, "Two generated sequences."),
            ReportTable(
                ["root mean squared error, degrees", "hidden leg", f"{cut} frames ahead"],
                [
                    ["the model", f"{rms(truth, guess, hidden):.2f}", f"{rms(ahead, forecast.mean.numpy()):.2f}"],
                    ["nearest pose / last pose", f"{rms(truth, near, hidden):.2f}", f"{rms(ahead, last):.2f}"],
                    ["mean pose", f"{rms(truth, np.broadcast_to(mean, truth.shape), hidden):.2f}",
                     f"{rms(ahead, np.broadcast_to(mean, ahead.shape)):.2f}"],
                ],
                "Compared with the walks without their noise of one degree. Lower is better.",
            ),
        ],
        ["pyro-vgpds plot gait.safetensors -o gait_model.png",
         "pyro-vgpds reconstruct gait.safetensors gait_partly.csv -o gait_whole.csv",
         f'pyro-vgpds forecast gait.safetensors --sequence "{names[1]}" --until 5 -o gait_ahead.csv',
         "pyro-vgpds fit gait.csv -o mine.safetensors --steps 200"],
    )  # fmt: skip


def _write_files(
    output: Path, motion: Motion, names: list[str], t: list[np.ndarray], y: list[np.ndarray], partly: np.ndarray
) -> None:
    """The training walks and the one with the missing leg, as csv for the command line."""
    tables = {"gait.csv": (names[:-1], t, y), "gait_partly.csv": (names[-1:], motion.t[-1:], [partly])}
    for name, (labels, times, outputs) in tables.items():
        with atomic_write(output / name) as part, part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["sequence", "time", *(motion.columns or [])])
            for label, stamps, rows in zip(labels, times, outputs, strict=True):
                for time, row in zip(stamps, rows, strict=True):
                    cells = ["" if np.isnan(value) else f"{value:.4f}" for value in row]
                    writer.writerow([label, f"{time:.6f}", *cells])
