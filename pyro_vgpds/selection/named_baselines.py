# SPDX-License-Identifier: Apache-2.0
"""The baselines by name, each as a posterior that can be compared with a model and be part of an ensemble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import cast

import torch
from torch import Tensor

from pyro_vgpds import baselines
from pyro_vgpds.baselines import BaselinePosterior, LinearDynamicalSystem
from pyro_vgpds.baselines.autoregression import is_even
from pyro_vgpds.baselines.cycle import find_period
from pyro_vgpds.baselines.gaps import Filled
from pyro_vgpds.baselines.pca import choose_components
from pyro_vgpds.baselines.regression import choose_penalty
from pyro_vgpds.data.parts import split_outputs, with_outputs, without_lags
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.kernels import Matern32
from pyro_vgpds.prediction.noise_settings import factor_work

__all__ = ["BASELINES", "NamedBaseline", "choose_setting", "make_baseline"]

_WORK = 3000.0**3  # multiply-adds of one GP for each output, for each of about twenty lengthscales


@dataclass(frozen=True)
class NamedBaseline:
    """A baseline as an imputer: sequences with NaN to means and variances (N, D).

    :param name: a name of ``BASELINES``.
    :param data: the training sequences.
    :param system: its trained parameters, if it has any.
    :param setting: its setting, from :func:`choose_setting`. Default: it is chosen for each data set to fill.
    """

    name: str
    data: Sequences
    system: LinearDynamicalSystem | None = None
    setting: float | None = None

    def __call__(self, data: Sequences) -> tuple[Tensor, Tensor | None]:
        if self.system is not None:
            return _pair(self.system.fill(data, return_variance=True))
        return BASELINES[self.name].fill(self, data)

    def state(self) -> dict[str, Tensor]:
        """The trained parameters, for a file."""
        return {} if self.system is None else {f.name: getattr(self.system, f.name) for f in fields(self.system)}


@dataclass(frozen=True)
class _Kind:
    fill: Callable[[NamedBaseline, Sequences], tuple[Tensor, Tensor | None]]
    tasks: tuple[str, ...] = ("impute", "reconstruct", "forecast")
    allows: Callable[[Sequences], bool] = lambda data: True  #: whether the data are not too large for it
    choose: Callable[[Sequences], float | None] | None = None  #: its setting, if held-out parts are to share one
    is_cycle: bool = False  #: whether its setting is the period, for which no frame is to spare
    allows_zero: bool = False  #: whether its setting may be 0: the data do not repeat


def _join(filled: Filled) -> Tensor:
    return torch.cat(filled) if isinstance(filled, list) else filled


def _pair(found: object) -> tuple[Tensor, Tensor]:
    mean, variance = cast("tuple[Filled, Filled]", found)
    return _join(mean), _join(variance)


def _plain(imputer: Callable[[Sequences], object]) -> Callable[[NamedBaseline, Sequences], tuple[Tensor, None]]:
    return lambda baseline, data: (_join(cast("Filled", imputer(data))), None)


def _unit(data: Sequences) -> Sequences:
    """The outputs in units of their standard deviations."""
    return with_outputs(data, data.read() / data.output_scales)


def _components(baseline: NamedBaseline, data: Sequences) -> tuple[Tensor, None]:
    """Probabilistic PCA, whose result depends on the units of the outputs."""
    number = None if baseline.setting is None else int(baseline.setting)
    return _join(baselines.ppca(_unit(data), num_components=number)) * data.output_scales, None


def _ridge(baseline: NamedBaseline, data: Sequences) -> tuple[Tensor, Tensor]:
    return _pair(baselines.ridge_regression(data, penalty=baseline.setting, return_variance=True))


def _cycle(baseline: NamedBaseline, data: Sequences, *, drift: bool = False) -> tuple[Tensor, None]:
    return _join(baselines.repeat_cycle(data, period=baseline.setting, drift=drift)), None


def _autoregression(baseline: NamedBaseline, data: Sequences) -> tuple[Tensor, Tensor]:
    return _pair(baselines.autoregression(data, period=baseline.setting, return_variance=True))


def _long_cycle(baseline: NamedBaseline, data: Sequences) -> tuple[Tensor, None]:
    period = baselines.estimate_period(data, longer=True) if baseline.setting is None else baseline.setting
    return _join(baselines.repeat_cycle(data, period=period)), None


def _with_variance(
    imputer: Callable[..., object],
) -> Callable[[NamedBaseline, Sequences], tuple[Tensor, Tensor]]:
    return lambda baseline, data: _pair(imputer(data, return_variance=True))


def _from_frames(
    method: Callable[[list[Tensor], list[Tensor]], object],
) -> Callable[[NamedBaseline, Sequences], tuple[Tensor, None]]:
    """A method that completes frames by complete training sequences; frames without outputs get the mean."""

    def fill(baseline: NamedBaseline, data: Sequences) -> tuple[Tensor, None]:
        train = [y.cpu() for y in split_outputs(baseline.data)[1] if bool(y.isfinite().all())]
        found = [y.cpu() for y in split_outputs(data)[1]]
        partly = [i for i, y in enumerate(found) if bool(y.isnan().any() and y.isfinite().any())]
        filled = cast("list[Tensor]", method(train, [found[i] for i in partly])) if partly else []
        for i, y in zip(partly, filled, strict=True):
            found[i] = y
        joined = torch.cat(found)
        return torch.where(joined.isfinite(), joined, baseline.data.output_means[: joined.shape[1]].cpu()), None

    return fill


def _neighbours(train: list[Tensor], test: list[Tensor]) -> list[Tensor]:
    filled = torch.as_tensor(baselines.nearest_neighbour(torch.cat(train), torch.cat(test), scaled=True))
    return list(filled.split([len(y) for y in test]))


def _kernel_ridge(train: list[Tensor], test: list[Tensor]) -> list[Tensor]:
    return cast("list[Tensor]", baselines.kernel_ridge(train, test, lags=(-4, -2, 2, 4)))


def _processes(baseline: NamedBaseline, data: Sequences) -> tuple[Tensor, Tensor]:
    """One GP for each output; only forecasts depend on the kernel enough to pay for a second one."""
    ahead = any(bool(y[-1:].isnan().all()) for y in split_outputs(data)[1])
    return _pair(baselines.gp_interpolation(data, kernel=None if ahead else Matern32, return_variance=True))


def _repeats(data: Sequences, *, longer: bool = False) -> bool:
    return find_period(data, longer=longer) is not None


def _has_complete_sequences(data: Sequences) -> bool:
    return any(bool(y.isfinite().all()) for y in split_outputs(data)[1])


#: the baselines, the cheapest first
BASELINES: dict[str, _Kind] = {
    "column mean": _Kind(_plain(baselines.column_mean)),
    "column median": _Kind(_plain(baselines.column_median), ("forecast",)),
    "linear interpolation": _Kind(_plain(baselines.linear_interpolation), ("impute", "reconstruct")),
    "last value": _Kind(_plain(baselines.last_value), ("forecast",)),
    "last value with drift": _Kind(_plain(baselines.last_value_with_drift), ("forecast",)),
    "damped trend": _Kind(_with_variance(baselines.damped_trend), ("forecast",)),
    "cubic spline": _Kind(_plain(baselines.cubic_spline), ("impute", "reconstruct")),
    "last cycle": _Kind(_cycle, ("impute", "forecast"), _repeats, find_period, is_cycle=True),
    "last cycle with drift": _Kind(partial(_cycle, drift=True), ("forecast",), _repeats, find_period, is_cycle=True),
    "last long cycle": _Kind(
        _long_cycle,
        ("impute", "forecast"),
        partial(_repeats, longer=True),
        partial(find_period, longer=True),
        is_cycle=True,
    ),
    "autoregression": _Kind(
        _autoregression,
        ("forecast",),
        lambda data: data.num_base_outputs <= 2000 and is_even(data),
        lambda data: find_period(data) or 0.0,
        is_cycle=True,
        allows_zero=True,
    ),
    "nearest neighbour": _Kind(_from_frames(_neighbours), ("reconstruct",), _has_complete_sequences),
    "probabilistic PCA": _Kind(
        _components,
        ("impute", "reconstruct"),
        lambda data: data.num_base_outputs <= 2000,
        lambda data: choose_components(_unit(data)),
    ),
    "one GP for each output": _Kind(_processes, allows=lambda data: factor_work(data) <= _WORK),
    "ridge regression": _Kind(
        _ridge, ("impute", "reconstruct"), lambda data: data.num_base_outputs <= 400, choose_penalty
    ),
    "kernel ridge": _Kind(_from_frames(_kernel_ridge), ("reconstruct",), _has_complete_sequences),
    "linear dynamical system": _Kind(
        _with_variance(baselines.linear_dynamical_system), allows=lambda data: data.num_frames >= 20
    ),
}


def choose_setting(name: str, train: Sequences, data: Sequences | None = None) -> float | None:
    """The setting with which a baseline predicts all held-out parts and new data; None if it has none, or chooses it
    whenever it predicts.

    :param name: a name of ``BASELINES``.
    :param train: the training sequences of a held-out part.
    :param data: all sequences, for the period: before early origins of a forecast there may be too few cycles to find
        it. Default: ``train``.
    """
    kind = BASELINES[name]
    if kind.choose is None:
        return None
    if kind.is_cycle:
        return kind.choose(without_lags(train if data is None else data))
    return kind.choose(without_lags(train)) if train.num_missing else None


def make_baseline(
    name: str,
    data: Sequences,
    variance: Tensor | None = None,
    state: dict[str, Tensor] | None = None,
    setting: float | None = None,
) -> BaselinePosterior:
    """A baseline trained on sequences.

    :param name: a name of ``BASELINES``.
    :param data: the sequences.
    :param variance: predictive variances (D,) of baselines that have none.
    :param state: trained parameters, from :meth:`NamedBaseline.state`. Default: train.
    :param setting: from :func:`choose_setting`. Default: chosen for each data set to fill.
    """
    own, system = without_lags(data), None
    if name == "linear dynamical system":
        system = LinearDynamicalSystem(**state) if state else LinearDynamicalSystem.fit(own)
    return BaselinePosterior(NamedBaseline(name, own, system, setting), data, variance)
