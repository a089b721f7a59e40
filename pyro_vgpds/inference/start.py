# SPDX-License-Identifier: Apache-2.0
"""Where training starts: latent points, kernels and noise read off the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, is_whole
from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.shards import total_sizes
from pyro_vgpds.data.times import Times
from pyro_vgpds.inference.oscillations import average_cycle, harmonics, oscillates, oscillator, slow_path
from pyro_vgpds.inference.partial_cycle import partial_cycle
from pyro_vgpds.inference.pca import kmeans, pca, split_pca
from pyro_vgpds.inference.scales import choose_scales, longest, main_cycle, repeated_cycle
from pyro_vgpds.kernels import ARDRBF, ARDLinear, Bias, Cosine, Kernel, Matern32, White
from pyro_vgpds.temporal.distributions import TemporalGP
from pyro_vgpds.threads import threads_for

__all__ = ["Sizes", "Start", "check_start", "default_temporal", "draw_inducing", "find_start", "start_kernels"]

_NOISE = 0.01  # initial share of noise in the outputs' variance, as in the authors' code
# Precision of the latent points as observations, whose posterior under the temporal prior is the first q(X).
_SITE_PRECISION = 10.0
_LATENT = 40  # latent dimensions, if there are as many outputs
# Sum of the first weights of the mapping: small, so that it starts almost linear and becomes as nonlinear as it must.
_WEIGHTS = 0.2
_SMOOTH = 0.3  # first variance of a path that is added to a slow one, if neither oscillates


@dataclass(frozen=True)
class Start:
    """Latent points from which q(X) starts, and the variances of the scaled outputs."""

    x: Tensor  #: (N, Q), of unit variance
    times: Times  #: of those points
    share: Tensor  #: (Q,), the variance that each dimension explains, relative to the first
    variances: Tensor  #: (D,)
    communicator: Communicator = SINGLE_PROCESS  #: the processes that have the points together

    @property
    def spread(self) -> float:
        """The mean variance of the outputs."""
        return float(self.variances.mean()) or 1.0

    @property
    def span(self) -> float:
        """The longest span of a sequence, of all processes; 1 if there are single frames only."""
        own = max((float(self.times.t[rows][-1] - self.times.t[rows][0]) for rows in self.times.slices()), default=0.0)
        return self.communicator.all_reduce_max([own])[0] or 1.0

    def noise(self, per_output: bool) -> Tensor:
        """The first noise variance, () or (D,)."""
        # a constant output has no variance of its own; too little noise on it would dominate the first bound
        each = torch.where(self.variances > 1e-10 * self.spread, self.variances, self.spread)
        each = each.clamp_min(1e-4 * self.spread)
        return _NOISE * (each if per_output else self.x.new_tensor(self.spread))

    @property
    def cycle(self) -> float | None:
        """The period of a single sequence with a clear cycle, or that repeats after a large part of its length."""
        if not self._is_alone:
            return None
        points = self.x * self.share.sqrt()
        part = main_cycle(self.times, points)
        whole = repeated_cycle(self.times, points, part)
        return part if whole is None else whole

    def cycle_of_some(self, data: Sequences) -> float | None:
        """The period of a single sequence with a cycle in some of its outputs, which the points need not show."""
        return partial_cycle(data) if self._is_alone else None

    def cycle_of(self, average: Tensor, data: Sequences) -> float | None:
        """The period of a single sequence with a cycle in the average of its functions, (N,), or in some of them."""
        found = average_cycle(self.times, average, data.time_origin is not None) if self._is_alone else None
        return self.cycle_of_some(data) if found is None else found

    @property
    def oscillates(self) -> bool:
        """False for a single sequence that a smooth path predicts better than an oscillation of each dimension."""
        return oscillates(self.times, self.x * self.share.sqrt()) if self._is_alone else True

    @property
    def _is_alone(self) -> bool:
        return self.communicator.size == 1 and len(self.times.lengths) == 1

    def sites(self, prior: TemporalGP) -> tuple[Tensor, Tensor]:
        """mean_bar and lam (N, Q) of the prior's posterior given noisy observations of the points.

        With sites of precision λ at x the mean is μ = S λ x, so mean_bar = K⁻¹ μ = λ (x − μ): no inverse of K_t.
        """
        x = self.x.to(prior.times.t)
        lam = torch.full_like(x, _SITE_PRECISION)
        return lam * (x - prior.covariance.gain(lam, lam.sqrt() * x)), lam


def default_temporal(start: Start, data: Sequences, average: Tensor | None = None) -> Kernel:
    """The temporal kernel for data.

    A single sequence can be forecast by its rhythms. If it has a clear cycle, the kernel is that cycle with two
    harmonics, which changes over several periods, plus a path that changes within one. If not, it is a noisy oscillator
    for each dimension if that predicts frames that the dimensions do not come from, else a plain Matérn path. Several
    sequences have the oscillators. All have a slow path in addition, from whose level and trend forecasts continue.

    Functions of discrete outputs have a plain Matérn path, because noisy counts do not show other rhythms. A single
    sequence has a cycle in addition if the average of all functions has one. Its periods are fixed: few seasons of
    noisy counts would pull them apart.

    :param average: of the functions of discrete outputs, (N,). Default: the outputs are not discrete.
    """
    period = start.cycle if average is None else start.cycle_of(average, data)
    path: Kernel
    if average is not None:
        path = Matern32() if period is None else harmonics(period, is_fixed=True) + Matern32()
    elif period is not None:
        path = harmonics(period) + Matern32(lengthscale=period)
    else:
        own, oscillates = start.cycle_of_some(data), start.oscillates
        if own is None:
            path = oscillator() if oscillates else Matern32(_SMOOTH)
        else:
            path = harmonics(own) + (oscillator() if oscillates else Matern32(lengthscale=own))
    if average is None:
        path = path + slow_path(start.span)
    return path + White(1e-2) + Bias(0.1)


def find_start(data: Sequences, latent_dim: int, static_dim: int, mean: Tensor, scale: Tensor) -> Start:
    """The start for data that are centred by ``mean`` and divided by ``scale``, (D,) each."""
    few = min(data.num_frames, data.num_outputs)
    with threads_for(float(data.num_frames) * data.num_outputs * few):
        if static_dim:
            x, share = split_pca(data, latent_dim, static_dim, mean, scale)
        else:
            x, share = pca(data, latent_dim, mean, scale)
    return Start(x, data.times, share, data.output_variances / scale.square(), data.frame_communicator)


def draw_inducing(start: Start, count: int, data: Sequences) -> Tensor:
    """Inducing inputs (M, Q) for data, the same in all processes: k-means centres of the points, from random ones."""
    return data.column_communicator.broadcast(kmeans(start.x, count, communicator=data.frame_communicator))


def start_kernels(
    start: Start, temporal: Kernel, mapping: Kernel, defaults: tuple[bool, bool], static_dim: int
) -> None:
    """Set the parameters that the kernels leave open, and all scales of those that are the library's defaults."""
    default_temporal, default_mapping = defaults
    _start_mapping(mapping, start.share, start.spread, default_mapping)
    moving = len(start.share) - static_dim
    times, points = longest(start.times, start.x, start.communicator)
    choose_scales(temporal, times, points[:, :moving], start.share[:moving])
    if static_dim:
        _slow_down(temporal, start.span, moving, static_dim)
    elif default_temporal:
        temporal.per_dimension(moving)


