# SPDX-License-Identifier: Apache-2.0
r"""q(U), and the outputs at new latent points under it.

With L Lᵀ = K_MM and u_d = L v_d, the optimal q(U) of the collapsed bound is, for an output of a group with
A = L⁻¹ Ψ2 L⁻ᵀ = U diag(e) Uᵀ and noise 1/β,

.. math:: v_d \sim N(\bar v_d, B^{-1}), \qquad \bar v_d = \beta B^{-1} L^{-1} \Psi_1^\top y_d, \qquad
          B^{-1} = (I + \beta A)^{-1} = U \mathrm{diag}\Big(\frac{1}{1 + \beta e}\Big) U^\top.

In the basis U every output of the group is diagonal, whether outputs share a noise or have one each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.expandable import Expandable
from pyro_vgpds.linalg import add_diagonal, broadcast_shapes, cholesky, default_jitter
from pyro_vgpds.mapping.group_terms import whiten
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.mapping.sums import FrameSums, added_groups
from pyro_vgpds.types import Shape

__all__ = ["FrameStatistics", "InducingPosterior", "OutputMoments", "OutputWeights", "PosteriorGP"]

_CACHED = 1 << 24  # numbers of v̄ (M, D) up to which it is cached and not computed again block by block
_BLOCK = 1 << 21  # largest array of frames by outputs, or of M by outputs
_FRAMES = 1 << 22  # largest array of the frames' Ψ2 (T, M, M)
_PSI2_FRAMES = 16  # frames whose Ψ2 are computed by one call


class FrameStatistics(NamedTuple):
    """Expectations for T single frames, whitened by L: Ψ0 (T,), L⁻¹Ψ1ᵀ as (T, M) and L⁻¹Ψ2L⁻ᵀ (T, M, M)."""

    psi0: Tensor
    k: Tensor
    a: Tensor

    def spread(self) -> Tensor:
        """The effect of the latent points' uncertainty, L⁻¹(Ψ2 − ψ1 ψ1ᵀ)L⁻ᵀ, (T, M, M)."""
        return self.a - self.k.unsqueeze(-1) * self.k.unsqueeze(-2)


class OutputWeights(NamedTuple):
    """q(V) of d outputs of one group."""

    outputs: Tensor  #: their indices, (d,)
    scale: Tensor  #: s, (d,)
    noise: Tensor  #: 1/β of the scaled outputs, (d,)
    mean: Tensor  #: s v̄, (M, d): in the data's units
    basis: Tensor  #: U, (M, M)
    shrink: Tensor  #: the diagonals of Uᵀ B⁻¹ U, (M, d)


class OutputMoments(NamedTuple):
    """Mean and variance (T, d) of d outputs at T frames, in the data's units; the outputs' indices, and s v̄ (M, d)."""

    outputs: Tensor
    v: Tensor
    mean: Tensor
    variance: Tensor


