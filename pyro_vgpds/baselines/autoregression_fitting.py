# SPDX-License-Identifier: Apache-2.0
"""Ridge regression of later frames on earlier ones, pooled over outputs and sequences, for each number of frames."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Regression", "fit_regression"]

_LAGS = (0, 1, 3, 6)  # numbers of earlier frames that are compared
_LEVEL, _DRIFT, _CYCLE = _LAGS[-1], _LAGS[-1] + 1, _LAGS[-1] + 2  # columns of features
_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # relative to the mean square of the features
_FOLDS = 4  # held-out parts of the time
_BEST = 5  # regressions whose coefficients are averaged
_ROWS, _TOTAL = 20_000, 1_000_000  # changes to learn from: of each horizon, and of all, about
_ORIGINS = 30  # of each horizon, at least
_REACH = (
    0.4,
    0.6,
)  # of a sequence: how far back one cycle and two cycles may begin, since earlier frames are not learned
_LEAST = 0.01  # of the squared error of the last value, added to that of each part


@dataclass(frozen=True)
class Regression:
    """Coefficients (H, q) of the features, mean squared errors (H, D), period in frames, and number of cycles."""

    coefficients: Tensor
    variance: Tensor
    period: float
    cycles: int

    def forecast(self, y: Tensor, most: int) -> Tensor:
        """The next frames (most, D) of a sequence (n, D); beyond H with the coefficients of H."""
        found, origin = [], torch.tensor([len(y) - 1])
        for h in range(1, most + 1):
            own = self.coefficients[min(h, len(self.coefficients)) - 1]
            found.append(y[-1] + _features(y, origin, h, self.period, self.cycles)[0] @ own)
        return torch.stack(found)


def _features(y: Tensor, origin: Tensor, h: int, period: float, cycles: int) -> Tensor:
    """The terms of the regression (m, D, q) for forecasts of h frames from these frames (m,) of a sequence (n, D).

    Frames before the first one have its value.
    """
    now, n = y[origin], origin.unsqueeze(-1)
    mean = (y.cumsum(0) / torch.arange(1, len(y) + 1).unsqueeze(-1))[origin]
    terms = [y[(origin - k).clamp_min(0)] - now for k in range(1, _LAGS[-1] + 1)]
    terms += [mean - now, h * (now - y[0]) / n.clamp_min(1)]
    for j in range(cycles):
        back = (math.ceil(h / period) + j) * period
        terms.append(y[(origin + h - back).round().long().clamp(0, len(y) - 1)] - now)
    return torch.stack(terms, -1)


def fit_regression(series: list[Tensor], horizon: int, period: float) -> Regression:
    """Regressions for 1 to ``horizon`` frames ahead, or fewer if the sequences are too short.

    :param series: (n, D) each, in units of the outputs' standard deviations.
    :param period: in frames, 0 for none.
    """
    longest, outputs = max(map(len, series)), series[0].shape[1]
    cycles = 0
    if period >= 2.0:
        reach = math.ceil(horizon / period) * period
        cycles = sum(n * reach <= most * longest for n, most in enumerate(_REACH, 1))
    total = sum(map(len, series))
    every = max(1, min(int(total * outputs / min(_ROWS, _TOTAL / horizon)), total // _ORIGINS))

    def rows(h: int) -> tuple[Tensor, Tensor, Tensor] | None:
        first = math.ceil((math.ceil(h / period) + cycles - 1) * period) - h if cycles else 0
        found = [_rows(y, h, period, cycles, first, every) for y in series if len(y) - h > _first(y, first)]
        return tuple(torch.cat(column) for column in zip(*found, strict=True)) if found else None  # type: ignore[return-value]

    products = []
    for h in range(1, horizon + 1):
        if (found := rows(h)) is None:
            break
        products.append(_products(*found))
    if not products:
        none = torch.zeros(1, _CYCLE, dtype=torch.float64)
        return Regression(none, torch.ones(1, outputs, dtype=torch.float64), 0.0, 0)
    coefficients, errors = _choose(*(torch.stack(each) for each in zip(*products, strict=True)))
    residual = torch.zeros(outputs, dtype=torch.float64)
    for h, own in enumerate(coefficients, 1):
        if (found := rows(h)) is not None:  # again, because the rows of all horizons need too much memory
            residual += (found[1] - found[0] @ own).square().mean(0)
    ratio = residual / residual.mean() if bool(residual.mean() > 0) else torch.ones_like(residual)
    return Regression(coefficients, errors.unsqueeze(-1) * ratio, period, cycles)


def _first(y: Tensor, first: int) -> int:
    """The first origin of a sequence: later ones have all lags, if the sequence is not very short."""
    return max(first, min(_LAGS[-1], max(1, len(y) // 3)))


def _rows(y: Tensor, h: int, period: float, cycles: int, first: int, every: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features (m, D, q) of origins, changes (m, D) h frames later, and the quarters of the time (m,) of the latter."""
    first = _first(y, first)
    origin = torch.arange(first, len(y) - h, every)
    part = (origin + h - first) * _FOLDS // (len(y) - first)
    return _features(y, origin, h, period, cycles), y[origin + h] - y[origin], part.clamp_max(_FOLDS - 1)


