# SPDX-License-Identifier: Apache-2.0
"""What the checks of several processes have in common: their list, problems, and differences of tensors."""

import sys
import warnings
from pathlib import Path

import pyro
import torch

warnings.simplefilter("error")
sys.path.insert(0, str(Path(__file__).parents[1]))
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)

from problems import make_data, make_model  # noqa: E402

from pyro_vgpds import AutoOpperArchambeau, distributed  # noqa: E402

__all__ = [
    "CASES", "CHECKS", "FEW", "FOLDER", "LENGTHS", "check", "difference", "make_data", "make_model", "problem",
    "sites_of",
]  # fmt: skip

FOLDER = Path(sys.argv[1])
LENGTHS = (7, 4, 1, 9, 6)
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def difference(found, wanted):
    """The largest relative difference of tensors."""
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-300)) for a, b in zip(found, wanted, strict=True))


def sites_of(guide):
    return [guide.mean_bar.detach(), guide.lam.detach()]


def problem(missing=0.0, noise=0.3, outputs=5, **options):
    """A model with a guide for all data and its part; both guides have the same sites."""
    pyro.clear_param_store()
    whole = make_data(LENGTHS, outputs, missing)
    model, guide = make_model(whole, noise=noise, jitter=1e-2, **options)
    data = distributed.shard(whole)
    rows = slice(data.offset, data.offset + data.num_frames)
    part = AutoOpperArchambeau(model, mean_bar=guide.mean_bar.detach()[rows], lam=guide.lam.detach()[rows])
    return model, guide, whole, part, data, rows


CASES = {
    "complete": {},
    "missing": {"missing": 0.2},
    "wide": {"outputs": 40},  # more outputs than frames
    "wide, missing": {"outputs": 60, "missing": 0.01},
    "noises": {"noise": torch.linspace(0.3, 0.6, 5)},
    "noises, missing": {"noise": torch.linspace(0.3, 0.6, 5), "missing": 0.2},
}
FEW = {name: CASES[name] for name in ("complete", "noises, missing")}
