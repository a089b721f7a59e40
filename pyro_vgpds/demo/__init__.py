# SPDX-License-Identifier: Apache-2.0
"""The demo, ``pyro-vgpds demo``: train on a synthetic video, a synthetic gait and recorded walks, if these are
available; predict, and write a report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyro_vgpds.demo.common import Demo, write_report
from pyro_vgpds.demo.gait import gait_chapter
from pyro_vgpds.demo.real import find_walks, real_chapter
from pyro_vgpds.demo.video import video_chapter
from pyro_vgpds.threads import threads_for

__all__ = ["run"]


def run(
    output: Path, *, steps: int = 150, seed: int = 0, say: Callable[[str], object] = print,
    progress: bool | None = None, small: bool = False,
) -> Path:  # fmt: skip
    """Make the data, train the models, and write figures, animations, models and ``report.html``, whose path is
    returned.

    Files of an earlier run in the folder are replaced. If the data folder (:func:`~pyro_vgpds.datasets.data_folder`)
    has the walks of CMU's subject 07, the report has a chapter on them.

    :param say: called with a message for each stage.
    :param small: shorter data, for tests.
    """
    import matplotlib

    matplotlib.use("Agg")
    output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with threads_for(0):  # one is faster than several for problems of this size
        demo = Demo(output, steps, seed, say, progress, small)
        chapters = [video_chapter(demo), gait_chapter(demo)]
        if (walks := find_walks()) is not None:
            chapters.append(real_chapter(demo, walks))
    return write_report(output / "report.html", chapters, steps, seed, time.perf_counter() - start)
