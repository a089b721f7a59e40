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
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import Kernel, KernelValue
from pyro_vgpds.kernels.constant import WhiteValue
from pyro_vgpds.kernels.values import SumValue
from pyro_vgpds.linalg import cholesky
from pyro_vgpds.mapping.inducing import InducingPosterior
from pyro_vgpds.mapping.psi import MappingValue
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.paths import GaussianPath

__all__ = ["Correlation", "Residuals", "every_frame", "pair_frames", "path_at", "training_frames", "weights_of"]

_KNOWN = 1e10  # precision of a known residual, relative to its variance


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

    def split(self) -> tuple[KernelValue, Tensor] | None:
        """The kernel without its white terms, and their variance; None if it is no sum of white noise and others."""
        terms = _terms(self.kernel)
        rest = [term for term in terms if not isinstance(term, WhiteValue)]
        if not rest or len(rest) == len(terms):
            return None
        white = sum(term.variance.sum() for term in terms if isinstance(term, WhiteValue))
        return rest[0] if len(rest) == 1 else SumValue(rest), torch.as_tensor(white).double()

    def deviations(self, t: Tensor) -> Tensor:
        """The kernel's standard deviations, (n,)."""
        return self.kernel.diag(t).to(t).reshape(-1).sqrt()

    def _scaled(self, gram: Tensor, a: Tensor, b: Tensor) -> Tensor:
        left, right = (_inverse(self.deviations(t)) for t in (a, b))
        return left.unsqueeze(-1) * gram.to(a).reshape(len(a), len(b)) * right

    def chain(self, t: Tensor, left: Tensor, t_new: Tensor) -> GaussianPath | None:
        """The path at new times (T,), with the kernel's own variances, given residuals (n, d) of unit variance at times
        t (n,): in O(n + T), whatever the patterns of observed frames. None if the kernel has no state-space form.
        """
        if self.kernel.state_dim is None:
            return None
        deviation = self.deviations(t).unsqueeze(-1)
        lam = torch.isfinite(left) * (_KNOWN * _inverse(deviation).square())
        return path_at(self.kernel, t, lam * deviation * left.nan_to_num(0.0), lam, t_new)


def path_at(kernel: KernelValue, t: Tensor, eta: Tensor, lam: Tensor, t_new: Tensor) -> GaussianPath:
    """Paths with a kernel at new times (T,), given Gaussian factors exp(η x − ½ λ x²) (n, d) at times t (n,)."""
    merged, order = torch.cat([t, t_new]).sort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    structure = "dense" if kernel.state_dim is None else "markov"
    prior = TemporalGP(kernel, Times(merged), lam.shape[1], structure=structure)
    eta, lam = (torch.nn.functional.pad(x, (0, 0, 0, len(t_new)))[order] for x in (eta, lam))
    return OpperArchambeau.from_natural(prior, eta, lam).frames(place[len(t) :])


def _terms(value: KernelValue | MappingValue) -> list[KernelValue]:
    """The terms of a sum, and of the sums in it."""
    if isinstance(value, SumValue):
        return [term for part in value.parts for term in _terms(part)]
    return [value] if isinstance(value, KernelValue) else []


def _inverse(deviation: Tensor) -> Tensor:
    # a frame at which the kernel has no variance, such as t = 0 of Linear, is independent of all others
    return torch.where(deviation.square() > torch.finfo(deviation.dtype).tiny, 1.0 / deviation, 0.0)


def training_frames(data: Sequences, sequence: int | None) -> Tensor:
    """The rows of a training sequence, (n,); empty for a new sequence."""
    rows = slice(0, 0) if sequence is None else data.times.slices()[sequence]
    return torch.arange(rows.start, rows.stop, device=data.device)


def every_frame(data: Sequences) -> list[tuple[Tensor, Tensor]]:
    """For each training sequence its rows, twice: all of its frames are new ones, too."""
    return [(rows, rows) for rows in (training_frames(data, s) for s in range(data.num_sequences))]


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


