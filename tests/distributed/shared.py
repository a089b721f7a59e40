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

from pyro_vgpds import AutoOpperArchambeau, Sequences, distributed, fit  # noqa: E402

__all__ = [
    "CASES", "CHECKS", "FEW", "FOLDER", "LENGTHS", "check", "compared_fits", "difference", "make_data", "make_model",
    "message", "problem", "relative", "sites_of", "values_of",
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


def relative(found, wanted):
    return abs(found - wanted) / abs(wanted)


def message(function):
    """The error of a function."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def sites_of(guide):
    return [guide.mean_bar.detach(), guide.lam.detach()]


def values_of(model):
    """Copies of all parameters and buffers."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def problem(missing=0.0, noise=0.3, outputs=5, lengths=LENGTHS, columns=False, gaps=False):
    """A model with a guide for all data and its part; both guides have the same sites.

    :param columns: divide the columns.
    :param gaps: let the first column have missing values, which other processes do not have.
    """
    pyro.clear_param_store()
    whole = make_data(lengths, outputs, missing)
    if gaps:
        y = whole.read()
        y[3:7, 0] = torch.nan
        whole = Sequences(list(whole.times.t.split(lengths)), list(y.split(lengths)))
    model, guide = make_model(whole, noise=noise, jitter=1e-2)
    data = distributed.shard(whole, columns=columns)
    rows = slice(data.offset, data.offset + data.num_frames)
    mean_bar, lam = (x[rows] for x in sites_of(guide))
    return model, guide, whole, AutoOpperArchambeau(model, mean_bar=mean_bar, lam=lam), data, rows


def compared_fits(given, **options):
    """The differences between ``fit`` by one process and by all, in the bound, the model and its relevance, and q(X);
    and the bound. The model and both guides are then trained.
    """
    model, guide, whole, part, data, rows = given
    start = values_of(model)
    with distributed.independent():
        one = fit(model, guide, whole, **options)
    wanted = [*values_of(model).values(), model.relevance(guide, whole).value]
    model.load_state_dict(start)
    many = fit(model, part, data, **options)
    return [
        relative(many.bound, one.bound),
        difference([*model.state_dict().values(), model.relevance(part, data).value], wanted),
        difference(sites_of(part), [x[rows] for x in sites_of(guide)]),
    ], one.bound


CASES = {
    "complete": {},
    "missing": {"missing": 0.2},
    "wide": {"outputs": 40},  # more outputs than frames
    "wide, missing": {"outputs": 60, "missing": 0.01},
    "noises": {"noise": torch.linspace(0.3, 0.6, 5)},
    "noises, missing": {"noise": torch.linspace(0.3, 0.6, 5), "missing": 0.2},
}
FEW = {name: CASES[name] for name in ("complete", "noises, missing")}
