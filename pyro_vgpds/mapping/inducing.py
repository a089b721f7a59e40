# SPDX-License-Identifier: Apache-2.0
r"""q(U), and moments of the outputs at uncertain latent points under it.

With L Lᵀ = K_MM and u_d = L v_d, the optimal q(U) of the collapsed bound is, for an output of a group with
A = L⁻¹ Ψ2 L⁻ᵀ = U diag(e) Uᵀ and noise 1/β,

.. math:: v_d \sim N(\bar v_d, B^{-1}), \qquad \bar v_d = \beta B^{-1} L^{-1} \Psi_1^\top y_d, \qquad
          B^{-1} = (I + \beta A)^{-1} = U \mathrm{diag}\Big(\frac{1}{1 + \beta e}\Big) U^\top.

In the basis U every output of the group is diagonal, whether outputs share a noise or have one each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.mapping.frame_sums import FrameSums, added_groups
from pyro_vgpds.mapping.group_terms import whiten
from pyro_vgpds.mapping.sparse_gp import SparseGP

__all__ = ["Excess", "FrameStatistics", "InducingPosterior", "OutputMoments", "OutputWeights"]

_CACHED = 1 << 24  # numbers of v̄ (M, D) up to which it is cached and not computed again block by block
_BLOCK = 1 << 21  # largest array of frames by outputs, or of M by outputs
_FRAMES = 1 << 22  # largest array of the frames' Ψ2 (T, M, M)
_PSI2_FRAMES = 16  # frames whose Ψ2 are computed by one call


class FrameStatistics(NamedTuple):
    """Expectations for T single frames, whitened by L: Ψ0 (T,), L⁻¹Ψ1ᵀ as (T, M) and L⁻¹Ψ2L⁻ᵀ (T, M, M)."""

    psi0: Tensor
    k: Tensor
    a: Tensor
    excess: Tensor | None = None  #: GᵀΔG (T, M, M) of latent points with covariances diag(s) + Δ

    def spread(self) -> Tensor:
        """The effect of the latent points' uncertainty, L⁻¹(Ψ2 − ψ1 ψ1ᵀ)L⁻ᵀ, (T, M, M)."""
        own = self.a - self.k.unsqueeze(-1) * self.k.unsqueeze(-2)
        return own if self.excess is None else own + self.excess


