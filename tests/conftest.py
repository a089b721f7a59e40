# SPDX-License-Identifier: Apache-2.0
"""Every test starts from the same state: float64, one thread, a seed, an empty parameter store, validation on."""

import gc
import os
from pathlib import Path

import matplotlib
import pyro
import pytest
import torch

from pyro_vgpds import linalg

matplotlib.use("Agg")
torch.set_default_dtype(torch.float64)  # also for what test modules make when they are imported


def pytest_collection_finish():
    """Modules and tests live to the end: collections of garbage need not visit them, which took a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fresh_state():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    pyro.enable_validation(True)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    linalg._warned.clear()


@pytest.fixture
def data_home() -> Path:
    """The folder of real data sets, or a skip that says how to have it."""
    home = os.environ.get("PYRO_VGPDS_DATA")
    if not home or not Path(home).is_dir():
        pytest.skip("real data: set PYRO_VGPDS_DATA to the folder that holds it")
    return Path(home)
