# SPDX-License-Identifier: Apache-2.0
"""Makes the second figure of the README, ``docs/mocap.png``, from the paper's motion capture data, in two minutes.

PYRO_VGPDS_DATA=... python docs/figure_mocap.py

Settings are those of the motion capture tutorial. Data: mocap.cs.cmu.edu, created with funding from NSF EIA-0196217.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from matplotlib.axes import Axes

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, Solver, baselines, datasets, fit, metrics
from pyro_vgpds.kernels import RBF, Bias, Periodic, White
from pyro_vgpds.model import Relevance
from pyro_vgpds.plotting import plot_poses, plot_reconstruction, plot_relevance
from pyro_vgpds.prediction import Reconstruction

LATENT_DIM, STATIC_DIM = 9, 4
FPS = 30  # of the recordings; the data set has the paper's times, 0.05 per frame
KNEE = 10  # the hidden feature that is plotted over time
WALK, RUN = "#009E73", "#CC79A7"


def train(data: Sequences) -> tuple[VGPDS, Posterior, Relevance]:
    """A trained model, its posterior, and the relevance of its latent dimensions."""
    pyro.set_rng_seed(0)
    cycle = Periodic().fix("variance") * RBF(lengthscale=2.0).fix("variance")
    kernel = cycle + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, LATENT_DIM, 100, kernel, static_dim=STATIC_DIM, scale_outputs=True)
    guide = AutoOpperArchambeau(model)
    print(fit(model, guide, data, 150, progress=False))
    return model, Posterior(model, guide, data), model.relevance(guide, data)


def on_the_spot(motion: datasets.CMU35, features: np.ndarray) -> np.ndarray:
    """Joint positions (T, J, 3) with fixed location and direction."""
    channels = datasets.channels_from_features(features)
    channels[:, [0, 2, 4]] = 0.0
    return motion.skeleton.positions(channels)


def draw_poses(ax: Axes, motion: datasets.CMU35, guesses: dict[str, np.ndarray], hidden: np.ndarray) -> None:
    truth = on_the_spot(motion, motion.test_y)
    drawn = {"truth": truth}
    for name, guess in guesses.items():
        places = on_the_spot(motion, np.where(hidden, guess, motion.test_y))
        moved = np.abs(places - truth).max((0, 2)) > 1e-6
        shown = moved.copy()
        shown[[parent for parent, joint in motion.skeleton.bones if moved[joint]]] = True
        places[:, ~shown] = np.nan  # the rest of the body was observed
        drawn[name] = places
    frames = range(len(truth) // 2 + 1, len(truth), 9)
    seconds = [f"{i / FPS:.1f} s" for i in range(len(truth))]
    plot_poses(motion.skeleton, drawn, frames, ax, view="side", labels=seconds)
    ax.margins(0.01)
    ax.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 0.99), borderaxespad=0)
    ax.set_title("A new walk: the right leg is hidden from 2.1 s on")


def draw_knee(ax: Axes, motion: datasets.CMU35, found: Reconstruction, guess: np.ndarray, seen: np.ndarray) -> None:
    prediction = SimpleNamespace(
        t=np.arange(len(seen)) / FPS,
        mean=np.degrees(found.mean.numpy()),
        interval=lambda probability: [np.degrees(end.numpy()) for end in found.interval(probability)],
    )
    truth, partly, neighbour = (np.degrees(y) for y in (motion.test_y, seen, guess))
    plot_reconstruction(prediction, KNEE, ax, truth=truth, seen=partly, baseline=neighbour)
    ax.set(xlabel="seconds", ylabel="degrees")
    ax.set_title("Its knee, with a 95 % interval; shaded: hidden")
    ax.get_legend().remove()


def draw_loops(ax: Axes, posterior: Posterior, relevance: Relevance, is_run: list[bool]) -> None:
    moving = relevance.value[: LATENT_DIM - STATIC_DIM].argsort(descending=True)[:2].tolist()
    style = LATENT_DIM - STATIC_DIM + int(relevance.value[LATENT_DIM - STATIC_DIM :].argmax())
    x = posterior.q.mean.numpy()
    for run, rows in zip(is_run, posterior.data.times.slices(), strict=True):
        ax.plot(*x[rows][:, [*moving, style]].T, color=RUN if run else WALK, linewidth=0.5)
    ax.set(xticks=[], yticks=[], zticks=[])
    for axis, q in zip((ax.xaxis, ax.yaxis, ax.zaxis), (*moving, style), strict=True):
        axis.set_label_text(f"latent {q}")
        axis.labelpad = -13
    ax.set_box_aspect((1, 1, 0.95), zoom=1.18)
    ax.view_init(elev=24)
    for name, shade, height in (("9 runs", RUN, 0.90), ("22 walks", WALK, 0.42)):
        ax.text2D(0.03, height, name, color=shade, transform=ax.transAxes)


def main(target: Path) -> None:
    torch.set_num_threads(1)
    mpl.use("Agg")
    motion = datasets.load_cmu35()
    model, posterior, relevance = train(Sequences(list(motion.t), list(motion.y)))

    seen = motion.hide(motion.test_y, "legs")  # one leg, in the second half
    hidden = np.isnan(seen)
    found = posterior.reconstruct(motion.test_t, seen, solver=Solver(num_starts=2))
    guesses = {
        "VGPDS": found.mean.numpy(),
        "nearest neighbour": baselines.nearest_neighbour(motion.y, seen).numpy(),
    }
    scale = model.output_scale.numpy()
    scaled = [y / scale for y in (*motion.y, seen)]
    linear = baselines.ppca([*motion.t, motion.test_t], scaled, num_iterations=50)[-1].numpy() * scale
    truth = np.where(hidden, motion.test_y, np.nan)
    for name, guess in {**guesses, "probabilistic PCA": linear}.items():
        print(f"{name}: {np.degrees(metrics.mse(truth, guess) ** 0.5):.2f} degrees")
    print(f"in the 95 % intervals: {100 * metrics.coverage(truth, *found.interval(0.95)):.0f} %")

    # hypot(y[50], y[51]) is the speed of the hips; it identifies the runs and is only used for colours
    is_run = [np.hypot(y[:, 50], y[:, 51]).mean() > 1.3 for y in motion.y]
    plt.rcParams.update({"font.size": 8.5, "axes.titlesize": 9.5, "axes.titlelocation": "left"})
    fig = plt.figure(figsize=(8.5, 5.1), layout="constrained")
    above, below = fig.subfigures(2, 1, height_ratios=(1.2, 1))
    draw_poses(above.subplots(), motion, guesses, hidden)
    grid = below.add_gridspec(1, 3, width_ratios=(1.75, 1.1, 0.9))
    draw_knee(below.add_subplot(grid[0]), motion, found, guesses["nearest neighbour"], seen)
    loops = below.add_subplot(grid[1], projection="3d")
    draw_loops(loops, posterior, relevance, is_run)
    loops.set_title("31 latent paths")
    bars = plot_relevance(relevance, ax=below.add_subplot(grid[2]))
    bars.set(ylabel="relevance", title=f"{int(relevance.active.sum())} of {LATENT_DIM} are active")
    fig.savefig(target, dpi=180)
    print(f"{target}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(Path(__file__).with_name("mocap.png"))
