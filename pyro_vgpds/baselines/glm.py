# SPDX-License-Identifier: Apache-2.0
"""Generalised linear models of counts and of yes/no outputs, by Newton's method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_vgpds.checks import as_numbers, check_choice, check_count, check_not_negative
from pyro_vgpds.types import ArrayLike

__all__ = ["GLM", "check_outputs"]

_FAMILIES = ("poisson", "bernoulli")
_TOLERANCE = 1e-8  # relative improvement below which Newton's method ends
_HALVINGS = 30
_MOST = 30.0  # linear predictors are limited to this absolute value


@dataclass(frozen=True)
class GLM:
    """y_nd ~ Poisson(exp(η_nd)) or Bernoulli(1 / (1 + exp(-η_nd))), with η = x W + b + offset. Fields are float64.

    >>> import torch
    >>> from pyro_vgpds.baselines import GLM
    >>> x = torch.linspace(-1, 1, 200, dtype=torch.float64).unsqueeze(-1)
    >>> model = GLM.fit(x, torch.poisson(torch.exp(1.0 + 2.0 * x)), penalty=0.0)
    >>> bool((model.weights - 2.0).abs() < 0.3), model.predict(x).shape
    (True, torch.Size([200, 1]))
    """

    weights: Tensor  #: W (P, D)
    intercept: Tensor  #: b (D,)
    family: str  #: "poisson" or "bernoulli"

    @classmethod
    def fit(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        family: str = "poisson",
        penalty: float = 1.0,
        offset: ArrayLike | None = None,
        num_steps: int = 50,
    ) -> GLM:
        """The maximum of the log-likelihood minus ½ ``penalty`` times the sum of W², for each output separately.

        The intercept has a weak Gaussian prior around the logarithm (or logit) of the mean, so that outputs which are
        all zeros have an estimate too.

        :param x: inputs (N, P). They are not scaled, so scale them if their units differ.
        :param y: outputs (N, D); NaN is ignored.
        :param family: "poisson" for counts, "bernoulli" for 0 and 1.
        :param penalty: 0 or more.
        :param offset: known part of η, (N, D) or (N, 1), such as the logarithm of the exposure. Default: 0.
        :param num_steps: maximum number of Newton steps.
        :raises ValueError: if shapes do not agree, x has NaN, ``family`` is unknown, ``penalty`` is negative, or an
            output is not a count (not 0 or 1).
        """
        check_choice("family", family, _FAMILIES)
        check_not_negative("penalty", penalty)
        check_count("num_steps", num_steps)
        inputs, target = _matrix("x", x), _matrix("y", y)
        if len(inputs) != len(target):
            raise ValueError(f"x and y must have as many rows, but have {len(inputs)} and {len(target)}.")
        _check_inputs(inputs)
        check_outputs(target, family)
        known = _offset(offset, target)
        padded = torch.nn.functional.pad(inputs, (0, 1), value=1.0)
        ridge = torch.full((padded.shape[1],), float(penalty), dtype=torch.float64)
        ridge[-1] = 1.0
        columns = [
            _newton(padded[seen], column[seen], known[seen, d], ridge, family, num_steps)
            for d, (column, seen) in enumerate(zip(target.mT, ~target.mT.isnan(), strict=True))
        ]
        solution = torch.stack(columns, 1)
        return cls(solution[:-1], solution[-1], family)

    def predict(self, x: ArrayLike, offset: ArrayLike | None = None) -> Tensor:
        """Means (N, D): rates of counts, or probabilities of 1.

        :param x: inputs (N, P).
        :param offset: as in :meth:`fit`.
        :raises ValueError: if shapes do not agree.
        """
        return _mean(self._linear(x, offset), self.family)

    def log_prob(self, x: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> Tensor:
        """Log-probabilities (N, D) of outputs; NaN stays NaN.

        :param x: inputs (N, P).
        :param y: outputs (N, D).
        :param offset: as in :meth:`fit`.
        :raises ValueError: as :meth:`fit`.
        """
        target = _matrix("y", y)
        check_outputs(target, self.family)
        eta = self._linear(x, offset)
        if target.shape != eta.shape:
            raise ValueError(f"y must be {tuple(eta.shape)}, but got {tuple(target.shape)}.")
        constant = torch.lgamma(target + 1.0) if self.family == "poisson" else 0.0
        return target * eta - _cumulant(eta, self.family) - constant

    def _linear(self, x: ArrayLike, offset: ArrayLike | None) -> Tensor:
        inputs = _matrix("x", x)
        if inputs.shape[1] != len(self.weights):
            raise ValueError(f"x must have {len(self.weights)} columns, but got {inputs.shape[1]}.")
        _check_inputs(inputs)
        eta = inputs @ self.weights + self.intercept
        return (eta + _offset(offset, eta)).clamp(-_MOST, _MOST)


def _newton(x: Tensor, y: Tensor, offset: Tensor, ridge: Tensor, family: str, num_steps: int) -> Tensor:
    """Weights (P + 1,) of one output, the intercept last."""
    w = torch.zeros(x.shape[1], dtype=torch.float64)
    centre = torch.zeros_like(w)
    exposure = offset.exp().sum() if family == "poisson" else len(y) + 0.5
    share = (y.sum() + 0.5) / (exposure + 0.5)
    centre[-1] = w[-1] = share.log() if family == "poisson" else share.logit()

    def objective(w: Tensor) -> float:
        eta = (x @ w + offset).clamp(-_MOST, _MOST)
        return float((_cumulant(eta, family) - y * eta).sum() + 0.5 * (ridge * (w - centre).square()).sum())

    value = objective(w)
    for _ in range(num_steps):
        mean = _mean((x @ w + offset).clamp(-_MOST, _MOST), family)
        weight = mean if family == "poisson" else mean * (1.0 - mean)
        gradient = x.mT @ (mean - y) + ridge * (w - centre)
        hessian = (x * weight.unsqueeze(-1)).mT @ x + torch.diag(ridge + 1e-9)
        step = torch.cholesky_solve(gradient.unsqueeze(-1), torch.linalg.cholesky(hessian)).squeeze(-1)
        size, before = 1.0, value
        for _ in range(_HALVINGS):
            if (found := objective(w - size * step)) <= before:
                w, value = w - size * step, found
                break
            size *= 0.5
        if before - value <= _TOLERANCE * (abs(before) + 1.0):
            break
    return w


def _mean(eta: Tensor, family: str) -> Tensor:
    return eta.exp() if family == "poisson" else eta.sigmoid()


def _cumulant(eta: Tensor, family: str) -> Tensor:
    return eta.exp() if family == "poisson" else torch.nn.functional.softplus(eta)


def _matrix(name: str, value: ArrayLike) -> Tensor:
    matrix = torch.from_numpy(as_numbers(name, value).copy())
    if matrix.ndim != 2:
        raise ValueError(f"{name} must have two axes, but its shape is {tuple(matrix.shape)}.")
    return matrix


def _check_inputs(x: Tensor) -> None:
    if not bool(x.isfinite().all()):
        row, column = (~x.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"x must be finite, but entry ({row}, {column}) is {float(x[row, column])}.")


def check_outputs(y: Tensor, family: str) -> None:
    """Raise a ValueError that names the first output that is not a count, or not 0 or 1."""
    good = (y >= 0) & (y == y.floor()) & y.isfinite() if family == "poisson" else (y == 0) | (y == 1)
    bad = ~(good | y.isnan())
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        wanted = "counts 0, 1, 2, ..." if family == "poisson" else "0 or 1"
        raise ValueError(f"y must be {wanted} or NaN, but entry ({row}, {column}) is {float(y[row, column]):g}.")


def _offset(offset: ArrayLike | None, like: Tensor) -> Tensor:
    if offset is None:
        return torch.zeros_like(like)
    known = _matrix("offset", offset)
    if len(known) != len(like) or known.shape[1] not in (1, like.shape[1]):
        raise ValueError(f"offset must be {tuple(like.shape)} or ({len(like)}, 1), but got {tuple(known.shape)}.")
    if not bool(known.isfinite().all()):
        raise ValueError("offset must be finite: the exposure must be positive.")
    return known.expand_as(like)
