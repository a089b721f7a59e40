# SPDX-License-Identifier: Apache-2.0
"""Makes the first figure of the README, ``docs/vgpds.png``, from generated measurements, in three minutes.

python docs/figure.py

The data are those of the tutorial ``from_csv_to_forecast``.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, DateFormatter

from pyro_vgpds import Ensemble, Sequences, auto, datasets, metrics
from pyro_vgpds.plotting import plot_forecast, plot_reconstruction
from pyro_vgpds.plotting.comparisons import draw_errors
from pyro_vgpds.prediction import EnsemblePrediction

HORIZON = 24  # hours
SHOWN = {"temperature 1": "temperature 1, °C", "light 1": "light 1, W/m²"}
FILLED = {"light 3": "light 3, W/m²"}


def choose(data: Sequences, task: str) -> Ensemble:
    """The default candidates and baselines, compared and combined."""
    pyro.set_rng_seed(0)
    found = auto(data, task, horizon=HORIZON)
    print(found.report)
    return found


def date_axis(ax: Axes) -> None:
    ax.xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=6))
    ax.xaxis.set_major_formatter(DateFormatter("%d %b"))
    ax.set_xlabel("")


def draw_forecast(ax: Axes, ahead: EnsemblePrediction, name: str, past: Sequences, later: tuple) -> None:
    recent = slice(-4 * 24, None)
    plot_forecast(ahead, name, ax, history=(past.times.t[recent], past.read()[recent]), truth=later)
    ax.set_ylabel(SHOWN[name])
    date_axis(ax)


def main(target: Path) -> None:
    torch.set_num_threads(1)
    mpl.use("Agg")
    made, truth = datasets.make_sensors(), datasets.make_sensors(dropouts=False).y[0]
    dates, y, columns = made.dates[0], made.y[0], made.columns
    past = Sequences(dates[:-HORIZON], y[:-HORIZON], columns=columns)
    later = (dates[-HORIZON:], y[-HORIZON:])
    forecaster = choose(past, "forecast")
    ahead = forecaster.forecast(later[0])
    filler = choose(Sequences(dates, y, columns=columns), "impute")
    filled = filler.impute(fill=False)

    spread = past.output_scales.numpy()
    error = metrics.mse(later[1] / spread, ahead.mean.numpy() / spread) ** 0.5
    print(f"last day: error {error:.2f}, in 95 %: {100 * metrics.coverage(later[1], *ahead.interval(0.95)):.0f}")
    lost = np.where(np.isnan(y), truth, np.nan)
    error = metrics.mse(lost / spread, filled.mean.numpy() / spread) ** 0.5
    print(f"gaps: error {error:.2f}, in 95 %: {100 * metrics.coverage(lost, *filled.interval(0.95)):.0f}")

    plt.rcParams.update({"font.size": 8.5, "axes.titlesize": 9.5, "axes.titlelocation": "left"})
    fig = plt.figure(figsize=(9.2, 5.4), layout="constrained")
    left, right = fig.subfigures(1, 2, width_ratios=(1.25, 1))
    axes = left.subplots(3, 1)
    for ax, name in zip(axes, SHOWN, strict=False):
        draw_forecast(ax, ahead, name, past, later)
    axes[1].get_legend().remove()
    axes[0].set_title("The next day, with intervals; dots: what happened", pad=20)
    (name, label), window = next(iter(FILLED.items())), slice(9 * 24, 20 * 24)
    plot_reconstruction(filled.select(window), name, axes[2], truth=truth[window], seen=y[window])
    axes[2].set_ylabel(label)
    axes[2].set_title("Gaps that were filled in; dots: the lost values", pad=20)
    date_axis(axes[2])
    for ax, (found, title) in zip(
        right.subplots(2, 1),
        ((forecaster, "Forecast of a day: held-out errors"), (filler, "Missing entries: held-out errors")),
        strict=True,
    ):
        rows = list(found.report.table())[:9]
        names, kinds = ([str(row[key]) for row in rows] for key in ("candidate", "kind"))
        draw_errors(ax, names, [float(row["error"]) for row in rows], kinds, found.report.stopped)
        ax.get_legend().set_bbox_to_anchor((-0.75, 1.0), transform=ax.transAxes)  # above the names, too
        ax.set_title(title, pad=20)
        ax.set_xlabel("standard deviations of the outputs")
    fig.savefig(target, dpi=170)
    print(f"{target.name}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(Path(__file__).with_name("vgpds.png"))
