# SPDX-License-Identifier: Apache-2.0
"""The real data sets that training is timed on, from the folder that PYRO_VGPDS_DATA names."""

from __future__ import annotations

from collections.abc import Callable

from pyro_vgpds import datasets
from pyro_vgpds.datasets import Dataset

#                                        Q   M
DATA: dict[str, tuple[Callable[[], Dataset], int, int]] = {
    "cmu35": (datasets.load_cmu35, 9, 100),
    "yeast": (datasets.load_spellman, 6, 20),
    "robot": (datasets.load_robot_wireless, 6, 60),
    "french": (datasets.load_french, 8, 60),
    "missa": (datasets.load_missa, 25, 85),
}
