# SPDX-License-Identifier: Apache-2.0
"""The report: one self-contained HTML page with its figures embedded."""

from __future__ import annotations

from html import escape
from pathlib import Path

import pyro_vgpds
from pyro_vgpds.plotting.pages import Chapter, ReportFigure, ReportTable, save_page

__all__ = ["Chapter", "ReportFigure", "ReportTable", "write_report"]

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
