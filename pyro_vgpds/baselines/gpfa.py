# SPDX-License-Identifier: Apache-2.0
"""Gaussian process factor analysis (Yu et al. 2009), trained by expectation maximisation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import Filled, Gaps
from pyro_vgpds.checks import check_count, check_number
from pyro_vgpds.data.filling import patterns
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["GPFA"]

_NUGGET = 1e-3  # share of white noise in each factor, as in the paper of GPFA
_RIDGE = 1e-2  # precision of the loadings relative to the noise, in units in which outputs have variance one
_LEAST = 1e-3  # lower limit of the noise, in the same units
_TRIALS = torch.tensor([-0.05, 0.0, 0.05], dtype=torch.float64)  # changes of a log lengthscale that are tried
_RELAXATION = 1.9  # EM is slow for lengthscales; steps that are twice as long or longer need not converge
_LARGEST = 0.4  # change of a log lengthscale in one step


@dataclass(frozen=True)
class GPFA:
    """y_n = C x(t_n) + d + N(0, R) with a diagonal R, where each of the K factors is a Gaussian process of time with an
    RBF kernel and a lengthscale of its own. All sequences share the parameters. Fields are float64.

    >>> from pyro_vgpds.baselines import GPFA
    >>> model = GPFA.fit(data, num_factors=2, num_steps=5)
    >>> model.loadings.shape, len(model.latent(data)), model.latent(data)[0].shape
    (torch.Size([5, 2]), 2, torch.Size([25, 2]))
    """

    loadings: Tensor  #: C (D, K)
    offset: Tensor  #: d (D,)
    noise: Tensor  #: the diagonal of R (D,)
    lengthscale: Tensor  #: (K,)

    @classmethod
    def fit(
        cls,
        t: DataLike | Sequences,
        y: DataLike | None = None,
        num_factors: int = 8,
        num_steps: int = 50,
        lengthscale: float | None = None,
    ) -> GPFA:
        """Train by EM, starting from the principal components.

        A sequence of n frames costs O((K n)³); sequences with the same times and the same missing entries share it.

        :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
        :param y: outputs (N, D) with NaN, or a list of them.
        :param num_factors: K, at most D.
        :param num_steps: number of EM steps.
        :param lengthscale: initial lengthscale. Default: a fifth of the longest sequence.
        :raises ValueError: as :class:`~pyro_vgpds.Sequences`, and if a column was never observed, or ``num_factors``
            is larger than D.
        """
        check_count("num_factors", num_factors)
        check_count("num_steps", num_steps)
        gaps = Gaps(t, y)
        if num_factors > gaps.y.shape[1]:
            raise ValueError(f"num_factors must be at most {gaps.y.shape[1]}, the outputs, but got {num_factors}.")
        if lengthscale is None:
            lengthscale = 0.2 * max(float(gaps.t[rows][-1] - gaps.t[rows][0]) for rows in gaps.rows) or 1.0
        check_number("lengthscale", lengthscale, "positive", lambda value: value > 0)
        spread = gaps.spread
        z = (gaps.y - gaps.means) / spread
        _, s, v = torch.linalg.svd(z.nan_to_num(0.0), full_matrices=False)
        loadings = (v * s.unsqueeze(-1))[:num_factors].mT / len(z) ** 0.5
        noise = (1.0 - loadings.square().sum(1)).clamp_min(0.1)
        model = cls(loadings, torch.zeros_like(noise), noise, torch.full((num_factors,), float(lengthscale)).to(z))
        for _ in range(num_steps):
            model = _maximise(model, gaps, z)
        return replace(
            model,
            loadings=model.loadings * spread.unsqueeze(-1),
            offset=model.offset * spread + gaps.means,
            noise=model.noise * spread.square(),
        )

    def latent(self, t: DataLike | Sequences, y: DataLike | None = None) -> Filled:
        """Posterior means of the factors (N, K), or a list of them, without training.

        :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
        :param y: outputs (N, D) with NaN, or a list of them. A column may be hidden in all frames.
        :raises ValueError: as :class:`~pyro_vgpds.Sequences`, and if there are not D columns.
        """
        gaps = self._read(t, y)
        return gaps.shape(self._factors(gaps))

    def predict(self, t: DataLike | Sequences, y: DataLike | None = None) -> Filled:
        """Means (N, D) of all outputs, or a list of them. Parameters and errors as in :meth:`latent`."""
        gaps = self._read(t, y)
        return gaps.shape(self._factors(gaps) @ self.loadings.mT + self.offset)

    def fill(self, t: DataLike | Sequences, y: DataLike | None = None) -> Filled:
        """The outputs with means in place of NaN. Parameters and errors as in :meth:`latent`."""
        gaps = self._read(t, y)
        return gaps.fill(self._factors(gaps) @ self.loadings.mT + self.offset)

    def _read(self, t: DataLike | Sequences, y: DataLike | None) -> Gaps:
        gaps = Gaps(t, y, hidden_columns=True)
        if gaps.y.shape[1] != len(self.offset):
            raise ValueError(f"y must have {len(self.offset)} columns, but got {gaps.y.shape[1]}.")
        return gaps

    def _factors(self, gaps: Gaps) -> Tensor:
        means = gaps.y.new_zeros(len(gaps.y), self.loadings.shape[1])
        for _, rows, mean, _ in self._posteriors(gaps, gaps.y):
            means[rows] = mean
        return means

    def _posteriors(self, gaps: Gaps, y: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Groups of sequences with the same times and missing entries of y (N, D): times (n,), rows (S, n) of the data,
        means (S, n, K), and the covariance (K, n, K, n) that they share.
        """
        groups: dict[tuple[bytes, bytes], list[slice]] = {}
        for rows in gaps.rows:
            t = gaps.t[rows] - gaps.t[rows][0]
            groups.setdefault((t.numpy().tobytes(), gaps.seen[rows].numpy().tobytes()), []).append(rows)
        for members in groups.values():
            index = torch.stack([torch.arange(part.start, part.stop) for part in members])
            t, seen = gaps.t[index[0]] - gaps.t[index[0, 0]], gaps.seen[index[0]]
            yield t, index, *self._smooth(t, seen, y[index])

    def _smooth(self, t: Tensor, seen: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior of the factors: with K = LLᵀ and BBᵀ = I + LᵀWL, the covariance is (L B⁻ᵀ)(L B⁻ᵀ)ᵀ."""
        n, k = len(t), self.loadings.shape[1]
        weighted = torch.where(seen.unsqueeze(-1), self.loadings / self.noise.unsqueeze(-1), 0.0)  # (n, D, K)
        w = weighted.mT @ self.loadings  # (n, K, K)
        right = torch.einsum("ndk,snd->skn", weighted, (y - self.offset).nan_to_num(0.0))
        root = torch.linalg.cholesky(_kernel(t, self.lengthscale))  # (K, n, n)
        core = torch.einsum("anx,nab,bny->axby", root, w, root).reshape(k * n, k * n)
        core = torch.linalg.cholesky(core + torch.eye(k * n).to(core))
        half = torch.linalg.solve_triangular(core, torch.block_diag(*root).mT, upper=False)
        covariance = half.mT @ half
        mean = (right.reshape(len(y), k * n) @ covariance).reshape(len(y), k, n)
        return mean.mT, covariance.reshape(k, n, k, n)


def _kernel(t: Tensor, lengthscale: Tensor) -> Tensor:
    """(K, n, n)."""
    distance = (t.unsqueeze(-1) - t) / lengthscale[:, None, None]
    return (1.0 - _NUGGET) * torch.exp(-0.5 * distance.square()) + _NUGGET * torch.eye(len(t)).to(t)


def _maximise(model: GPFA, gaps: Gaps, y: Tensor) -> GPFA:
    """One EM step on scaled outputs (N, D)."""
    k = model.loadings.shape[1]
    points = y.new_ones(len(y), k + 1)
    normal = y.new_zeros(len(y), k + 1, k + 1)
    scores = torch.zeros(k, len(_TRIALS)).to(y)
    for t, rows, mean, covariance in model._posteriors(gaps, y):
        points[rows, :k] = mean
        normal[rows, :k, :k] = torch.einsum("anbn->nab", covariance)
        second = torch.einsum("kmkn->kmn", covariance) * len(rows) + torch.einsum("smk,snk->kmn", mean, mean)
        for i, change in enumerate(_TRIALS):  # E log p(x) of each factor, up to a constant
            root = torch.linalg.cholesky(_kernel(t, model.lengthscale * change.exp()))
            logdet = 2.0 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            trace = torch.cholesky_solve(second, root).diagonal(dim1=-2, dim2=-1).sum(-1)
            scores[:, i] -= 0.5 * (len(rows) * logdet + trace)
    normal += points.unsqueeze(-1) * points.unsqueeze(-2)
    # each output regressed on (x, 1), over the frames in which it is observed
    columns, column_of = patterns(gaps.seen.mT.contiguous())
    normal = (columns.to(y) @ normal.flatten(1)).unflatten(-1, (k + 1, k + 1))
    normal += _RIDGE * torch.eye(k + 1).to(y)
    filled = y.nan_to_num(0.0)
    right = filled.mT @ points
    c = torch.cholesky_solve(right.unsqueeze(-1), torch.linalg.cholesky(normal)[column_of]).squeeze(-1)
    residual = filled.square().sum(0) - (c * right).sum(1)
    noise = (residual / gaps.seen.sum(0)).clamp_min(_LEAST)
    return GPFA(c[:, :k], c[:, k], noise, model.lengthscale * _change(scores).exp())


def _change(scores: Tensor) -> Tensor:
    """Changes (K,) of log lengthscales: to the maximum of the parabola through the scores (K, 3) of the trials."""
    low, middle, high = scores.unbind(1)
    h = float(_TRIALS[2])
    slope, bend = (high - low) / (2.0 * h), (high - 2.0 * middle + low) / h**2
    newton = torch.where(bend < 0, -slope / bend, slope.sign() * _LARGEST)
    return (_RELAXATION * newton).clamp(-_LARGEST, _LARGEST)
