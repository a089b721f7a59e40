# SPDX-License-Identifier: Apache-2.0
"""What the chapters of the demo share: training, errors and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyro
from torch import Tensor

import pyro_vgpds
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.atomic import atomic_write
from pyro_vgpds.files.models import save
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import Kernel
from pyro_vgpds.model import VGPDS, Relevance
from pyro_vgpds.plotting import plot_plane, plot_relevance
from pyro_vgpds.plotting.pages import Chapter, save_page
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.training.api import fit
from pyro_vgpds.training.metadata import Metadata

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Demo", "DemoModel", "rms", "write_report"]


@dataclass(frozen=True)
class DemoModel:
    """A trained model with its predictions and the relevance of its latent dimensions before and after training."""

    model: VGPDS
    posterior: Posterior
    before: Tensor  #: (Q,)
    relevance: Relevance


@dataclass(frozen=True)
class Demo:
    """A run of the demo."""

    output: Path  #: the folder of all files
    steps: int  #: of training, for each model
    seed: int
    say: Callable[[str], object]  #: is called with a message for each stage
    progress: bool | None
    small: bool  #: shorter data, for tests

    def train(
        self, name: str, data: Sequences, kernel: Kernel, latent_dim: int, num_inducing: int, *, source: str,
        names: list[str] | None = None, shape: tuple[int, int] | None = None,
    ) -> DemoModel:  # fmt: skip
        """Train a model on ``data`` and save it as ``name``. The period is fixed at its initial value, which comes from
        the data: the bound alone would let it drift.
        """
        pyro.clear_param_store()
        pyro.set_rng_seed(self.seed)
        model = VGPDS.from_data(data, latent_dim, num_inducing, kernel)
        for leaf in model.temporal.leaves():
            if "period" in leaf.parameter_names:
                leaf.fix("period")
        guide = AutoOpperArchambeau(model)
        before = model.relevance(guide, data).value
        result = fit(model, guide, data, self.steps, progress=self.progress)
        if result.stopped == "interrupted":  # fit keeps the best model so far, but the report states all steps
            raise KeyboardInterrupt
        self.say(f"  {result}")
        about = Metadata(source, names, shape, relevance_before=before.tolist(), training=result, seed=self.seed)
        save(self.output / name, model, guide, data, about.pack())
        return DemoModel(model, Posterior(model, guide, data), before, model.relevance(guide, data))

    def picture(self, axes: Axes | np.ndarray, name: str) -> Path:
        """Save the figure of these axes and close it."""
        import matplotlib.pyplot as plt

        figure = np.ravel(np.asarray(axes))[0].figure
        with atomic_write(self.output / name) as part:
            figure.savefig(part, dpi=110)
        plt.close(figure)
        return self.output / name

    def learned(self, trained: DemoModel, name: str, names: list[str] | None = None) -> Path:
        """The relevance of the latent dimensions before and after training, and the plane of the leading two."""
        import matplotlib.pyplot as plt

        leading = trained.relevance.value.argsort(descending=True)[:2].tolist()
        _, axes = plt.subplots(1, 2, figsize=(9.2, 3.6), layout="constrained")
        plot_relevance(trained.relevance, trained.before, axes[0])
        plot_plane(trained.posterior, leading, axes[1], names=names)
        return self.picture(axes, name)


def rms(truth: np.ndarray, guess: np.ndarray, where: np.ndarray | None = None) -> float:
    """Root mean squared error of the selected entries."""
    error = truth - guess if where is None else (truth - guess)[where]
    return float(np.sqrt(np.mean(np.square(error))))


_OWN = """\
pyro-vgpds fit mine.csv --horizon 20 -o mine.safetensors --report mine.html # compares methods to forecast 20 frames
pyro-vgpds forecast mine.safetensors --horizon 20 -o ahead.csv              # means and 95 % intervals
pyro-vgpds fit mine.csv --task impute -o gaps.safetensors                   # compares methods to fill in gaps
pyro-vgpds reconstruct gaps.safetensors -o full.csv                         # missing values are filled in
pyro-vgpds fit --help                                                       # all options, with examples"""


def write_report(path: Path, chapters: list[Chapter], steps: int, seed: int, seconds: float) -> Path:
    """Write the page."""
    lead = f"""This page was made by <code>pyro-vgpds demo</code> (version {pyro_vgpds.__version__}) in {seconds:.0f}
seconds, with {steps} training steps for each model and seed {seed}. A <em>variational Gaussian process dynamical
system</em> learns a few latent variables that explain how many observed outputs change together over time. With these
it reconstructs missing values, forecasts beyond the end of the data and generates new data, with a measure of
uncertainty."""
    commands = "\n".join(escape(command) for chapter in chapters for command in chapter.commands)
    end = f"""<h2>Next steps</h2>
<p>The models and the data of this page are in the same folder. Try there:</p>
<pre>{commands}</pre>
<h2>Now your own csv</h2>
<p>A file needs a column of times, which are numbers or dates, and one column for each output. Empty cells are missing
values. A column named sequence separates several recordings. With your file instead of mine.csv:</p>
<pre>{escape(_OWN)}</pre>
"""
    return save_page(path, "pyro_vgpds: a demonstration", "A pendulum and a walk", lead, chapters, end)
