# SPDX-License-Identifier: Apache-2.0
"""The demonstration: two kinds of movement, made on the spot, learned, completed and continued, with a report.

It needs no download. ``pyro-vgpds demo`` runs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pyro_vgpds.demo.gait import gait_chapter
from pyro_vgpds.demo.report import write_report
from pyro_vgpds.demo.video import video_chapter

__all__ = ["run"]


def run(
    output: Path, *, steps: int = 150, seed: int = 0, say: Callable[[str], Any] = print, progress: bool | None = None,
    small: bool = False,
) -> Path:  # fmt: skip
    """Make the data, train both models, and leave pictures, animations, models and ``report.html`` in ``output``.

    :param output: the folder; it is made where it is not there, and files of an earlier run are replaced.
    :param steps: of training, for each model.
    :param say: is told what is being done.
    :param progress: show progress bars; left out, on a terminal only.
    :param small: shorter data, for tests.
    :returns: the path of the report.
    """
    import matplotlib

    matplotlib.use("Agg")
    output.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster than many, for problems this small
    start = time.perf_counter()
    try:
        chapters = [chapter(output, steps, seed, say, progress, small) for chapter in (video_chapter, gait_chapter)]
    finally:
        torch.set_num_threads(threads)
    return write_report(output / "report.html", chapters, steps, seed, time.perf_counter() - start)
