# SPDX-License-Identifier: Apache-2.0
"""Any Gaussian q(X): the posterior of the latent path of a custom guide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import register_kl

from pyro_vgpds.linalg import cholesky, default_jitter, matvec
from pyro_vgpds.matrix_distribution import MatrixDistribution
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.paths import GaussianPath
from pyro_vgpds.temporal.rounding import check_divergence
from pyro_vgpds.types import Shape

__all__ = ["LEAST_LAM", "GaussianPosterior", "PathPosterior", "least_lam"]

LEAST_LAM = 1e-6  #: smallest λ, in units of the inverse prior variance
_LEAST_SHARE = 1e-3  # of the prior's variance: natural steps would need long to widen the sites of a point


def least_lam(prior_variance: Tensor) -> Tensor:
    """The smallest λ of a frame: negligible beside the prior.

    At a time at which the prior has no variance, such as t = 0 of a ``Linear`` kernel, λ has no effect.
    """
    return LEAST_LAM / _filled(prior_variance)


def _filled(prior_variance: Tensor) -> Tensor:
    """Variances of which the inverse is finite: 1 in place of 0."""
    return torch.where(prior_variance > torch.finfo(prior_variance.dtype).tiny, prior_variance, 1.0)


class GaussianPosterior(MatrixDistribution):
    r"""q(X) with given moments, event shape (N, Q), independent over latent dimensions and over sequences:

    .. math:: q(X) = \prod_q N(x_q \mid m_q, S_q).

    :class:`~pyro_vgpds.OpperArchambeau` has a special S and is faster. This one takes every S, such as the diagonal one
    of a mean-field guide, or zero for a point. New times follow from the prior's conditional p(X* given X), see
    :meth:`forecast`. A sequence of n frames costs O(n³), once.

    :param prior: the :class:`~pyro_vgpds.TemporalGP` at the same frames.
    :param mean: m, (N, Q).
    :param variance: the diagonals of S, (N, Q); 0 for frames that are points.
    :param covariance: computes S (Q, n, n) for the indices (n,) of frames. Default: frames are independent.
    :raises ValueError: if a shape is not (N, Q), or the moments are not finite or a variance is negative.

    >>> import torch
    >>> from pyro_vgpds import OpperArchambeau, TemporalGP
    >>> from pyro_vgpds.kernels import RBF, White
    >>> from pyro_vgpds.temporal import GaussianPosterior
    >>> prior = TemporalGP((RBF(1.0, 0.5) + White(0.1))(), torch.linspace(0, 1, 4).double(), latent_dim=2)
    >>> ones, new = torch.ones(4, 2).double(), torch.tensor([1.1]).double()
    >>> q = OpperArchambeau(prior, mean_bar=ones, lam=3.0 * ones)
    >>> same = GaussianPosterior(prior, q.mean, q.variance, q.covariance_of)
    >>> torch.allclose(same.forecast(new, 0).variance, q.forecast(new, 0).variance)
    True
    """

    has_rsample = True

    def __init__(
        self, prior: TemporalGP, mean: Tensor, variance: Tensor, covariance: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        for name, value in (("mean", mean), ("variance", variance)):
            if value.shape != prior.event_shape:
                raise ValueError(
                    f"the {name} of q(X) must be {tuple(prior.event_shape)} = (frames, latent dimensions), but its "
                    f"shape is {tuple(value.shape)}."
                )
        if not bool(torch.isfinite(mean).all() and torch.isfinite(variance).all() and (variance >= 0.0).all()):
            raise ValueError("the mean of q(X) must be finite, and its variance finite and at least 0.")
        self.prior, self._mean, self._variance, self._covariance = prior, mean, variance, covariance
        self._solved: dict[int, tuple[Tensor, Tensor]] = {}  # by sequence, made when first needed
        super().__init__(torch.Size(), prior.event_shape, validate_args=False)

    def __repr__(self) -> str:
        n, q = self.event_shape
        frames = "independent" if self._covariance is None else "dense"
        return f"GaussianPosterior(frames={n}, latent_dim={q}, structure={frames!r})"

    @property
    def mean(self) -> Tensor:
        return self._mean.expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        return self._variance.expand(self._extended_shape())

    def covariance_of(self, rows: Tensor) -> Tensor:
        """S of some frames of one sequence, (Q, T, T).

        :param rows: their indices, (T,).
        """
        if self._covariance is None:
            return torch.where(rows.unsqueeze(-1) == rows, self._variance.mT[:, rows].unsqueeze(-1), 0.0)
        return self._covariance(rows)

    @property
    def covariance_matrix(self) -> Tensor:
        """S for each latent dimension, (Q, N, N), zero between sequences. Large: computed on each access."""
        n, q = self.event_shape
        full = self._mean.new_zeros(q, n, n)
        for rows in self.prior.times.slices():
            full[:, rows, rows] = self.covariance_of(self._indices(rows))
        return full

    def forecast(self, t: Tensor, sequence: int | None) -> TorchDistribution:
        r"""q(X*) at new times (T,) of a training sequence, or of a new one (None), for which it is the prior.

        With :math:`A = K_{*N} K_t^{-1}`, p(X* given X) integrated over q(X) is

        .. math:: \mu_* = A m, \qquad \Sigma_* = K_{**} - A K_{N*} + A S A^\top.

        :param t: new times (T,), a tensor, in any order.
        :param sequence: the index of the training sequence, or None.
        """
        if sequence is None:
            return self.prior.at(t)
        kernel = self.prior.kernel
        factor, mean_bar = self._solve(sequence)
        rows = self.prior.times.slices()[sequence]
        cross = kernel.gram(self.prior.times.t[rows], t)  # (K, n, T): without white noise
        weights = torch.cholesky_solve(cross, factor)  # Aᵀ
        mean = matvec(cross.mT, mean_bar)
        inner: Tensor | None = None
        if self._covariance is None:
            spread = (weights.square() * self._variance[rows].mT.unsqueeze(-1)).sum(-2)
        else:
            inner = self.covariance_of(self._indices(rows)) @ weights  # S Aᵀ
            spread = (weights * inner).sum(-2)
        variance = (kernel.diag(t) - (cross * weights).sum(-2) + spread).clamp_min(0.0)

        def covariance() -> Tensor:
            own = self._variance[rows].mT.unsqueeze(-1) * weights if inner is None else inner
            return kernel.gram(t) - cross.mT @ weights + weights.mT @ own

        return GaussianPath(mean.mT, variance.mT, covariance)

    def certain(self) -> GaussianPosterior:
        """The same path as a point: its forecast is p(X* given X = m)."""
        return GaussianPosterior(self.prior, self._mean, torch.zeros_like(self._variance))

    def sites(self) -> tuple[Tensor, Tensor]:
        """``mean_bar`` and ``lam`` (N, Q) of an :class:`~pyro_vgpds.OpperArchambeau` with the same mean.

        λ is the diagonal of S⁻¹ − K_t⁻¹, so that a q(X) of that form gets its own λ back. For independent frames it is
        1/s − 1/k of each frame alone: K_t⁻¹ of a smooth prior is larger than most 1/s, which would say nothing about
        the frame. λ is at least 1e-6 of the inverse prior variance, and at most 1e3 of it if frames are independent.
        """
        mean_bar, lam = torch.empty_like(self._mean), torch.empty_like(self._mean)
        for sequence, rows in enumerate(self.prior.times.slices()):
            factor, solved = self._solve(sequence)
            mean_bar[rows] = solved.mT
            if self._covariance is not None:
                own = torch.cholesky_inverse(self._posterior_factor(rows)) - torch.cholesky_inverse(factor)
                lam[rows] = own.diagonal(dim1=-2, dim2=-1).mT
        wide = _filled(self.prior.variance)
        if self._covariance is None:
            lam = 1.0 / torch.maximum(self._variance, _LEAST_SHARE * wide) - 1.0 / wide
        return mean_bar, torch.maximum(lam, least_lam(wide))

    def with_sites(self) -> OpperArchambeau | None:
        """The :class:`~pyro_vgpds.OpperArchambeau` of :meth:`sites`; None if frames are independent or points."""
        return None if self._covariance is None else OpperArchambeau(self.prior, *self.sites())

    def kl(self, sequences: Iterable[int] | None = None) -> Tensor:
        """KL(q, p) of some training sequences. For frames that are points it is minus the log-density of the prior.

        :param sequences: their indices. Default: all.
        :raises NumericalError: if rounding errors make it clearly negative.
        """
        slices = self.prior.times.slices()
        total = self._mean.new_zeros(())
        for sequence in range(len(slices)) if sequences is None else sequences:
            rows = slices[sequence]
            factor, mean_bar = self._solve(sequence)
            shape = self._mean[rows].mT.shape
            square = (self._mean[rows].mT * mean_bar).sum()
            logdet = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().expand(shape).sum()
            is_point = self._variance[rows].mT == 0.0
            if self._covariance is None:
                s = self._variance[rows].mT
                trace = (torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1) * s).sum()
                spread = (s[~is_point].log() + 1.0).sum() - math.log(2.0 * math.pi) * is_point.sum()
            else:
                own = self._posterior_factor(rows)
                trace = torch.linalg.solve_triangular(factor.expand_as(own), own, upper=False).square().sum()
                spread = _logdet(own) + shape.numel()
            kl = 0.5 * (square + logdet + trace - spread)
            if not bool(is_point.any()):  # the density of points may have any value
                check_divergence(kl, square, logdet, trace, spread)
            total = total + kl
        return total

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self._mean.dtype, device=self._mean.device)
        if self._covariance is None:
            return self._mean + self._variance.sqrt() * noise
        parts = [matvec(self._posterior_factor(rows), noise[..., rows, :].mT).mT for rows in self.prior.times.slices()]
        return self._mean + torch.cat(parts, -2)

    def _indices(self, rows: slice) -> Tensor:
        return torch.arange(rows.start, rows.stop, device=self._mean.device)

    def _solve(self, sequence: int) -> tuple[Tensor, Tensor]:
        """The Cholesky factor (K, n, n) of a sequence's K_t, and K_t⁻¹ m (Q, n)."""
        if sequence not in self._solved:
            rows = self.prior.times.slices()[sequence]
            factor = _factor(self.prior.kernel.gram(self.prior.times.t[rows]))
            mean = self._mean[rows].mT.unsqueeze(-1)
            self._solved[sequence] = factor, torch.cholesky_solve(mean, factor.expand(len(mean), -1, -1)).squeeze(-1)
        return self._solved[sequence]

    def _posterior_factor(self, rows: slice) -> Tensor:
        return cholesky(self.covariance_of(self._indices(rows)), "the covariance of q(X)")


#: the posterior of a latent path, with ``mean``, ``variance``, ``covariance_matrix``, ``prior`` and ``forecast``
PathPosterior: TypeAlias = OpperArchambeau | GaussianPosterior


def _factor(block: Tensor) -> Tensor:
    """The Cholesky factor of a sequence's K_t, with the jitter of the rule only if it is nearly singular."""
    factor, info = torch.linalg.cholesky_ex(block)
    least = 100.0 * default_jitter(block.dtype) * block.diagonal(dim1=-2, dim2=-1).mean(-1)
    safe = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1) > least
    return factor if not bool(info.any()) and bool(safe.all()) else cholesky(block, "the temporal covariance K_t", None)


def _logdet(factor: Tensor) -> Tensor:
    """log|S|, summed over latent dimensions, from Cholesky factors."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum()


@register_kl(GaussianPosterior, TemporalGP)  # type: ignore[untyped-decorator]
def _kl_gaussian_prior(q: GaussianPosterior, p: TemporalGP) -> Tensor:
    if not q.prior.covariance.equals(p.covariance):
        raise ValueError("KL(GaussianPosterior, TemporalGP) needs a q with the same prior.")
    return q.kl()
