# SPDX-License-Identifier: Apache-2.0
"""The report: one self-contained HTML page with its figures embedded."""

from __future__ import annotations

from html import escape
from pathlib import Path

import pyro_vgpds
from pyro_vgpds.plotting.pages import Chapter, ReportFigure, ReportTable, save_page

__all__ = ["Chapter", "ReportFigure", "ReportTable", "write_report"]


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
"""
    return save_page(path, "pyro_vgpds: a demonstration", "A pendulum and a walk", lead, chapters, end)
