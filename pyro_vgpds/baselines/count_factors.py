# SPDX-License-Identifier: Apache-2.0
"""A negative-binomial factor model of counts, with factors that are autoregressive in time, by MAP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Gaps
from pyro_vgpds.baselines.glm import check_outputs
from pyro_vgpds.checks import as_numbers, check_count, check_number, check_seed
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["NegativeBinomialFactors"]

_LOADINGS = 1.0  # prior precision of the loadings
_DISPERSION = 1.0  # prior precision of the log dispersions around 0
_MOST = 20.0  # log means are limited to this absolute value


@dataclass(frozen=True)
class NegativeBinomialFactors:
    """y_nd ~ NB with mean μ_nd = exposure_nd exp(a_d + C_d x_n) and variance μ + μ²/r_d, with a path x of K factors.

    Each factor is x_{n+1} = φ x_n + N(0, 1 − φ²) for one step of time. Everything is a point estimate, the maximum of
    the posterior. Fields are float64.

    >>> import numpy as np
    >>> from pyro_vgpds.baselines import NegativeBinomialFactors
    >>> rng = np.random.default_rng(0)
    >>> y = rng.poisson(np.exp(1 + np.outer(np.sin(np.arange(60) / 5), [1.0, 0.5, -1.0]))).astype(float)
    >>> y[50:, 0] = np.nan
    >>> model = NegativeBinomialFactors.fit(np.arange(60.0), y, num_factors=1)
    >>> model.mean.shape, model.log_prob(np.nan_to_num(y)).shape
    (torch.Size([60, 3]), torch.Size([60, 3]))
    """

    mean: Tensor  #: μ (N, D) of all entries, observed or not
    dispersion: Tensor  #: r (D,)
    loadings: Tensor  #: C (D, K)
    offset: Tensor  #: a (D,)
    path: Tensor  #: x (N, K)
    objective: float  #: log posterior, up to a constant

    @classmethod
    def fit(
        cls,
        t: DataLike | Sequences,
        y: DataLike | None = None,
        num_factors: int = 5,
        persistence: float = 0.9,
        exposure: ArrayLike | float = 1.0,
        num_steps: int = 300,
        seed: int = 0,
    ) -> NegativeBinomialFactors:
        """Maximise the log posterior by L-BFGS.

        :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
        :param y: counts (N, D) with NaN, or a list of them. Rows may be all NaN, as for a forecast.
        :param num_factors: K.
        :param persistence: φ in (0, 1), for the median interval between frames.
        :param exposure: positive, (D,), (N, D) or a number; it multiplies the means.
        :param num_steps: maximum number of L-BFGS steps.
        :param seed: of the initial loadings.
        :raises ValueError: as :class:`~pyro_vgpds.Sequences`, and if a column was never observed, an output is not a
            count, or the exposure is not positive.
        """
        check_count("num_factors", num_factors)
        check_count("num_steps", num_steps)
        check_seed(seed)
        check_number("persistence", persistence, "between 0 and 1", lambda value: 0 < value < 1)
        gaps = Gaps(t, y)
        check_outputs(gaps.y, "poisson")
        scale = torch.from_numpy(as_numbers("exposure", exposure).copy())
        (n, d), k = gaps.y.shape, num_factors
        if tuple(scale.shape) not in ((), (d,), (n, d)):
            raise ValueError(f"exposure must be a number, ({d},) or ({n}, {d}), but got {tuple(scale.shape)}.")
        if not bool((scale.isfinite() & (scale > 0)).all()):
            place = (~(scale > 0) | ~scale.isfinite()).nonzero()[0].tolist()
            raise ValueError(f"exposure must be positive, but entry {tuple(place)} is {float(scale[tuple(place)]):g}.")
        known = scale.log().expand_as(gaps.y)
        total = torch.where(gaps.seen, gaps.y, 0.0).sum(0) + 0.5
        generator = torch.Generator().manual_seed(seed)
        values = {
            "offset": (total / torch.where(gaps.seen, known.exp(), 0.0).sum(0)).log(),
            "log_dispersion": torch.zeros(d, dtype=torch.float64),
            "loadings": 0.3 * torch.randn(d, k, generator=generator, dtype=torch.float64),
            "path": torch.zeros(n, k, dtype=torch.float64),
        }
        decay = _decay(gaps, persistence)

        def loss(values: dict[str, Tensor]) -> Tensor:
            log_mean = _log_mean(values, known)
            fits = _log_prob(torch.where(gaps.seen, gaps.y, 0.0), log_mean, values["log_dispersion"])
            prior = (
                _LOADINGS * values["loadings"].square().sum() + _DISPERSION * values["log_dispersion"].square().sum()
            )
            return 0.5 * (prior + _steps(values["path"], decay)) - torch.where(gaps.seen, fits, 0.0).sum()

        with torch.enable_grad():
            for parameter in values.values():
                parameter.requires_grad_()
            final = _minimise(loss, values, num_steps)
        found = {name: value.detach() for name, value in values.items()}
        return cls(
            _log_mean(found, known).exp(),
            found["log_dispersion"].exp(),
            found["loadings"],
            found["offset"],
            found["path"],
            -final,
        )

    def log_prob(self, y: ArrayLike) -> Tensor:
        """Log-probabilities (N, D) of counts at the frames of the training data; NaN stays NaN.

        :param y: (N, D).
        :raises ValueError: if the shape is another.
        """
        counts = torch.from_numpy(as_numbers("y", y).copy())
        if counts.shape != self.mean.shape:
            raise ValueError(f"y must be {tuple(self.mean.shape)}, but got {tuple(counts.shape)}.")
        return _log_prob(counts, self.mean.log(), self.dispersion.log())


def _minimise(loss: Callable[[dict[str, Tensor]], Tensor], values: dict[str, Tensor], num_steps: int) -> float:
    optimiser = torch.optim.LBFGS(
        list(values.values()), max_iter=num_steps, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(values)
        value.backward()
        return value

    optimiser.step(closure)
    return float(loss(values).detach())


def _decay(gaps: Gaps, persistence: float) -> Tensor:
    """φ to the power of the interval before each frame, (N,); 0 for the first frame of a sequence."""
    decay = torch.zeros_like(gaps.t)
    for rows in gaps.rows:
        decay[rows.start + 1 : rows.stop] = persistence ** (gaps.t[rows].diff() / gaps.step)
    return decay


def _steps(path: Tensor, decay: Tensor) -> Tensor:
    """Squared innovations of the factors, each over its variance."""
    before = torch.cat([torch.zeros_like(path[:1]), path[:-1]])
    return ((path - decay.unsqueeze(-1) * before).square() / (1.0 - decay.square()).unsqueeze(-1)).sum()


def _log_mean(values: dict[str, Tensor], known: Tensor) -> Tensor:
    return (values["path"] @ values["loadings"].mT + values["offset"] + known).clamp(-_MOST, _MOST)


def _log_prob(y: Tensor, log_mean: Tensor, log_dispersion: Tensor) -> Tensor:
    r = log_dispersion.exp()
    total = torch.logaddexp(log_dispersion, log_mean)  # log (r + μ)
    choose = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1.0)
    return choose + r * (log_dispersion - total) + y * (log_mean - total)
