# SPDX-License-Identifier: Apache-2.0
"""``python -m pyro_vgpds.selection.worker KIND PROBLEM CANDIDATES SECONDS LEADER``: a worker process of a comparison.

See :mod:`pyro_vgpds.selection.jobs`, which starts it.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from pyro_vgpds.selection.configuration import read_settings
from pyro_vgpds.selection.files import register_files
from pyro_vgpds.selection.jobs import Workplace
from pyro_vgpds.selection.problem import Problem

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Work on the jobs of a problem until none is left."""
    kind, path, candidates, seconds, leader = arguments
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    register_files()
    models = [read_settings(about) if isinstance(about, dict) else about for about in json.loads(candidates)]
    place = Workplace(Problem.read(Path(path)), Path(path).parent, leader=int(leader))
    place.work(kind, models, float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
