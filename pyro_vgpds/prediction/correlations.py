# SPDX-License-Identifier: Apache-2.0
r"""Correlations of the latent dimensions within frames of which some outputs are missing.

q(X) has independent latent dimensions. Its variance of a dimension is that with all other dimensions known. As long as
all outputs are observed this is nearly the marginal variance, because the outputs tell the dimensions apart, as
principal components do. A part of the outputs does not: then dimensions are uncertain together, and q is too certain.

With the slopes :math:`J_{nd} = \partial E f_d / \partial \mu_n`, what the observed outputs O_n of a frame tell about
x_n has the precision :math:`Λ_n = \sum_{d \in O_n} β_d J_{nd} J_{nd}^\top`, of which q has the diagonal, its sites λ.
Here its correlations are added, :math:`A_n = λ_n^{1/2}\, \mathrm{corr}(Λ_n)\, λ_n^{1/2}`. For a window of frames, V is
their covariance given the sites of all other frames, which is independent over dimensions. Then their covariance over
frames and dimensions is

.. math:: C = (V^{-1} + A)^{-1} = L (I + L^\top A L)^{-1} L^\top, \qquad V = L L^\top,

exact for a linear mapping with known weights if all frames with missing outputs are in the window. The means of q do
not change: those of a factorised approximation of a Gaussian are exact. Outputs get the variance
:math:`J_{nd}^\top Δ_n J_{nd}` in addition, with the positive part Δ_n of C_nn − diag s_n.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.data.times import Times
from pyro_vgpds.linalg import cholesky, matvec, positive_power
from pyro_vgpds.mapping.inducing import Excess, InducingPosterior
from pyro_vgpds.temporal.distributions import OpperArchambeau

__all__ = ["Correlations", "correlations_of", "covariances"]

_SMALL = 0.02  # relative change of a variance, to first order, below which the dimensions of a frame are independent
_FRAMES = 1 << 22  # largest array of slopes (frames, Q, M)
_SIZE = 1000  # frames by dimensions whose covariance is computed at a time
_LONGEST = 40  # frames of which it is computed at a time
_NEAR = {"markov": 200, "dense": 100}  # frames before and after them that count, by the structure of the prior


class Correlations(NamedTuple):
    """What a path of T frames with independent latent dimensions does not have: Δ, and its draws."""

    excess: Excess  #: Δ of the frames with missing outputs
    path: TorchDistribution  #: the path, (T, Q), which tells how frames are correlated

    @property
    def variance(self) -> Tensor:
        """The diagonals of Δ, (T, Q)."""
        total = torch.zeros_like(self.path.variance)
        return total.index_copy_(0, self.excess.frames, self.excess.covariance.diagonal(dim1=-2, dim2=-1))

    def sample(self, inducing: InducingPosterior, num_samples: int) -> Tensor:
        """Draws of what Δ adds to the outputs, (num_samples, T, D), coherent in time, by the mean of q(U)."""
        (frames, covariance), path = self.excess, self.path
        # a frame whose variance is zero by rounding has no draws to divide
        unit = (path.sample((num_samples,)) - path.mean) / path.variance.clamp_min(1e-300).sqrt()
        moved = matvec(positive_power(covariance, 0.5), unit[:, frames]).unsqueeze(-2) @ inducing.slopes(
            path.mean[frames], path.variance[frames]
        )
        draws = moved.new_zeros(num_samples, len(path.mean), inducing.num_outputs)
        for part in inducing.columns():
            draws[:, frames.unsqueeze(-1), part.outputs] = moved.squeeze(-2) @ part.mean
        return draws


def correlations_of(
    q: OpperArchambeau, inducing: InducingPosterior, rows: Tensor, places: Tensor | None = None
) -> Correlations | None:
    """The correlations of latent dimensions in some frames of q; None if they are independent in all of them.

    :param rows: the rows of the T frames of q in the data of ``inducing``.
    :param places: which of the T frames, in any order. Default: all.
    """
    places = torch.arange(len(rows), device=rows.device) if places is None else places
    index = torch.full_like(rows, -1)
    index[places] = torch.arange(len(places), device=rows.device)
    frames, excess = [], []
    for found, covariance in covariances(q, inducing, rows):
        wanted = index[found] >= 0
        frames.append(index[found[wanted]])
        excess.append(positive_power(covariance[wanted] - torch.diag_embed(q.variance[found[wanted]])))
    if not sum(map(len, frames)):
        return None
    order = torch.cat(frames).argsort()
    return Correlations(Excess(torch.cat(frames)[order], torch.cat(excess)[order]), q.frames(places))


def covariances(q: OpperArchambeau, inducing: InducingPosterior, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """C_nn of frames with missing outputs whose dimensions are correlated, some at a time: their indices (P,) and the
    matrices (P, Q, Q). Parameters as in :func:`correlations_of`.
    """
    every, told = _correlated(q, inducing, rows)
    length = min(_LONGEST, max(4, _SIZE // q.event_shape[-1]))
    for sequence in q.prior.times.slices():
        here = ((every >= sequence.start) & (every < sequence.stop)).nonzero().squeeze(-1)
        for start in range(0, len(here), length // 2):
            first = max(0, start - length // 4)
            window = here[first : start + length // 2 + length // 4]
            inner = slice(start - first, start - first + length // 2)
            others = _given_others(q, every[window], sequence)
            yield every[window[inner]], _joined(others, told[window], inner)


def _correlated(q: OpperArchambeau, inducing: InducingPosterior, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The frames with missing outputs that correlate dimensions, (P,), and their A, (P, Q, Q).

    To first order the correlations change a variance by the factor 1 + Σ_r A_qr² s_q s_r.
    """
    partial = torch.isin(rows, inducing.partial_frames()).nonzero().squeeze(-1)
    roots = list(_roots(inducing)) if len(partial) else []  # D may be in the millions
    frames, kept = [partial[:0]], [q.lam.new_zeros(0, *2 * q.event_shape[-1:])]
    for some in partial.split(max(1, _FRAMES // (q.event_shape[-1] * inducing.basis.size))):
        slopes = inducing.slopes(q.mean[some], q.variance[some])
        told = _told(slopes, [(seen[rows[some]], root) for seen, root in roots], q.lam[some])
        off = told - torch.diag_embed(told.diagonal(dim1=-2, dim2=-1))
        change = matvec(off.square(), q.variance[some]) * q.variance[some]
        strong = change.amax(-1) > _SMALL
        frames.append(some[strong])
        kept.append(told[strong])
    return torch.cat(frames), torch.cat(kept)


def _given_others(q: OpperArchambeau, window: Tensor, sequence: slice) -> Tensor:
    """V, the covariance (Q, P, P) of the frames of a window given the sites of other frames near them."""
    margin = _NEAR.get(q.prior.structure, 0)
    near = slice(max(sequence.start, int(window[0]) - margin), min(sequence.stop, int(window[-1]) + 1 + margin))
    prior = q.prior.at(Times(q.prior.times.t[near], [near.stop - near.start]))
    lam = q.lam[near].index_fill(0, window - near.start, 0.0)
    return OpperArchambeau(prior, torch.zeros_like(lam), lam).covariance_of(window - near.start)


def _roots(inducing: InducingPosterior) -> Iterator[tuple[Tensor, Tensor]]:
    """For groups of outputs, whether they were observed in each frame of the data (N,), and a root of Σ β v̄ v̄ᵀ."""
    for part in inducing.columns(lagged=True):
        root = part.mean / (part.noise.sqrt() * part.scale)
        if root.shape[1] > root.shape[0]:
            root = torch.linalg.qr(root.mT, mode="r").R.mT
        yield inducing.frames_of(int(part.outputs[0])), root  # all outputs of a part are of one group


def _batches(roots: list[tuple[Tensor, Tensor]], columns: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """The roots, as many at a time as have about this number of columns together."""
    batch, total = [], 0
    for seen, root in roots:
        batch.append((seen, root))
        total += root.shape[1]
        if total >= columns:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _told(slopes: Tensor, roots: list[tuple[Tensor, Tensor]], lam: Tensor) -> Tensor:
    """A of frames, (P, Q, Q), of their slopes (P, Q, M), what :func:`_roots` tells about them, and their sites."""
    total = slopes.new_zeros(len(lam), *2 * lam.shape[1:])
    for some in _batches(roots, _FRAMES // max(1, lam.numel())):
        j = slopes @ torch.cat([root for _, root in some], 1)
        seen = torch.cat([weight.unsqueeze(-1).expand(-1, root.shape[1]) for weight, root in some], 1)
        total += (j * seen.unsqueeze(-2)) @ j.mT
    scale = (lam / total.diagonal(dim1=-2, dim2=-1)).sqrt().nan_to_num(0.0, posinf=0.0)
    return scale.unsqueeze(-1) * total * scale.unsqueeze(-2)


def _joined(others: Tensor, told: Tensor, inner: slice) -> Tensor:
    """C_nn of the ``inner`` frames of a window, (p, Q, Q), of V (Q, P, P) and A (P, Q, Q)."""
    q, p = others.shape[:2]
    root = cholesky(others, "the covariance of a latent dimension", None)
    matrix = torch.einsum("qna,nqr,rnb->qarb", root, told, root).reshape(q * p, q * p)
    matrix.diagonal().add_(1.0)
    right = root.new_zeros(q, p, q, len(range(p)[inner]))
    right[torch.arange(q), :, torch.arange(q)] = root[:, inner].mT
    factor = cholesky(matrix, "the precision of latent dimensions")
    white = solve_triangular(factor, right.flatten(2).flatten(0, 1), upper=False)
    white = white.unflatten(-1, (q, -1)).movedim(-1, 0)  # (p, Q P, Q)
    return white.mT @ white