class InducingPosterior:
    """q(U) of a mapping, given the moments of the latent points of ``data``.

    U belongs to the scaled outputs. Means, variances and noise of outputs are in the data's units.

    :param likelihood: a :class:`~pyro_vgpds.SparseGP` with the mapping's parameters.
    :param mean: of the latent points, (N, Q).
    :param variance: of the latent points, (N, Q).
    :param data: the outputs at those points.
    :param weight: (N,): the noise variance of a frame is that of ``likelihood`` divided by its weight. Default: ones.
    :param remembered: sums over more frames, which are not in ``data``.
    :ivar num_outputs: the number of outputs that are predicted: the data's own, without lagged copies.
    """

    def __init__(
        self, likelihood: SparseGP, mean: Tensor, variance: Tensor, data: Sequences, weight: Tensor | None = None,
        remembered: FrameSums | None = None,
    ) -> None:  # fmt: skip
        self.basis, self.data = likelihood.basis, data
        self._likelihood, self.num_outputs = likelihood, likelihood.num_functions(data)
        self.output_mean, self.output_scale = likelihood.output_mean, likelihood.output_scale
        self.scaled_noise, self.noise = likelihood.noise, likelihood.noise_variance
        self.factor = self.basis.factor()
        groups = likelihood.groups_of(data)
        mask = groups.mask if weight is None else weight.unsqueeze(0) if groups.mask is None else groups.mask * weight
        a = whiten(self.factor, self.basis.psi2(mean, variance, mask))
        self.of_column, a = added_groups(groups.of_column, a, remembered)
        e, self.directions = torch.linalg.eigh(a)  # (C, M), (C, M, M)
        self.eigenvalues = e.clamp_min(0.0)
        self._k, self._weight, self._remembered = self.whitened(mean, variance), weight, remembered
        small = self.basis.size * self.num_outputs <= _CACHED
        self._cached = list(self._make_columns(0, self.num_outputs)) if small else None

    def noise_of(self, index: Tensor) -> Tensor:
        """Noise variances of some outputs in the data's units, (d,)."""
        return self._scaled_noise_of(index) * self.output_scale[index].square()

    def _scaled_noise_of(self, index: Tensor) -> Tensor:
        return self.scaled_noise[index] if len(self.scaled_noise) > 1 else self.scaled_noise.expand(len(index))

    def columns(self) -> Iterator[OutputWeights]:
        """q(V) of all outputs, a block of outputs of one group at a time."""
        if self._cached is not None:
            yield from self._cached
            return
        step = max(1, _BLOCK // max(self.basis.size, self.data.num_frames))
        for start in range(0, self.num_outputs, step):
            yield from self._make_columns(start, min(start + step, self.num_outputs))

    def _make_columns(self, start: int, stop: int) -> Iterator[OutputWeights]:
        y = self._likelihood.targets(self.data, start, stop)
        y = y if self._weight is None else y * self._weight.unsqueeze(-1)
        v, of_column = self._k.mT @ y, self.of_column[start:stop]
        v = v if self._remembered is None else v + self._remembered.v[:, start:stop]
        order = of_column.argsort(stable=True)
        groups, counts = of_column[order].unique_consecutive(return_counts=True)
        for group, local in zip(groups.tolist(), order.split(counts.tolist()), strict=True):
            index = local + start
            noise, scale = self._scaled_noise_of(index), self.output_scale[index]
            if group < 0:  # nothing was observed: the prior
                basis, e = torch.eye(len(v), dtype=v.dtype, device=v.device), v.new_zeros(len(v), 1)
            else:
                basis, e = self.directions[group], self.eigenvalues[group].unsqueeze(-1)
            shrink = 1.0 / (1.0 + e / noise)
            mean = basis @ (scale / noise * shrink * (basis.mT @ v[:, local]))
            yield OutputWeights(index, scale, noise, mean, basis, shrink)

    def mean(self) -> Tensor:
        """E of the functions at the M inducing inputs, (M, D), of the scaled outputs: without means and scales."""
        root = self.basis.root(self.factor)
        total = root.new_empty(len(root), self.num_outputs)
        for part in self.columns():
            total[:, part.outputs] = root @ (part.mean / part.scale)
        return total

    def covariance(self, output: int = 0) -> Tensor:
        """Their covariance for one scaled output, (M, M); outputs of one group with one noise share it."""
        group, root = int(self.of_column[output]), self.basis.root(self.factor)
        if group < 0:
            return root @ root.mT
        beta = 1.0 / self._scaled_noise_of(torch.tensor([output], device=self.noise.device))
        root = root @ self.directions[group] / (1.0 + beta * self.eigenvalues[group]).sqrt()
        return root @ root.mT

    def frames(self, mean: Tensor, variance: Tensor) -> Iterator[tuple[slice, FrameStatistics]]:
        """Expectations for latent points N(mean_n, diag variance_n), (T, Q), some frames at a time."""
        step = max(1, _FRAMES // self.basis.size**2)
        for start in range(0, len(mean), step):
            rows = slice(start, min(start + step, len(mean)))
            psi0, psi2 = [], []
            for mu, s in zip(mean[rows].split(_PSI2_FRAMES), variance[rows].split(_PSI2_FRAMES), strict=True):
                mask = torch.eye(len(mu), dtype=mean.dtype, device=mean.device)  # each frame a group of its own
                psi0.append(self.basis.kernel.psi0(mu, s, mask))
                psi2.append(self.basis.psi2(mu, s, mask))
            k = self.whitened(mean[rows], variance[rows])
            yield rows, FrameStatistics(torch.cat(psi0), k, whiten(self.factor, torch.cat(psi2)))

    def whitened(self, mean: Tensor, variance: Tensor) -> Tensor:
        """L⁻¹Ψ1ᵀ of latent points as (T, M), by which E f_d = k v̄_d."""
        return solve_triangular(self.factor, self.basis.psi1(mean, variance).mT, upper=False).mT

    def at_data(self, rows: Tensor) -> Tensor:
        """L⁻¹Ψ1ᵀ of some frames of the data, as (n, M)."""
        return self._k[rows]

    def moments(self, frames: FrameStatistics) -> Iterator[OutputMoments]:
        r"""Mean and variance of F (the paper's eq. 22 and 23), a block of outputs at a time:

        .. math:: E f_d = \psi_1^\top a_d, \quad
                  V f_d = a_d^\top (\psi_2 - \psi_1 \psi_1^\top) a_d + \psi_0 - \mathrm{tr}[(K^{-1} - Σ_d) \psi_2]
        """
        spread = frames.spread()
        rest = (frames.psi0 - frames.a.diagonal(dim1=-2, dim2=-1).sum(-1)).clamp_min(0.0)
        for part in self.columns():
            rotated = ((frames.a @ part.basis) * part.basis).sum(-2)  # diagonals in the basis, (T, M)
            step = max(1, _BLOCK // rotated.numel())
            for start in range(0, len(part.outputs), step):
                here = slice(start, start + step)
                v = part.mean[:, here]
                through = ((spread @ v) * v).sum(-2).clamp_min(0.0)
                own = rest.unsqueeze(-1) + rotated @ part.shrink[:, here]
                variance = torch.addcmul(through, own, part.scale[here].square())
                index = part.outputs[here]
                yield OutputMoments(index, v, frames.k @ v + self.output_mean[index], variance)

    def covariances(self, frames: FrameStatistics) -> Tensor:
        """Covariance of the D values of F within each frame, (T, D, D)."""
        t, d = len(frames.psi0), self.num_outputs
        v = frames.k.new_empty(self.basis.size, d)
        for part in self.columns():
            v[:, part.outputs] = part.mean
        full = v.mT @ frames.spread() @ v
        own = frames.k.new_empty(t, d)
        for block in self.moments(frames):
            own[:, block.outputs] = block.variance
        full.diagonal(dim1=-2, dim2=-1).copy_(own)
        return full


class PosteriorGP(Expandable):
    """p(y given x, the training data): the outputs of new latent points under q(U), event shape (T, D).

    Frames of one draw are coherent: they come from one draw of the function.

    :param x: latent points (..., T, Q).
    :param inducing: an :class:`InducingPosterior`.
    :param include_noise: add the noise; without it the draws are of the function.
    """

    def __init__(self, x: Tensor, inducing: InducingPosterior, include_noise: bool = True) -> None:
        self.x, self.inducing, self.include_noise = x, inducing, include_noise
        super().__init__(x.shape[:-2], torch.Size((x.shape[-2], inducing.num_outputs)), validate_args=False)

    def _whitened(self, x: Tensor) -> Tensor:
        """L⁻¹K_M* as (..., T, M)."""
        return solve_triangular(self.inducing.factor, self.inducing.basis.cov(x).mT, upper=False).mT

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, (..., T, D) each."""
        u, k = self.inducing, self._whitened(self.x)
        mean, variance = (self.x.new_empty(self._extended_shape()) for _ in range(2))
        rest = (u.basis.kernel.cov_diag(self.x) - k.square().sum(-1)).clamp_min(0.0).unsqueeze(-1)
        for part in u.columns():
            mean[..., part.outputs] = k @ part.mean + u.output_mean[part.outputs]
            own = ((k @ part.basis).square() @ part.shrink + rest) * part.scale.square()
            variance[..., part.outputs] = own + u.noise_of(part.outputs) if self.include_noise else own
        return mean, variance

    @property
    def mean(self) -> Tensor:
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        return self.moments()[1]

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            y = self.x.new_empty(self._extended_shape(sample_shape))
            x = self.x.expand(y.shape[:-2] + self.x.shape[-2:]).reshape((-1, *self.x.shape[-2:]))
            size = x.shape[-2] * max(x.shape[-2], self.inducing.basis.size, min(y.shape[-1], _BLOCK))
            step = max(1, _BLOCK // size)
            for points, out in zip(x.split(step), y.view((-1, *self.event_shape)).split(step), strict=True):
                self._draw(points, out)
        return y

    def _draw(self, x: Tensor, out: Tensor) -> None:
        """Fill ``out`` (B, T, D) with draws at x (B, T, Q)."""
        u, k = self.inducing, self._whitened(x)
        root = None if u.basis.is_exact else self._rest(x, k)
        for part in u.columns():
            spread = part.scale * part.shrink.sqrt()
            v = part.mean + part.basis @ (spread * x.new_empty(len(x), *spread.shape).normal_())
            f = k @ v
            if root is not None:
                f.addcmul_(root @ x.new_empty(*x.shape[:2], len(part.outputs)).normal_(), part.scale)
            if self.include_noise:
                f += u.noise_of(part.outputs).sqrt() * torch.randn_like(f)
            out[..., part.outputs] = f + u.output_mean[part.outputs]

    def _rest(self, x: Tensor, k: Tensor) -> Tensor:
        """The Cholesky factor of the covariance of f at x given the inducing variables."""
        prior = self.inducing.basis.kernel.cov(x, x)
        # the rounding of a difference has the scale of its terms; it is all that is left if u determines f
        jitter = default_jitter(x.dtype) * prior.diagonal(dim1=-2, dim2=-1).mean(-1)
        return cholesky(add_diagonal(prior - k @ k.mT, jitter), "the mapping's covariance given the inducing variables")

    def log_prob(self, value: Tensor) -> Tensor:
        """The density of whole sequences given x: a T × T covariance for each output."""
        if not self.include_noise:
            raise NotImplementedError("PosteriorGP has no density without noise. Use include_noise=True.")
        if not bool(torch.isfinite(value).all()):
            raise ValueError("PosteriorGP.log_prob needs finite values; Posterior.log_density takes NaN.")
        u, k = self.inducing, self._whitened(self.x)
        rest = u.basis.kernel.cov(self.x, self.x) - k @ k.mT
        total = value.new_zeros(broadcast_shapes(value.shape[:-2], self.batch_shape))
        for part in u.columns():
            noise, rotated = part.noise, k @ part.basis
            total = total - value.shape[-2] * part.scale.log().sum()
            residual = (value[..., part.outputs] - u.output_mean[part.outputs] - k @ part.mean) / part.scale
            same = 1 if len(u.scaled_noise) > 1 else len(part.outputs)  # outputs that share a covariance
            for start in range(0, len(part.outputs), same):
                covariance = rest + (rotated * part.shrink[:, start]) @ rotated.mT
                factor = cholesky(add_diagonal(covariance, noise[start]), "the covariance of an output at new points")
                white = solve_triangular(factor, residual[..., start : start + same], upper=False)
                logdet = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
                constant = value.shape[-2] * math.log(2.0 * math.pi)
                total = total - 0.5 * (white.square().sum((-2, -1)) + white.shape[-1] * (logdet + constant))
        return total