def _products(x: Tensor, target: Tensor, part: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over each held-out part: xᵀx (K, q, q), xᵀy (K, q), yᵀy (K,), and the number of targets (K,)."""
    found = []
    for k in range(_FOLDS):
        a, b = x[part == k].flatten(0, 1), target[part == k].flatten()
        found.append((a.mT @ a, a.mT @ b, b @ b, b.new_tensor(float(len(b)))))
    gram, cross, square, count = (torch.stack(each) for each in zip(*found, strict=True))
    return gram, cross, square, count


def _choose(gram: Tensor, cross: Tensor, square: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mean coefficients (H, q) of the best regressions, and the mean squared held-out error (H,) of the best one.

    The best have the smallest mean logarithm, over the parts k of the time, of the mean squared error in the part if
    they are learned from the others: one wild part must not decide. With the sums G, b, s of a part,
    the squared error of coefficients a is s - 2 aᵀb + aᵀGa.

    :param gram: (H, K, q, q), and ``cross`` (H, K, q), ``square`` (H, K), ``count`` (H, K) as of :func:`_products`.
    """
    used = count.sum(0) > 0
    size, penalties = gram.shape[-1], torch.tensor(_PENALTIES, dtype=gram.dtype)
    least = _LEAST * square.sum() / count.sum() + 1e-300
    whole, others = (gram.sum(1), cross.sum(1)), (gram.sum(1, True) - gram, cross.sum(1, True) - cross)
    scores, kept = [], []
    options = itertools.product(_LAGS, (False, True), (False, True), range(size - _CYCLE + 1))
    for lags, level, drift, cycles in options:
        columns = [*range(lags), *[_LEVEL] * level, *[_DRIFT] * drift, *range(_CYCLE, _CYCLE + cycles)]
        if not columns:
            continue
        g, b = gram[..., columns, :][..., columns], cross[..., columns]
        a = _ridge(others[0][..., columns, :][..., columns], others[1][..., columns], penalties)  # (L, H, K, q)
        error = (square - 2.0 * (a * b).sum(-1) + (a.unsqueeze(-2) @ g @ a.unsqueeze(-1)).flatten(-3)).clamp_min(0.0)
        mean = error.sum(1) / count.sum(0).clamp_min(1.0)  # (L, K)
        scores.append((mean + least).log()[:, used].mean(1))
        final = gram.new_zeros(len(penalties), len(gram), size)
        final[..., columns] = _ridge(whole[0][..., columns, :][..., columns], whole[1][..., columns], penalties)
        kept.append((final, error.sum(-1) / count.sum(-1)))
    order = torch.cat(scores).argsort()
    coefficients, errors = (torch.cat(each) for each in zip(*kept, strict=True))
    return coefficients[order[:_BEST]].mean(0), errors[order[0]]


def _ridge(gram: Tensor, cross: Tensor, penalties: Tensor) -> Tensor:
    """Solutions (L, ..., q) for penalties (L,) in units of the mean diagonal element of each matrix."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    penalty = penalties.reshape(-1, *[1] * diagonal.dim()) * diagonal + 1e-12
    shifted = gram + penalty[..., None, None] * torch.eye(gram.shape[-1], dtype=gram.dtype)
    return torch.linalg.solve(shifted, cross.expand(len(penalties), *cross.shape))