class Excess(NamedTuple):
    """Δ of the covariances diag(s) + Δ of some latent points: what independent latent dimensions do not have."""

    frames: Tensor  #: which points, (P,), increasing
    covariance: Tensor  #: Δ, (P, Q, Q)

    def within(self, rows: slice) -> Excess:
        """That of the points ``rows``, counted from the first of them."""
        here = (self.frames >= rows.start) & (self.frames < rows.stop)
        return Excess(self.frames[here] - rows.start, self.covariance[here])


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
    :param summary: sums over more frames, which are not in ``data``.
    :ivar num_outputs: the number of outputs that are predicted: the data's own, without lagged copies.
    """

    def __init__(
        self, likelihood: SparseGP, mean: Tensor, variance: Tensor, data: Sequences, weight: Tensor | None = None,
        summary: FrameSums | None = None,
    ) -> None:  # fmt: skip
        self.basis, self.data = likelihood.basis, data
        self._likelihood, self.num_outputs = likelihood, likelihood.num_functions(data)
        self.output_mean, self.output_scale = likelihood.output_mean, likelihood.output_scale
        self.scaled_noise, self.noise = likelihood.noise, likelihood.noise_variance
        self.factor = self.basis.factor()
        groups = likelihood.groups_of(data)
        self._observed = groups.mask, groups.of_column
        mask = groups.mask if weight is None else weight.unsqueeze(0) if groups.mask is None else groups.mask * weight
        a = whiten(self.factor, self.basis.psi2(mean, variance, mask))
        self.of_column, a = added_groups(groups.of_column, a, summary)
        e, self.directions = torch.linalg.eigh(a)  # (C, M), (C, M, M)
        self.eigenvalues = e.clamp_min(0.0)
        self._k, self._weight, self._remembered = self.whitened(mean, variance), weight, summary
        small = self.basis.size * self.num_outputs <= _CACHED
        self._cached = list(self._make_columns(0, self.num_outputs)) if small else None

    def frames_of(self, output: int) -> Tensor:
        """1 for frames of the data in which an output was observed, else 0; for outputs that are not Gaussian the
        weights of their factors, (N,).
        """
        mask, group = self._observed[0], int(self._observed[1][output])
        if group < 0:
            return self._k.new_zeros(len(self._k))
        return self._k.new_ones(len(self._k)) if mask is None else mask[group]

    def partial_frames(self) -> Tensor:
        """The frames of the data in which some output was not observed, (P,)."""
        mask, group = self._observed
        if bool((group < 0).any()):
            return torch.arange(len(self._k), device=group.device)
        return torch.zeros_like(group[:0]) if mask is None else (mask.amin(0) == 0.0).nonzero().squeeze(-1)

    def observed_frames(self) -> Tensor:
        """Whether some output, without lagged copies, was observed in each frame of the data, (N,)."""
        mask, group = self._observed
        if mask is None:
            return self._k.new_ones(len(self._k), dtype=torch.bool)
        own = group[: self.num_outputs].unique()
        return (mask[own[own >= 0]] > 0.0).any(0)

    def noise_of(self, index: Tensor) -> Tensor:
        """Noise variances of some outputs in the data's units, (d,)."""
        return self._scaled_noise_of(index) * self.output_scale[index].square()

    def _scaled_noise_of(self, index: Tensor) -> Tensor:
        return self.scaled_noise[index] if len(self.scaled_noise) > 1 else self.scaled_noise.expand(len(index))

    def columns(self, lagged: bool = False) -> Iterator[OutputWeights]:
        """q(V) of all outputs, a block of outputs of one group at a time; if ``lagged``, also of the lagged copies,
        which follow the data's own outputs.
        """
        start, stop = 0, max(self.num_outputs, self.data.num_outputs if lagged else 0)
        if self._cached is not None:
            yield from self._cached
            start = self.num_outputs
        step = max(1, _BLOCK // max(self.basis.size, self.data.num_frames))
        for first in range(start, stop, step):
            yield from self._make_columns(first, min(first + step, stop))

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

    def frames(
        self, mean: Tensor, variance: Tensor, excess: Excess | None = None
    ) -> Iterator[tuple[slice, FrameStatistics]]:
        """Expectations for latent points N(mean_n, diag variance_n), (T, Q), some frames at a time.

        :param excess: what the covariances of some points have besides ``variance``. Its effect is linearised.
        """
        step = max(1, _FRAMES // self.basis.size**2)
        for start in range(0, len(mean), step):
            rows = slice(start, min(start + step, len(mean)))
            psi0, psi2 = [], []
            for mu, s in zip(mean[rows].split(_PSI2_FRAMES), variance[rows].split(_PSI2_FRAMES), strict=True):
                mask = torch.eye(len(mu), dtype=mean.dtype, device=mean.device)  # each frame a group of its own
                psi0.append(self.basis.kernel.psi0(mu, s, mask))
                psi2.append(self.basis.psi2(mu, s, mask))
            k = self.whitened(mean[rows], variance[rows])
            more = None if excess is None else self._through(mean[rows], variance[rows], excess.within(rows))
            yield rows, FrameStatistics(torch.cat(psi0), k, whiten(self.factor, torch.cat(psi2)), more)

    def _through(self, mean: Tensor, variance: Tensor, excess: Excess) -> Tensor | None:
        """GᵀΔG of some frames, (T, M, M), zero for those without an excess; None if no frame has one."""
        if not len(excess.frames):
            return None
        slopes = self.slopes(mean[excess.frames], variance[excess.frames])
        total = mean.new_zeros(len(mean), self.basis.size, self.basis.size)
        return total.index_copy_(0, excess.frames, slopes.mT @ excess.covariance @ slopes)

    def slopes(self, mean: Tensor, variance: Tensor) -> Tensor:
        """G, the derivatives of L⁻¹Ψ1ᵀ in the means of latent points, (T, Q, M): ∂E f_d/∂μ = G v̄_d."""
        with torch.enable_grad():
            mean = mean.detach().clone().requires_grad_()
            psi1 = self.basis.psi1(mean, variance.detach())
            parts = [torch.autograd.grad(column.sum(), mean, retain_graph=True)[0] for column in psi1.unbind(-1)]
        slopes = torch.stack(parts, -1)
        return solve_triangular(self.factor, slopes.flatten(0, 1).mT, upper=False).mT.unflatten(0, slopes.shape[:2])

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
        (t, m), products = frames.k.shape, 0
        together: list[OutputWeights] = []
        for part in self.columns():
            if len(part.outputs) * (m + t) < m * t:  # the products of a few outputs cost less than a basis of their own
                products += m * m * len(part.outputs)
                together.append(part)
                if products > _BLOCK:
                    yield self._moments_of_few(frames, spread, rest, together)
                    together, products = [], 0
                continue
            rotated = ((frames.a @ part.basis) * part.basis).sum(-2)  # serves all outputs of the group
            step = max(1, _BLOCK // frames.k.numel())
            for start in range(0, len(part.outputs), step):
                here = slice(start, start + step)
                v, index, scale = part.mean[:, here], part.outputs[here], part.scale[here]
                through = ((spread @ v) * v).sum(-2)
                yield self._finished(frames, rest, index, v, scale, through, rotated @ part.shrink[:, here])
        if together:
            yield self._moments_of_few(frames, spread, rest, together)

    def _moments_of_few(
        self, frames: FrameStatistics, spread: Tensor, rest: Tensor, parts: list[OutputWeights]
    ) -> OutputMoments:
        """The moments of outputs of several groups, by products of matrices of all frames with those of all outputs."""
        v = torch.cat([part.mean for part in parts], 1)
        through = spread.flatten(1) @ (v.mT.unsqueeze(-1) * v.mT.unsqueeze(-2)).flatten(1).mT
        inverses = [(part.basis * part.shrink.mT.unsqueeze(-2)) @ part.basis.mT for part in parts]
        traces = frames.a.flatten(1) @ torch.cat(inverses).flatten(1).mT
        index, scale = (torch.cat(each) for each in zip(*((part.outputs, part.scale) for part in parts), strict=True))
        return self._finished(frames, rest, index, v, scale, through, traces)

    def _finished(
        self, frames: FrameStatistics, rest: Tensor, index: Tensor, v: Tensor, scale: Tensor, through: Tensor,
        traces: Tensor,
    ) -> OutputMoments:  # fmt: skip
        """The moments from tr(A_t v vᵀ) and tr(A_t B⁻¹), (T, d) each."""
        variance = torch.addcmul(through.clamp_min(0.0), rest.unsqueeze(-1) + traces, scale.square())
        return OutputMoments(index, v, frames.k @ v + self.output_mean[index], variance)

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