def _start_mapping(kernel: Kernel, share: Tensor, spread: float, default: bool) -> None:
    """Scales of the default mapping kernel; for a kernel that was given, only the shape of its weights."""
    for leaf in kernel.leaves():
        if default and isinstance(leaf, ARDRBF):
            # x has unit variance, so that the mean variance of f over the data is σ² (1 − e^{−Σw}) approximately
            total = _WEIGHTS
            leaf.set("variance", share.new_tensor(spread / -math.expm1(-total)))
            leaf.set("weight", total / share.sum() * share)
        elif isinstance(leaf, (ARDRBF, ARDLinear)):
            leaf.per_dimension(len(share), "weight")


def _slow_down(kernel: Kernel, span: float, moving: int, static: int) -> None:
    """Give each latent dimension its own temporal parameters, those of the last ``static`` for paths that hardly move:
    the longest lengthscale, most of the variance in a bias, little white noise, little of what has a fixed lengthscale.
    """
    for leaf in kernel.leaves():
        for name in leaf.parameter_names:
            if not leaf.is_learned(name) or (leaf.event_dim(name) and getattr(leaf, name).shape != (moving,)):
                continue  # the user fixed it, or gave a prior or one for each dimension
            value = getattr(leaf, name).detach().expand(moving)
            last = value.mean().expand(static)
            if name == "lengthscale":
                last = last.clamp_min(span)
            elif isinstance(leaf, Cosine) and name == "period":
                last = last.clamp_min(20.0 * span)
            elif isinstance(leaf, Bias):
                last = last.clamp_min(1.0)
            elif isinstance(leaf, White) or leaf.is_fixed("lengthscale"):
                last = 0.1 * last
            leaf.set(name, torch.cat([value, last]))


