# SPDX-License-Identifier: Apache-2.0
"""Where training starts: latent points, kernels and noise read off the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, is_whole
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.pca import pca, split_pca
from pyro_vgpds.kernels import ARDRBF, ARDLinear, Bias, Kernel, KernelValue, White
from pyro_vgpds.temporal.distributions import TemporalGP

__all__ = ["Start", "check_start", "choose_scales", "find_start", "start_kernels"]

_NOISE = 0.01  # initial share of noise in the outputs' variance, as in the authors' code
# Precision of the latent points as observations, whose posterior under the temporal prior is the first q(X).
_SITE_PRECISION = 10.0
_SCALE_FRAMES = 400  # frames that the choice of temporal lengthscales uses


@dataclass(frozen=True)
class Start:
    """Latent points from which q(X) starts, and the variances of the scaled outputs."""

    x: Tensor  #: (N, Q), of unit variance
    times: Times  #: of those points
    share: Tensor  #: (Q,), the variance that each dimension explains, relative to the first
    variances: Tensor  #: (D,)

    @property
    def spread(self) -> float:
        """The mean variance of the outputs."""
        return float(self.variances.mean()) or 1.0

    def noise(self, per_output: bool) -> Tensor:
        """The first noise variance, () or (D,)."""
        return _NOISE * (self.variances if per_output else self.x.new_tensor(self.spread))

    def sites(self, prior: TemporalGP) -> tuple[Tensor, Tensor]:
        """mean_bar and lam (N, Q) of the prior's posterior given noisy observations of the points.

        With sites of precision λ at x the mean is μ = S λ x, so mean_bar = K⁻¹ μ = λ (x − μ): no inverse of K_t.
        """
        x = self.x.to(prior.times.t)
        lam = torch.full_like(x, _SITE_PRECISION)
        return lam * (x - prior.covariance.gain(lam, lam.sqrt() * x)), lam


def find_start(data: Sequences, latent_dim: int, static_dim: int, mean: Tensor, scale: Tensor) -> Start:
    """The start for data that are centred by ``mean`` and divided by ``scale``, (D,) each."""
    if static_dim:
        x, share = split_pca(data, latent_dim, static_dim, mean, scale)
    else:
        x, share = pca(data, latent_dim, mean, scale)
    return Start(x, data.times, share, data.output_variances / scale.square())


def start_kernels(start: Start, temporal: Kernel, mapping: Kernel, default_mapping: bool, static_dim: int) -> None:
    """Set the parameters that the kernels leave open.

    :param default_mapping: whether the mapping was left to the library, which then sets all its scales.
    """
    _start_mapping(mapping, start.share, start.spread, default_mapping)
    moving = len(start.share) - static_dim
    choose_scales(temporal, start.times, start.x[:, :moving], start.share[:moving])
    if static_dim:
        _slow_down(temporal, start.times, moving, static_dim)


def _start_mapping(kernel: Kernel, share: Tensor, spread: float, default: bool) -> None:
    """Scales of the default mapping kernel; for a kernel that was given, only the shape of its weights."""
    for leaf in kernel.leaves():
        if default and isinstance(leaf, ARDRBF):
            leaf.set("variance", share.new_tensor(spread)).set("weight", share)
        elif isinstance(leaf, (ARDRBF, ARDLinear)):
            leaf.per_dimension(len(share), "weight")


def _slow_down(kernel: Kernel, times: Times, moving: int, static: int) -> None:
    """Give each latent dimension its own temporal parameters, those of the last ``static`` for paths that hardly move:
    the longest lengthscale, most of the variance in a bias, little white noise.
    """
    span = max(float(times.t[s][-1] - times.t[s][0]) for s in times.slices())
    for leaf in kernel.leaves():
        for name in leaf.parameter_names:
            if not leaf.is_learned(name) or leaf.event_dim(name):
                continue  # the user fixed it, or gave a prior or one for each dimension
            last = value = getattr(leaf, name).detach()
            if name == "lengthscale":
                last = torch.maximum(value, value.new_tensor(span))
            elif isinstance(leaf, Bias):
                last = torch.maximum(value, torch.ones_like(value))
            elif isinstance(leaf, White):
                last = 0.1 * value
            leaf.set(name, torch.cat([value.expand(moving), last.expand(static)]))


def choose_scales(kernel: Kernel, times: Times, x: Tensor, share: Tensor) -> None:
    """Set the lengthscales and periods that ``kernel`` leaves open to those under which the points are most likely.

    The points x (N, Q) are unit-variance paths, weighted by their share (Q,) of the outputs' variance because the last
    ones are often noise. The search uses the first frames of the longest sequences and a grid from the typical step to
    the span of the times. All open lengthscales get the same value.
    """
    open_leaves = [leaf for leaf in kernel.leaves() if leaf.unset]
    longest = max(times.lengths)
    if not open_leaves or longest < 3:
        return
    head, points = _head(times, x)
    steps = torch.cat([head.t[rows].diff() for rows in head.slices()])
    step, span = float(steps.median()), float(max(head.t[rows][-1] - head.t[rows][0] for rows in head.slices()))
    periodic = [leaf for leaf in open_leaves if "period" in leaf.unset]
    scaled = [leaf for leaf in open_leaves if "lengthscale" in leaf.unset]
    for leaf in periodic:
        _choose(leaf, "period", _dominant_period(head, points * share.sqrt(), step, span), x)
    grid = torch.logspace(math.log10(step), math.log10(max(span, 2.0 * step)), 12, dtype=torch.float64)
    if scaled:
        best = max(grid.tolist(), key=lambda scale: _evidence(kernel, scaled, scale, head, points, share))
        _set_lengthscales(scaled, best, x)
    for leaf in open_leaves:
        leaf.unset.clear()


def _set_lengthscales(leaves: list[Kernel], scale: float, like: Tensor) -> None:
    for leaf in leaves:
        _choose(leaf, "lengthscale", scale, like)


def _choose(leaf: Kernel, name: str, value: float, like: Tensor) -> None:
    """Set a parameter that was left open; a fixed one stays fixed, at this value."""
    fixed = leaf.is_fixed(name)
    leaf.set(name, like.new_tensor(value))
    if fixed:
        leaf.fix(name)


def _evidence(kernel: Kernel, leaves: list[Kernel], scale: float, times: Times, x: Tensor, share: Tensor) -> float:
    """Weighted log-likelihood of the points as observations of the prior with a tenth of their variance as noise."""
    _set_lengthscales(leaves, scale, x)
    square, logdet = TemporalGP(_PlusNoise(kernel(), 0.1), times, x.shape[1]).covariance.whiten(x)
    return -float((share * (square + logdet)).sum())


class _PlusNoise(KernelValue):
    """A kernel value with more white noise."""

    def __init__(self, value: KernelValue, noise: float) -> None:
        self.value, self.noise = value, noise

    def gram(self, t: Tensor, other: Tensor | None = None) -> Tensor:
        return self.value.gram(t, other) + self.noise * torch.eye(t.shape[-1], dtype=t.dtype, device=t.device)


def _head(times: Times, x: Tensor) -> tuple[Times, Tensor]:
    """The first frames of the longest sequences, at most ``_SCALE_FRAMES`` in all."""
    rows, lengths, left = [], [], _SCALE_FRAMES
    for part in sorted(times.slices(), key=lambda s: s.start - s.stop):
        take = min(left, part.stop - part.start)
        if take < 2:
            break
        rows.append(torch.arange(part.start, part.start + take, device=x.device))
        lengths.append(take)
        left -= take
    index = torch.cat(rows)
    return Times(times.t[index], lengths), x[index]


def _dominant_period(times: Times, x: Tensor, step: float, span: float) -> float:
    """The period of the sinusoid that fits the components of the longest sequence best (least squares)."""
    rows = times.slices()[0]
    t, y = times.t[rows] - times.t[rows][0], x[rows] - x[rows].mean(0)
    frequencies = torch.linspace(1.0 / span, 0.5 / step, max(8, min(2000, 4 * len(t))), dtype=t.dtype, device=t.device)
    angle = 2.0 * math.pi * frequencies.unsqueeze(-1) * t
    basis = torch.stack([angle.cos(), angle.sin()], -1)  # (F, n, 2)
    normal = basis.mT @ basis + 1e-6 * len(t) * torch.eye(2, dtype=t.dtype, device=t.device)
    explained = basis.mT @ y
    power = (explained * torch.linalg.solve(normal, explained)).sum((-2, -1))
    return float(1.0 / frequencies[power.argmax()])


def check_start(
    data: object, latent_dim: int, num_inducing: int | None, static_dim: int, noise_per_output: bool
) -> None:
    """Raise an error if data or sizes do not suit a model; see :meth:`VGPDS.from_data <pyro_vgpds.VGPDS.from_data>`."""
    if not isinstance(data, Sequences):
        raise TypeError(f"data must be Sequences(t, y), but got {type(data).__name__}.")
    n, d = data.num_frames, data.num_outputs
    if d == 0:
        raise ValueError("data has times but no outputs: create it with Sequences(t, y).")
    check_count("latent_dim", latent_dim)
    if latent_dim > d:
        raise ValueError(f"latent_dim must be at most the number of outputs, {d}, but got {latent_dim}.")
    if num_inducing is not None:
        check_count("num_inducing", num_inducing)
        if num_inducing > n:
            raise ValueError(f"num_inducing must be at most the number of frames, {n}, but got {num_inducing}.")
    unseen = (data.output_counts == 0).nonzero().flatten().tolist()
    if unseen:
        raise ValueError(f"outputs {_some(unseen, data.columns)} of data were never observed; drop them.")
    constant = (data.output_variances <= _rounding(data)).nonzero().flatten().tolist()
    if n > 1 and len(constant) == d:
        raise ValueError("nothing in data varies: every output has the same value in all its frames.")
    if noise_per_output and constant:
        raise ValueError(
            f"noise_per_output needs outputs that vary, but {_some(constant, data.columns)} are constant: drop them."
        )
    if not is_whole(static_dim) or not 0 <= static_dim < latent_dim:
        raise ValueError(f"static_dim must be a whole number from 0 to latent_dim - 1, but got {static_dim!r}.")
    if static_dim >= max(1, data.num_sequences):
        raise ValueError(
            f"static_dim={static_dim} needs more than {static_dim} sequences, but data has {data.num_sequences}."
        )


def _rounding(data: Sequences) -> Tensor:
    """The variance of a constant output by rounding alone."""
    return (4.0 * torch.finfo(data.dtype).eps * data.output_means).square()


def _some(indices: list[int], names: list[str] | None) -> str:
    shown = [str(i) if not names else f"{i} ({names[i]!r})" for i in indices[:5]]
    return ", ".join(shown) + (f" and {len(indices) - 5} more" if len(indices) > 5 else "")
