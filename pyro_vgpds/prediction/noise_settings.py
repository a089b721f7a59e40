# SPDX-License-Identifier: Apache-2.0
"""The noise to predict with: its variance and correlation in time, chosen by errors on held-out or hidden data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_probability
from pyro_vgpds.data.parts import base_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.entries import Entries
from pyro_vgpds.evaluation.scores import relative_error
from pyro_vgpds.evaluation.splits import HeldOut, Split
from pyro_vgpds.kernels import Bias, Kernel, Matern12, Matern32, White
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.prediction.arguments import SequenceLike
from pyro_vgpds.prediction.combination import Combination, find_limits
from pyro_vgpds.prediction.conditioning import condition
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.fitted import FittedModel, predict_with
from pyro_vgpds.prediction.intervals import calibrate_intervals
from pyro_vgpds.prediction.outputs import Outputs
from pyro_vgpds.prediction.predictions import Prediction
from pyro_vgpds.prediction.residual_choice import typical_step
from pyro_vgpds.prediction.solver import Solver, check_solver
from pyro_vgpds.training.progress import check_progress, counting_bar
from pyro_vgpds.types import DataLike

__all__ = [
    "TRAINED", "NoiseSettings", "apply_settings", "calibrated", "choose_settings", "factor_work", "hidden_variance",
    "residual_variance",
]  # fmt: skip

_LAGS = (1, 4)  # frames, at which the autocorrelation of residuals is read
_LEAST = 0.1  # autocorrelation below which residuals count as white
_SMOOTH_SHARE, _SMOOTH_STEPS = 0.8, 2.0  # share and lengthscale, in frames, of smooth residuals
_MOST = 4e10  # multiplications that the correlation of residuals may take
_QUICK = Solver(num_starts=1, num_steps=60)
P = TypeVar("P", bound=FittedModel)


@dataclass(frozen=True)
class NoiseSettings:
    """How a trained model predicts."""

    noise: float | None = None  #: factor of the variance of noise and residuals together. None: the noise as trained
    residual: tuple[float, float] | None = None  #: correlated share of residuals, and its lengthscale (inf: an offset)
    smooth: bool = False  #: the correlated part is smooth, a Matérn 3/2 path and not a random walk

    def kernel(self) -> Kernel | None:
        """The kernel of the residuals."""
        if self.residual is None:
            return None
        share, lengthscale = self.residual
        if lengthscale == math.inf:
            return Bias(share) + White(1.0 - share)
        return (Matern32 if self.smooth else Matern12)(share, lengthscale) + White(1.0 - share)


TRAINED = NoiseSettings()


def calibrated(posterior: P, split: Split) -> Ensemble:
    """The posterior with the best settings and with calibrated intervals for the task of a split of its data."""
    blind = condition(posterior, split.train, list(split.kept))
    settings, found = choose_settings(blind, split)
    member = apply_settings(posterior, settings)
    weights = torch.ones(1, posterior.num_outputs, dtype=torch.float64)
    entries = Entries.of([split], posterior.data)
    limits = find_limits(posterior.data)
    if limits is not None:
        found = limits.clamp_means(found)
    calibration = calibrate_intervals(
        found,
        posterior.num_outputs,
        gap_length=entries.gap_length,
        group=entries.group,
        num_errors=entries.num_errors,
    )
    combination = Combination(weights, calibration, limits=limits)
    return Ensemble([member], {split.task: combination})


def choose_settings(posterior: P, split: Split) -> tuple[NoiseSettings, HeldOut]:
    """The settings of a model of the training part with the smallest held-out error, and their predictions."""
    scale = posterior.data.output_scales[: posterior.num_outputs]
    best: tuple[float, NoiseSettings, HeldOut] | None = None
    for settings in _proposals(posterior, split):
        try:
            ready = apply_settings(posterior, settings)
            found = split.predict(_Quick(ready) if split.task == "reconstruct" else ready)
        except NumericalError:
            if settings == TRAINED:
                raise
            continue
        error = relative_error(found, scale) ** 2
        if best is None or error < 0.99 * best[0]:  # a small gain is chance
            best = error, settings, found
    assert best is not None
    if split.task == "reconstruct":
        return best[1], split.predict(apply_settings(posterior, best[1]))
    return best[1], best[2]


class _Quick:
    """A model that reconstructs with fewer steps, which is enough to compare settings."""

    def __init__(self, posterior: FittedModel) -> None:
        self.impute, self.forecast, self._reconstruct = posterior.impute, posterior.forecast, posterior.reconstruct

    def reconstruct(self, t: DataLike, y: DataLike, sequence: SequenceLike = None) -> Outputs:
        return self._reconstruct(t, y, sequence, solver=_QUICK)


def apply_settings(posterior: P, settings: NoiseSettings) -> P:
    """The same trained model with other settings of its predictions."""
    if settings == TRAINED:
        return posterior
    noise = posterior.origin.noise_variance
    if settings.noise is not None:
        noise = settings.noise * (posterior.noise_variance + residual_variance(posterior))
    return predict_with(posterior, noise_variance=noise, residual=settings.kernel())


def residual_variance(posterior: FittedModel) -> Tensor:
    """Mean squared residual of each output at the training frames, (D,)."""
    data, total = posterior.data, posterior.data.times.t.new_zeros(posterior.num_outputs)
    with torch.no_grad():
        for rows, index, mean, _ in _function(posterior).blocks():
            part = data.read(int(index.min()), int(index.max()) + 1)[rows, index - index.min()]
            total[index] += torch.nan_to_num(part - mean, nan=0.0).square().sum(0)
    return total / data.output_counts[: len(total)].clamp_min(1)


def _function(posterior: FittedModel) -> Prediction:
    """The outputs at the training frames without their noise."""
    return posterior.predict(posterior.data.times.t, posterior.q, posterior.inducing, include_noise=False)


def hidden_variance(
    posterior: FittedModel,
    share: float = 0.5,
    num_sequences: int = 8,
    num_frames: int = 250,
    *,
    solver: Solver | None = None,
    progress: bool | None = None,
) -> Tensor:
    """Mean squared error of each output where it is hidden, (D,).

    Arguments and errors as in :meth:`Posterior.hidden_variance <pyro_vgpds.Posterior.hidden_variance>`.
    """
    check_probability(share, "share")
    check_count("num_sequences", num_sequences)
    check_count("num_frames", num_frames)
    check_progress(progress)
    solver = Solver(num_starts=1, num_steps=60) if solver is None else check_solver(solver)
    data, num_outputs = posterior.data, posterior.num_outputs
    y, slices = data.read(0, num_outputs), data.times.slices()
    parts = min(max(2, round(1.0 / share)), num_outputs)
    total, count = (data.times.t.new_zeros(num_outputs) for _ in range(2))
    chosen = torch.randperm(len(slices))[:num_sequences].tolist()
    with counting_bar(parts * len(chosen), "hidden variance", progress) as bar:
        for i in chosen:
            rows = _window(slices[i], num_frames)
            for hidden in torch.randperm(num_outputs, device=y.device).tensor_split(parts):
                observed = y[rows].clone()
                observed[:, hidden] = torch.nan
                found = posterior.reconstruct(
                    data.times.t[rows], observed, include_noise=False, solver=solver, progress=False
                )
                error = (found.mean - y[rows])[:, hidden].square()
                total[hidden] += torch.nan_to_num(error, nan=0.0).sum(0)
                count[hidden] += torch.isfinite(error).sum(0)
                bar.update()
    variance = data.output_variances[:num_outputs].nan_to_num(0.0)
    expected = (variance * count).sum()  # squared errors of the mean of each output at the same entries
    relative = total.sum() / expected if bool(expected > 0.0) else expected
    return torch.where(count > 0, total / count.clamp_min(1.0), relative * variance)


def _proposals(posterior: FittedModel, split: Split) -> list[NoiseSettings]:
    found = [TRAINED]
    cheap = factor_work(posterior.data) <= _MOST
    correlated = _residual(posterior) if cheap else None
    if correlated is not None:
        found.append(NoiseSettings(residual=correlated))
    if cheap and split.task == "impute":
        # training residuals do not show a smooth part of each output, because the latent path has fitted it there
        found.append(NoiseSettings(residual=(_SMOOTH_SHARE, _SMOOTH_STEPS * typical_step(posterior.data)), smooth=True))
    if split.task == "reconstruct":
        wide = NoiseSettings(noise=2.0, residual=(0.5, math.inf) if split.sequence[0] is None else correlated)
        found += [NoiseSettings(noise=2.0), wide]
    return found


def factor_work(data: Sequences) -> float:
    """Multiply-adds that factorise a covariance of the frames of each sequence for every pattern of missing entries."""
    mask, own = data.mask(), data.num_base_outputs
    patterns = min(own, mask[:, :own].unique(dim=1).shape[1] if bool((~mask).any()) else 1)
    return float(patterns) * sum(float(n) ** 3 for n in data.lengths)


def _residual(posterior: FittedModel) -> tuple[float, float] | None:
    """The correlated share of the training residuals and its lengthscale; None if they are white."""
    data = posterior.data
    left = base_outputs(data) - _function(posterior).mean
    left = left / left.nan_to_num(0.0).square().mean(0).sqrt().clamp_min(1e-300)
    near, far = (_autocorrelation(left, data, lag) for lag in _LAGS)
    if not near > _LEAST:
        return None
    step = typical_step(data)
    far = min(max(far, 0.02 * near), 0.98 * near)
    lengthscale = (_LAGS[1] - _LAGS[0]) * step / math.log(near / far)
    return min(near * math.exp(step * _LAGS[0] / lengthscale), 0.99), lengthscale


def _autocorrelation(left: Tensor, data: Sequences, lag: int) -> float:
    """Mean product of residuals of unit variance ``lag`` frames apart, within sequences."""
    total, count = 0.0, 0
    for rows in data.times.slices():
        part = left[rows]
        if len(part) > lag:
            product = part[lag:] * part[:-lag]
            total, count = total + float(product.nan_to_num(0.0).sum()), count + int(product.isfinite().sum())
    return total / count if count else 0.0


def _window(rows: slice, num_frames: int) -> slice:
    """A random window of consecutive frames of a sequence, all of it if it is not longer."""
    spare = rows.stop - rows.start - num_frames
    if spare <= 0:
        return rows
    start = rows.start + int(torch.randint(spare + 1, ()))
    return slice(start, start + num_frames)
