# SPDX-License-Identifier: Apache-2.0
r"""Residuals that are correlated in time, carried over a sequence.

The model assumes white noise. Real residuals y − f are often not white: in one recording, a walker's knee bends a
little more than the mapping predicts in all frames. With a kernel of time k, the noise of an output in a sequence is

.. math:: e_d(t) \sim GP\big(0, σ_d^2 ρ(t, t')\big), \qquad ρ(t, t') = k(t, t') / \sqrt{k(t, t)\, k(t', t')},

with the variance of the white noise. Given residuals r at the frames O of the sequence in which the output was
observed,

.. math:: E\, e_d(t_*) = ρ_{*O} ρ_{OO}^{-1} r_O, \qquad V e_d(t_*) = σ_d^2 (1 - ρ_{*O} ρ_{OO}^{-1} ρ_{O*}).

q(X) and q(U) are those of white noise: the residuals are a second step and not part of the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.kernels import Kernel, KernelValue
from pyro_vgpds.linalg import cholesky
from pyro_vgpds.mapping.inducing import InducingPosterior

__all__ = ["Correlation", "Residuals", "pair_frames", "training_frames"]


class Correlation:
    """ρ of a kernel of time whose parameters are single numbers."""

    def __init__(self, kernel: KernelValue) -> None:
        self.kernel = kernel

    @classmethod
    def read(cls, kernel: object, t: Tensor) -> Correlation:
        """The correlation of a kernel module, at its current parameters.

        :raises TypeError: if it is not a kernel of time.
        :raises ValueError: if a parameter has a prior, or one value for each latent dimension.
        """
        value = kernel() if isinstance(kernel, Kernel) else None
        if not isinstance(kernel, Kernel) or not isinstance(value, KernelValue):
            raise TypeError(f"residual must be a kernel of time such as Bias() + White(), but got {kernel!r:.80}.")
        if any(leaf.prior(name) is not None for leaf in kernel.leaves() for name in leaf.parameter_names):
            raise ValueError(f"residual must have numbers as parameters, not priors, but got {kernel}.")
        if value.diag(t[:1]).numel() != 1:
            raise ValueError(f"residual must have one number for each parameter, but got {kernel}.")
        return cls(value)

    def of(self, t: Tensor) -> Tensor:
        """(n, n), with the white part on the diagonal."""
        return self._scaled(self.kernel.gram(t), t, t).fill_diagonal_(1.0)

    def between(self, a: Tensor, b: Tensor) -> Tensor:
        """(n, m), between different frames."""
        return self._scaled(self.kernel.gram(a, b), a, b)

    def _scaled(self, gram: Tensor, a: Tensor, b: Tensor) -> Tensor:
        # a frame at which the kernel has no variance, such as t = 0 of Linear, is independent of all others
        variances = (self.kernel.diag(t).to(t).reshape(-1) for t in (a, b))
        left, right = (torch.where(v > torch.finfo(v.dtype).tiny, v.rsqrt(), 0.0) for v in variances)
        return left.unsqueeze(-1) * gram.to(a).reshape(len(a), len(b)) * right


def training_frames(data: Sequences, sequence: int | None) -> Tensor:
    """The rows of a training sequence, (n,); empty for a new sequence."""
    rows = slice(0, 0) if sequence is None else data.times.slices()[sequence]
    return torch.arange(rows.start, rows.stop, device=data.device)


def pair_frames(data: Sequences, new: Sequences, belongs: Sequence[int | None]) -> list[tuple[Tensor, Tensor]]:
    """For each sequence the rows that belong to it in ``data`` joined with ``new``, and its rows in ``new``."""
    together: dict[tuple[bool, int], list[Tensor]] = {}
    for i, (rows, sequence) in enumerate(zip(new.times.slices(), belongs, strict=True)):
        frames = torch.arange(rows.start, rows.stop, device=new.device)
        together.setdefault((False, i) if sequence is None else (True, sequence), []).append(frames)
    pairs = []
    for (trained, sequence), parts in together.items():
        target = torch.cat(parts)
        old = training_frames(data, sequence if trained else None)
        pairs.append((torch.cat([old, data.num_frames + target]), target))
    return pairs


class Residuals:
    """Residuals at frames of the data, and their predictions for new frames in the same sequences.

    :param t_new: times of the frames to predict, (T,).
    :param sequences: for each sequence the rows of the data that belong to it (n,), and its new frames.
    """

    def __init__(
        self,
        correlation: Correlation,
        inducing: InducingPosterior,
        t_new: Tensor,
        sequences: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        self.correlation, self.inducing, self.t_new = correlation, inducing, t_new.double()
        self.sequences = list(sequences)

    def _parts(self, index: Tensor, v: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """New frames (T,), outputs (d,) observed in the same n frames of their sequence, E e (T, d), and H (n, T) with
        Cov e / σ² = ρ_{**} − HᵀH.
        """
        data, first = self.inducing.data, int(index.min())
        y = data.read(first, int(index.max()) + 1)[:, index - first] - self.inducing.output_mean[index]
        for rows, target in self.sequences:
            t, left = data.times.in_double.t[rows], y[rows] - self.inducing.at_data(rows) @ v
            for seen, outputs in _patterns(torch.isfinite(left)):
                factor = self._factor(t[seen])
                told = solve_triangular(factor, left[seen][:, outputs], upper=False)
                cross = self.correlation.between(t[seen], self.t_new[target])
                h = solve_triangular(factor, cross, upper=False)
                yield target, outputs, h.mT @ told, h

    def _factor(self, t: Tensor) -> Tensor:
        return cholesky(self.correlation.of(t), "the correlation of residuals") if len(t) else t.new_zeros(0, 0)

    def moments(self, index: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """E e and V e / σ², (T, d) each, of the outputs ``index`` (d,), whose q(V) has the mean ``v`` (M, d)."""
        mean = v.new_zeros(len(self.t_new), len(index))
        share = torch.ones_like(mean)
        for target, outputs, part, h in self._parts(index, v):
            mean[target.unsqueeze(-1), outputs] = part
            share[target.unsqueeze(-1), outputs] = (1.0 - h.square().sum(0)).clamp_min(0.0).unsqueeze(-1)
        return mean, share

    def sample(self, num_samples: int) -> Tensor:
        """Draws of e, (num_samples, T, D), coherent in time."""
        draws = self.t_new.new_empty(num_samples, len(self.t_new), self.inducing.num_outputs)
        for part in self.inducing.columns():
            scale = self.inducing.noise_of(part.outputs).sqrt()
            for target, outputs, mean, h in self._parts(part.outputs, part.mean):
                covariance = self.correlation.of(self.t_new[target]) - h.mT @ h
                root = cholesky(covariance, "the correlation of new residuals")
                noise = root @ torch.randn(num_samples, *mean.shape, dtype=mean.dtype, device=mean.device)
                draws[:, target.unsqueeze(-1), part.outputs[outputs]] = mean + scale[outputs] * noise
        return draws


def _patterns(seen: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The distinct columns (n,) of a mask (n, d), and the indices of the columns that are equal to each."""
    if not len(seen):
        yield seen[:, 0], torch.arange(seen.shape[1], device=seen.device)
        return
    patterns, member = seen.unique(dim=1, return_inverse=True)
    for p in range(patterns.shape[1]):
        yield patterns[:, p], (member == p).nonzero().squeeze(-1)
