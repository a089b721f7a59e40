# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments, and three more, as commands: ``pyro-vgpds experiment NAME``.

Each prints a markdown table beside the paper's figures and writes it with the numbers (JSON), pictures and a trained
model. Parts that were finished are kept in the output folder, and a second run uses them.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from pyro_vgpds.experiments.record import Folder

__all__ = ["NAMES", "run"]

_MODULES = {
    "cmu35": "cmu35",
    "cmu07": "cmu35",
    "missa": "missa",
    "ocean": "ocean",
    "periodic_video": "periodic_video",
    "yeast": "imputation",
    "robot": "imputation",
}
#: the experiments that there are
NAMES = tuple(_MODULES)


def run(
    name: str,
    output: str | os.PathLike[str],
    seeds: int | None = None,
    quick: bool = False,
    *,
    progress: bool | None = None,
    **source: Any,
) -> None:
    """Run an experiment and leave its results in the folder ``output``.

    :param name: one of :data:`NAMES`.
    :param output: the folder; parts that are finished there are used again.
    :param seeds: how many; left out, as many as the experiment's table wants.
    :param quick: few steps and small models, to see that it runs.
    :param progress: show bars and say what is finished; left out, bars on a terminal only; False is silent.
    :param source: ``data_home`` and ``download``, as in :func:`~pyro_vgpds.datasets.load_cmu35`.
    :raises ValueError: where there is no such experiment, or ``seeds`` is not positive.
    :raises FileNotFoundError: where its data are not at hand.

    >>> from pyro_vgpds.experiments import run
    >>> run("yeast", "results", seeds=1, quick=True)  # doctest: +SKIP
    >>> run("bees", "results")
    Traceback (most recent call last):
    ValueError: name must be one of cmu35, cmu07, missa, ocean, periodic_video, yeast, robot, but got 'bees'.
    """
    if name not in _MODULES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, but got {name!r}.")
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds must be at least 1, but got {seeds}.")
    module = importlib.import_module(f"pyro_vgpds.experiments.{_MODULES[name]}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster than many for problems of these sizes
    try:
        module.run(name, Folder(output, progress), seeds, quick, source)
    finally:
        torch.set_num_threads(threads)