def weights_of(inducing: InducingPosterior) -> Tensor:
    """The mean of q(V) of all outputs, (M, D)."""
    v = inducing.factor.new_empty(inducing.basis.size, inducing.num_outputs)
    for part in inducing.columns():
        v[:, part.outputs] = part.mean
    return v


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

    def _left(self, index: Tensor, v: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each sequence the times (n,), residuals (n, d) and new frames (T,) of the outputs ``index``."""
        data, first = self.inducing.data, int(index.min())
        y = data.read(first, int(index.max()) + 1)[:, index - first] - self.inducing.output_mean[index]
        for rows, target in self.sequences:
            yield data.times.in_double.t[rows], y[rows] - self.inducing.at_data(rows) @ v, target

    def _parts(self, t: Tensor, left: Tensor, t_new: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Outputs (d,) observed in the same n frames of a sequence, E e (T, d), and H (n, T) with
        Cov e / σ² = ρ_{**} − HᵀH.
        """
        for seen, outputs in _patterns(torch.isfinite(left)):
            factor = self._factor(t[seen])
            told = solve_triangular(factor, left[seen][:, outputs], upper=False)
            h = solve_triangular(factor, self.correlation.between(t[seen], t_new), upper=False)
            yield outputs, h.mT @ told, h

    def _factor(self, t: Tensor) -> Tensor:
        return cholesky(self.correlation.of(t), "the correlation of residuals") if len(t) else t.new_zeros(0, 0)

    def moments(self, index: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """E e and V e / σ², (T, d) each, of the outputs ``index`` (d,), whose q(V) has the mean ``v`` (M, d)."""
        mean = v.new_zeros(len(self.t_new), len(index))
        share = torch.ones_like(mean)
        for t, left, target in self._left(index, v):
            t_new = self.t_new[target]
            if (path := self.correlation.chain(t, left, t_new)) is not None:
                scale = self._scale(t_new)
                mean[target] = path.mean * scale
                share[target] = torch.where(scale > 0.0, path.variance * scale.square(), 1.0)
                continue
            for outputs, part, h in self._parts(t, left, t_new):
                mean[target.unsqueeze(-1), outputs] = part
                share[target.unsqueeze(-1), outputs] = (1.0 - h.square().sum(0)).clamp_min(0.0).unsqueeze(-1)
        return mean, share

    def sample(self, num_samples: int) -> Tensor:
        """Draws of e, (num_samples, T, D), coherent in time."""
        draws = self.t_new.new_empty(num_samples, len(self.t_new), self.inducing.num_outputs)
        for part in self.inducing.columns():
            deviation = self.inducing.noise_of(part.outputs).sqrt()
            for t, left, target in self._left(part.outputs, part.mean):
                t_new = self.t_new[target]
                for outputs, drawn in self._draws(t, left / deviation, t_new, num_samples):
                    draws[:, target.unsqueeze(-1), part.outputs[outputs]] = deviation[outputs] * drawn
        return draws

    def _draws(self, t: Tensor, left: Tensor, t_new: Tensor, num_samples: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs (d,) and draws (num_samples, T, d) of unit variance at new times of a sequence."""
        if (path := self.correlation.chain(t, left, t_new)) is not None:
            drawn, scale = path.sample((num_samples,)), self._scale(t_new)
            yield (
                torch.arange(left.shape[1], device=left.device),
                torch.where(scale > 0.0, drawn * scale, torch.randn_like(drawn)),
            )
            return
        for outputs, mean, h in self._parts(t, left, t_new):
            root = cholesky(self.correlation.of(t_new) - h.mT @ h, "the correlation of new residuals")
            noise = torch.randn(num_samples, *mean.shape, dtype=mean.dtype, device=mean.device)
            yield outputs, mean + root @ noise

    def _scale(self, t: Tensor) -> Tensor:
        """One over the kernel's standard deviations, (T, 1)."""
        return _inverse(self.correlation.deviations(t)).unsqueeze(-1)


def _patterns(seen: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The distinct columns (n,) of a mask (n, d), and the indices of the columns that are equal to each."""
    if not len(seen):
        yield seen[:, 0], torch.arange(seen.shape[1], device=seen.device)
        return
    patterns, member = seen.unique(dim=1, return_inverse=True)
    for p in range(patterns.shape[1]):
        yield patterns[:, p], (member == p).nonzero().squeeze(-1)
