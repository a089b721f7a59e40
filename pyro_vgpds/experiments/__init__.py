# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments, and six more: ``pyro-vgpds experiment NAME``.

Each prints a markdown table with the paper's results for comparison, and writes the table, the numbers (JSON), figures
and a trained model. The output folder keeps finished parts, and a second run reuses them.
"""

from __future__ import annotations

import importlib
import os

from pyro_vgpds.experiments.record import Folder
from pyro_vgpds.threads import threads_for

__all__ = ["NAMES", "run"]

_MODULES = {
    "cmu35": "cmu35",
    "cmu07": "cmu35",
    "missa": "missa",
    "ocean": "ocean",
    "periodic_video": "periodic_video",
    "yeast": "imputation",
    "robot": "imputation",
    "spikes": "spikes",
    "chorales": "chorales",
    "flu": "flu",
}
#: names of the experiments
NAMES = tuple(_MODULES)


def run(
    name: str,
    output: str | os.PathLike[str],
    seeds: int | None = None,
    quick: bool = False,
    *,
    progress: bool | None = None,
    **source: object,
) -> None:
    """Run an experiment and write its results to the folder ``output``.

    :param name: one of :data:`NAMES`.
    :param output: the folder; finished parts in it are reused.
    :param seeds: number of random seeds. Default: as in the experiment's table.
    :param quick: use few steps and small models, to test that the experiment runs.
    :param progress: show progress bars, and print each finished part. Default: bars on a terminal only. False prints
        nothing.
    :param source: ``data_home`` and ``download``, as in :func:`~pyro_vgpds.datasets.load_cmu35`.
    :raises ValueError: if the experiment is unknown or ``seeds`` is not positive.
    :raises FileNotFoundError: if its data set is missing.

    >>> from pyro_vgpds.experiments import run
    >>> run("yeast", "results", seeds=1, quick=True)  # doctest: +SKIP
    >>> run("bees", "results")
    Traceback (most recent call last):
    ValueError: name must be one of cmu35, cmu07, ..., flu, but got 'bees'.
    """
    if name not in _MODULES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, but got {name!r}.")
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds must be at least 1, but got {seeds}.")
    module = importlib.import_module(f"pyro_vgpds.experiments.{_MODULES[name]}")
    with threads_for(0):  # one is faster than several for problems of this size
        module.run(name, Folder(output, progress), seeds, quick, source)
