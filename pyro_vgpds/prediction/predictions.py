# SPDX-License-Identifier: Apache-2.0
"""Predictive distributions of a trained model at some times."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import numpy as np
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_vgpds.checks import check_count, check_flags, check_kind, plain
from pyro_vgpds.linalg import cholesky
from pyro_vgpds.mapping.inducing import FrameStatistics, InducingPosterior
from pyro_vgpds.mapping.posterior_gp import PosteriorGP
from pyro_vgpds.prediction.correlations import Correlations
from pyro_vgpds.prediction.latent import Latent
from pyro_vgpds.prediction.marginals import drop_known, hidden_covariance, put_known
from pyro_vgpds.prediction.outputs import Outputs, Parts
from pyro_vgpds.prediction.residuals import Residuals
from pyro_vgpds.prediction.widening import gap_factors
from pyro_vgpds.threads import thread_limited
from pyro_vgpds.types import ArrayLike

__all__ = ["Functions", "Prediction", "Reconstruction"]


class Prediction(Outputs):
    """Outputs at T times, (T, D), in the units of the data. :class:`~pyro_vgpds.Posterior` makes them.

    Nothing of size D is computed before it is needed. Mean and variance are exact moments of the predictive
    distribution. It is not Gaussian, because the latent path is uncertain and the mapping is nonlinear. ``sample``
    draws from that distribution; ``interval`` and ``log_prob`` use a Gaussian with the same moments.

    :param t: the times, (T,).
    :param path: the latent path there, a distribution of event shape (T, Q).
    :param inducing: q(U).
    :param include_noise: predict the outputs; if False, the function without their noise.
    :param observed: (T, D), known numbers that are returned unchanged, NaN elsewhere.
    :param full_cov: compute the covariance (T, D, D) now, and use it in ``log_prob``.
    :param residuals: residuals carried to these times. Default: the noise is white.
    :param correlations: of the latent dimensions, whose effect is linearised. Default: they are independent.
    :param widening: the frames are those of the data, and the function is less certain in their gaps.
    :param parts: the sequences that the frames belong to. Default: one.
    :ivar latent: the :class:`~pyro_vgpds.prediction.Latent` path.
    :ivar path: its distribution.
    :ivar inducing: q(U).
    :ivar observed: the known numbers, or None.
    :ivar correlations: those of the latent dimensions, or None.

    >>> ahead = post.forecast([2.6, 2.7], sequence=0)
    >>> ahead.mean.shape, ahead.variance.shape, ahead.latent.mean.shape
    (torch.Size([2, 5]), torch.Size([2, 5]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        t: Tensor,
        path: TorchDistribution,
        inducing: InducingPosterior,
        *,
        include_noise: bool = True,
        observed: Tensor | None = None,
        full_cov: bool = False,
        residuals: Residuals | None = None,
        correlations: Correlations | None = None,
        widening: bool = False,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(t, inducing.data, include_noise, parts)
        self.full_cov, self.latent = full_cov, Latent(path, correlations)
        self.path, self.inducing, self.observed = path, inducing, observed
        self._residuals, self.correlations, self.widening = residuals, correlations, widening
        self._covariance: Tensor | None = None
        if full_cov:
            self._covariance = self._make_covariance()

    def with_noise(self, include_noise: bool) -> Prediction:
        """The same prediction with or without the outputs' noise.

        :param include_noise: with noise or without.

        >>> difference = ahead.variance - ahead.with_noise(False).variance
        >>> bool((difference - post.noise_variance).abs().max() < 1e-10)
        True
        """
        check_flags(include_noise=include_noise)
        if include_noise == self.include_noise:
            return self
        new = copy.copy(self)
        new.include_noise, new._moments, new._covariance = include_noise, None, None
        if self.full_cov:
            new._covariance = new._make_covariance()
        return new

    # moments

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        arrays = self.t.new_empty(self.shape), self.t.new_empty(self.shape)
        self.write(*arrays)
        return arrays

    @thread_limited
    def write(self, mean: Tensor | np.ndarray | None = None, variance: Tensor | np.ndarray | None = None) -> None:
        """Write the moments into arrays (T, D) block by block, for very large D.

        :param mean: an array for the means: a tensor, a numpy array or a memmap. Default: they are not written.
        :param variance: an array for the variances.
        :raises ValueError: if an array has another shape.

        >>> import numpy as np
        >>> array = np.empty((2, 5), dtype=np.float32)
        >>> ahead.write(mean=array)
        """
        for name, array in (("mean", mean), ("variance", variance)):
            check_kind(name, array, (np.ndarray, Tensor), "an array", optional=True)
            if array is not None and (isinstance(array, Tensor) and plain(name, array).is_complex()):
                raise TypeError(f"{name} must be an array of real numbers, but its dtype is {array.dtype}.")
            if array is not None and tuple(array.shape) != self.shape:
                raise ValueError(
                    f"{name} must be an array of shape {self.shape}, but its shape is {tuple(array.shape)}."
                )
        for rows, index, *moments in self.blocks():
            for array, block in zip((mean, variance), moments, strict=True):
                if array is not None:
                    _put(array, rows, index, block)

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Rows, indices of outputs (d,), and mean and variance (rows, d), block by block."""
        with torch.no_grad():
            for rows, frames in self._frames():
                for index, v, mean, variance in self.inducing.moments(frames):
                    if self.widening:
                        variance = variance * self._factors(index)[rows].to(variance)
                    if self.include_noise:
                        shift, noise = self._noise(index, v)
                        mean, variance = mean + shift[rows], variance + noise[rows]
                    at = rows, index
                    mean, variance = put_known(self.observed, mean, at=at), put_known(self.observed, variance, 0.0, at)
                    yield rows, index, mean, variance

    def _frames(self) -> Iterator[tuple[slice, FrameStatistics]]:
        excess = None if self.correlations is None else self.correlations.excess
        return self.inducing.frames(self.path.mean, self.path.variance, excess)

    def _noise(self, index: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the noise of some outputs, (T, d) each. White noise has mean zero."""
        variance = self.inducing.noise_of(index).expand(len(self.t), -1)
        if self._residuals is None:
            return torch.zeros_like(variance), variance
        mean, share = self._residuals.moments(index, v)
        return mean, variance * share

    def _factors(self, index: Tensor | None = None) -> Tensor:
        """Factors of the variance of the function, (T, d), of some outputs, which are near each other. Default: all."""
        index = torch.arange(self.shape[1], device=self.t.device) if index is None else index
        first = int(index.min())
        y = self.data.read(first, int(index.max()) + 1)[:, index - first]
        return gap_factors(y.isnan(), self.inducing.observed_frames(), self.data.times.slices())

    @property
    def covariance(self) -> Tensor:
        """Covariance of the outputs within each time, (T, D, D). Large: computed on first access."""
        if self._covariance is None:
            self._covariance = self._make_covariance()
        return self._covariance

    @thread_limited
    def _make_covariance(self) -> Tensor:
        with torch.no_grad():
            parts = [self.inducing.covariances(f) for _, f in self._frames()]
            full = torch.cat(parts)
            if self.widening:
                roots = self._factors().sqrt()
                full = full * roots.unsqueeze(-1) * roots.unsqueeze(-2)
            if self.include_noise:
                for part in self.inducing.columns():
                    _, noise = self._noise(part.outputs, part.mean)
                    full.diagonal(dim1=-2, dim2=-1)[:, part.outputs] += noise
        return hidden_covariance(self.observed, full).to(self.t.dtype)

    # the distribution

    @thread_limited
    def sample(self, num_samples: int = 1) -> Tensor:
        """Joint draws (num_samples, T, D): each has one latent path and one function, so it is coherent in time.

        :param num_samples: number of draws.
        :raises ValueError: if it is not a positive whole number.

        >>> ahead.sample(7).shape
        torch.Size([7, 2, 5])
        """
        check_count("num_samples", num_samples)
        with torch.no_grad():
            x = self.path.sample((num_samples,))
            carried = self._residuals if self.include_noise else None
            white = self.include_noise and carried is None
            y = PosteriorGP(x, self.inducing, white and not self.widening).sample()
            if self.correlations is not None:
                y += self.correlations.sample(self.inducing, num_samples)
            if self.widening:
                mean = self.with_noise(False).mean
                y = mean + self._factors().sqrt() * (y - mean)
                if white:
                    noise = self.inducing.noise_of(torch.arange(self.shape[1], device=y.device))
                    y += noise.sqrt() * torch.randn_like(y)
            if carried is not None:
                y += carried.sample(num_samples)
        return put_known(self.observed, y).to(self.t.dtype)

    @thread_limited
    def log_prob(self, y: ArrayLike) -> Tensor:
        """Log-density of outputs under Gaussians with these moments, summed; NaN is ignored.

        Outputs are independent, or with ``full_cov`` have their covariance within each time. Numbers that ``fill=True``
        returned unchanged are ignored, too.

        :param y: (T, D).
        :returns: one number.
        :raises ValueError: if ``y`` has another shape.

        >>> bool(ahead.log_prob(ahead.mean) > ahead.log_prob(ahead.mean + 1.0))
        True
        """
        if not self.full_cov:
            return super().log_prob(y)
        value = drop_known(self.observed, self.checked(y))
        known = torch.isfinite(value)
        residual = torch.where(known, value - self.mean, 0.0)
        # the identity in place of ignored outputs: it adds nothing
        both = known.unsqueeze(-1) & known.unsqueeze(-2)
        full = self.covariance * both + torch.diag_embed((~known).to(value.dtype))
        factor = cholesky(full, "the covariance of the outputs")
        white = torch.linalg.solve_triangular(factor, residual.unsqueeze(-1), upper=False)
        logdet = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum()
        return -0.5 * (white.square().sum() + logdet + int(known.sum()) * math.log(2.0 * math.pi))

    def to_numpy(self) -> dict[str, np.ndarray]:
        """Arrays ``t`` (or dates), ``mean``, ``variance``, ``latent_mean`` and ``latent_variance``."""
        latent = {"latent_mean": self.latent.mean, "latent_variance": self.latent.variance}
        return super().to_numpy() | {name: value.cpu().numpy() for name, value in latent.items()}


class Reconstruction(Prediction):
    """A :class:`~pyro_vgpds.Prediction` from partly observed outputs.

    :ivar bound: the lower bound on log p(training outputs, observed outputs) of the best start.
    :ivar bounds: the bound of each start, best first.
    :ivar num_steps: number of natural-gradient steps of the best start.

    >>> from pyro_vgpds import Solver
    >>> seen = data.read()[:10].clone()
    >>> seen[5:, 0] = float("nan")
    >>> whole = post.reconstruct(data.times.t[:10], seen, solver=Solver(num_starts=2))
    >>> whole.bound == max(whole.bounds), len(whole.bounds)
    (True, 2)
    """

    bound: float
    bounds: list[float]
    num_steps: int


class Functions(Prediction):
    """Latent functions, of which there may be several for each output."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.t), self.inducing.num_outputs

    @property
    def columns(self) -> list[str] | None:
        return super().columns if self.shape[1] == self.data.num_base_outputs else None


def _put(array: Tensor | np.ndarray, rows: slice, index: Tensor, block: Tensor) -> None:
    if isinstance(array, Tensor):
        array[rows, index] = block.to(array)
    else:
        array[rows, index.cpu().numpy()] = block.cpu().numpy()