@dataclass(frozen=True)
class Sizes:
    """Numbers of latent dimensions and inducing inputs; those that are None are chosen for the data."""

    latent_dim: int | None
    num_inducing: int | None
    static_dim: int | None

    def chosen(self, data: Sequences) -> tuple[int, int, int]:
        """All three as numbers.

        The weights of the mapping switch latent dimensions off, and too many cost time only; inducing inputs that are
        too many can fit noise.
        """
        n, sequences = total_sizes(data)
        latent = min(_LATENT, data.num_base_outputs, max(1, n // 3)) if self.latent_dim is None else self.latent_dim
        inducing = min(n, 100, max(50, round(2.0 * math.sqrt(n)))) if self.num_inducing is None else self.num_inducing
        static = min(latent // 5, (sequences - 1) // 3) if self.static_dim is None else self.static_dim
        return latent, inducing, static


def check_start(data: Sequences, sizes: Sizes) -> None:
    """Raise an error if data or sizes do not suit a model; see :meth:`VGPDS.from_data <pyro_vgpds.VGPDS.from_data>`."""
    check_data(data)
    (n, sequences), d = total_sizes(data), data.num_outputs
    latent_dim, num_inducing, static_dim = sizes.latent_dim, sizes.num_inducing, sizes.static_dim
    if latent_dim is not None:
        check_count("latent_dim", latent_dim)
    if latent_dim is not None and latent_dim > d:
        raise ValueError(f"latent_dim must be at most the number of outputs, {d}, but got {latent_dim}.")
    if num_inducing is not None:
        check_count("num_inducing", num_inducing)
        if num_inducing > n:
            raise ValueError(f"num_inducing must be at most the number of frames, {n}, but got {num_inducing}.")
    unseen = (data.output_counts == 0).nonzero().flatten().tolist()
    if unseen:
        raise ValueError(f"outputs {_some(unseen, data.columns)} of data were never observed; drop them.")
    huge = (~torch.isfinite(data.output_variances)).nonzero().flatten().tolist()
    if huge:
        raise ValueError(
            f"outputs {_some(huge, data.columns)} of data have values so large that their variance is not a finite "
            f"number in {data.dtype}. Use another unit, or correct the values."
        )
    if tiny := _underflows(data):
        raise ValueError(
            f"outputs {_some(tiny, data.columns)} of data differ by so little that their variance is zero in "
            f"{data.dtype}. Use another unit."
        )
    rounding = (4.0 * torch.finfo(data.dtype).eps * data.output_means).square()  # the variance of a constant output
    constant = (data.output_variances <= rounding).nonzero().flatten().tolist()
    if n > 1 and len(constant) == d:
        raise ValueError("nothing in data varies: every output has the same value in all its frames.")
    if static_dim is None:
        return
    latent_dim = sizes.chosen(data)[0]
    if not is_whole(static_dim) or not 0 <= static_dim < latent_dim:
        raise ValueError(f"static_dim must be a whole number from 0 to latent_dim - 1, but got {static_dim!r}.")
    if static_dim >= max(1, sequences):
        raise ValueError(f"static_dim={static_dim} needs more than {static_dim} sequences, but data has {sequences}.")


def _underflows(data: Sequences) -> list[int]:
    """The outputs that vary, but whose variance is too small for a number of full precision."""
    least = torch.finfo(data.dtype).tiny
    small = (data.output_variances < least) & (data.output_means.abs() < math.sqrt(least))
    parts = ((i, data.read(i, i + 1)) for i in small.nonzero().flatten().tolist())
    return [i for i, part in parts if len(part[torch.isfinite(part)].unique()) > 1]


def _some(indices: list[int], names: list[str] | None) -> str:
    shown = [str(i) if not names else f"{i} ({names[i]!r})" for i in indices[:5]]
    return ", ".join(shown) + (f" and {len(indices) - 5} more" if len(indices) > 5 else "")
