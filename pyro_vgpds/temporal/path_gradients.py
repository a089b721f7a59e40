# SPDX-License-Identifier: Apache-2.0
r"""q(X) from η and λ with the gradients of the kernel's parameters, without autograd.

It is what :func:`~pyro_vgpds.temporal.markov_autograd.natural_posterior` and :mod:`~pyro_vgpds.temporal.kl` compute. In
small problems the steps of autograd and the operations of torch on N × Q numbers take longer than the recursions; here
compiled code does them for a Markov kernel (``_natural.c``). Of white noise, with k the diagonal of K_t and b = 1 + kλ,

.. math:: \mu = k \bar\mu, \qquad s = k / b, \qquad KL(q, p) = \tfrac12 \sum (\log b + \bar\mu \mu - \lambda s)
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, chunks, run
from pyro_vgpds.kernels import programs
from pyro_vgpds.linalg import default_jitter
from pyro_vgpds.parameters.gradients import has_hooks
from pyro_vgpds.temporal import chains, tiles
from pyro_vgpds.temporal.markov_autograd import Frames
from pyro_vgpds.temporal.rounding import are_digits, lost_digits

__all__ = ["DiagonalPath", "MarkovPath", "PathSource", "diagonal_path", "is_available", "markov_path"]

T = TypeVar("T")


class PathSource(Protocol):
    """What q(X) can be made of."""

    def markov_path(self, eta: Tensor, lam: Tensor) -> MarkovPath | None:
        """q(X) from η and λ, with its gradients; None if they need autograd."""

    def diagonal_path(self, mean_bar: Tensor, log_lam: Tensor) -> DiagonalPath | None:
        """q(X) from mean_bar and the log of λ, which are parameters, with its gradients; None if they need autograd."""


_library = Library(
    f"{__package__}._natural",
    natural_size="p n p",
    natural_forward="p nn r pppppppp",
    natural_backward="p nn pppppppp",
    natural_step="nnn rr pppppppp",
)


is_available = _library.available


class _Plan(ctypes.Structure):
    """The struct ``plan`` of ``_natural.c``."""

    _fields_: ClassVar = [
        *[(name, ctypes.c_long) for name in (
            "frames", "chains", "kernels", "parameters", "steps", "size", "width", "tiles", "whites",
        )],
        *[(name, ctypes.c_void_p) for name in (
            "code", "begins", "place", "step", "pattern", "white_rows", "dt", "h", "states", "states_grad", "run_tiles",
            "run_chains",
        )],
    ]  # fmt: skip


class _Passes:
    """The compiled passes over some frames, forward and back. All tensors are contiguous, float64 and on the CPU.

    A pass is one call for each range of latent dimensions. Their chains do not depend on each other, so that threads
    may divide them.

    :param frames: of a program.
    :param num_parameters: P.
    :param num_kernels: K, 1 or Q.
    :param num_chains: Q.
    """

    def __init__(self, frames: Frames, num_parameters: int, num_kernels: int, num_chains: int) -> None:
        program, own, (count, width) = frames.program, frames.own, frames.own_h.shape
        white = torch.tensor(program.white, dtype=torch.int64)
        shape = count, num_chains, num_kernels, num_parameters
        sizes = len(own.dt), own.size, width, frames.count if frames.is_tiled else 0, len(white)
        numbers = program.code, own.begins, own.place, frames.step, chains.pattern(frames.blocks), white
        pointers = [x.data_ptr() for x in (*numbers, own.dt, frames.own_h)]
        self._plan = _Plan(*shape, *sizes, *pointers, *programs.entries(), tiles.entry(), chains.entry())
        self._address, self._kept = ctypes.addressof(self._plan), (*numbers, own.dt, frames.own_h)
        self._num_chains, self._unit = num_chains, 1 if frames.is_tiled else chains.lanes(width)
        self._work = chains.FRAME_WORK * num_chains * count * width * width
        self._sizes: dict[int, int] = {}

    def ranges(self) -> list[tuple[int, int]]:
        """The ranges of chains, as many as there are threads that pay off."""
        return chunks(self._num_chains, self._unit, self._work)

    def make_memory(self, ranges: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Memory for each range, in which :meth:`forward` leaves what :meth:`backward` needs."""
        return [torch.empty(self._size(last - first), dtype=torch.float64) for first, last in ranges]

    def _size(self, count: int) -> int:
        if count not in self._sizes:
            size = ctypes.c_long()
            _library.function("natural_size")(self._address, count, ctypes.addressof(size))
            self._sizes[count] = size.value
        return self._sizes[count]

    def forward(
        self, ranges: Sequence[tuple[int, int]], memory: Sequence[Tensor], jitter: float, *tensors: Tensor
    ) -> None:
        """Write μ, diag S, the variance of the prior and the numbers of ``moments`` in ``_natural.c``.

        :param jitter: size of rounding errors.
        :param tensors: values (P, K), η and λ; and the results (N, Q), (N, Q), (K,) and (Q, 4).
        """
        (values, eta, lam), results = (x.data_ptr() for x in tensors[:3]), [x.data_ptr() for x in tensors[3:]]
        function, plan = _library.function("natural_forward"), self._address

        def call(range_: tuple[int, int], own: Tensor) -> int:
            return function(plan, *range_, jitter, values, eta, lam, own.data_ptr(), *results)

        self._run(call, ranges, memory)

    def backward(self, ranges: Sequence[tuple[int, int]], memory: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        """The gradients in the logs of the values, (P, K).

        :param tensors: values, η and λ; μ, and the derivatives of a function in μ and diag S.
        """
        (values, eta, lam), given = (x.data_ptr() for x in tensors[:3]), [x.data_ptr() for x in tensors[3:]]
        gradients = torch.zeros(len(ranges), *tensors[0].shape, dtype=torch.float64)
        function, plan = _library.function("natural_backward"), self._address

        def call(range_: tuple[int, int], own: tuple[Tensor, Tensor]) -> int:
            work, gradient = own
            return function(plan, *range_, values, eta, lam, work.data_ptr(), *given, gradient.data_ptr())

        self._run(call, ranges, list(zip(memory, gradients.unbind(), strict=True)))
        return gradients[0] if len(ranges) == 1 else gradients.sum(0)

    def _run(
        self, call: Callable[[tuple[int, int], T], int], ranges: Sequence[tuple[int, int]], own: Sequence[T]
    ) -> None:
        if any(run(call, ranges, own, self._work)):
            raise MemoryError("the compiled recursions ran out of memory.")


def _passes_of(frames: Frames, values: Tensor, num_chains: int) -> _Passes:
    """The passes over frames with Q chains and values (P, K) of the parameters, made once."""
    key = values.shape[1], num_chains
    found = frames.passes.get(key)
    if not isinstance(found, _Passes):
        found = frames.passes[key] = _Passes(frames, len(values), *key)
    return found


def markov_path(
    frames: Frames, eta: Tensor, lam: Tensor, values: Tensor, log_parameters: Sequence[Tensor | None]
) -> MarkovPath | None:
    """q(X) with sites η and λ (N, Q), for parameters (P, K) of the program of the frames; None if its gradients need
    autograd.

    :param log_parameters: for each parameter the tensor of which it is the exponential, or None.
    """
    if not is_available() or eta.shape != lam.shape or lam.dim() != 2 or eta.requires_grad or lam.requires_grad:
        return None
    if eta.dtype != torch.float64 or lam.dtype != torch.float64 or not (eta.is_cpu and lam.is_cpu):
        return None
    if values.shape[1] not in (1, lam.shape[1]) or any(x is not None and has_hooks(x) for x in log_parameters):
        return None
    with torch.no_grad():
        return MarkovPath(frames, eta.contiguous(), lam.contiguous(), values, log_parameters)


class MarkovPath:
    """The moments of q(X) and KL(q, p), and the gradients of KL(q, p) minus a function of the moments.

    Parameters are those of :func:`markov_path`.

    :raises NumericalError: if rounding errors are all that is left of the divergence.
    """

    batch_shape = torch.Size()

    def __init__(
        self, frames: Frames, eta: Tensor, lam: Tensor, values: Tensor, log_parameters: Sequence[Tensor | None]
    ) -> None:
        self.eta, self.lam = eta, lam
        self._values, self._log_parameters = values, log_parameters
        q = lam.shape[1]
        self._passes = _passes_of(frames, values, q)
        self._ranges = self._passes.ranges()
        self._memory = self._passes.make_memory(self._ranges)
        #: μ and diag S, without negative values that rounding errors made, (N, Q)
        self.mean, self.variance = torch.empty_like(lam), torch.empty_like(lam)
        #: the variance (K,) of the prior
        self.prior_variance, numbers = lam.new_empty(values.shape[1]), lam.new_empty(q, 4)
        results = self.mean, self.variance, self.prior_variance, numbers
        self._passes.forward(self._ranges, self._memory, default_jitter(lam.dtype), values, eta, lam, *results)
        terms, low, high, above = zip(*numbers.tolist(), strict=True)
        #: KL(q, p)
        self.divergence = 0.5 * sum(terms)
        if not (math.isfinite(self.divergence) and are_digits(min(low), max(high), min(above))):
            raise lost_digits(numbers)
        #: the derivatives of the function in ``mean`` and ``variance``, once they are known
        self.derivatives: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def add_gradients(self, d_mean: Tensor, d_variance: Tensor) -> None:
        """Add the gradients of KL(q, p) minus a function with these derivatives (N, Q) to those of the parameters."""
        self.derivatives = d_mean.contiguous(), d_variance.contiguous()
        given = self._values, self.eta, self.lam, self.mean, *self.derivatives
        rows = self._passes.backward(self._ranges, self._memory, *given).unbind()
        for row, log_parameter in zip(rows, self._log_parameters, strict=True):
            if log_parameter is not None and log_parameter.requires_grad:
                own = row
                if row.shape != log_parameter.shape:
                    own = (row if log_parameter.numel() == len(row) else row.sum(0, True)).view(log_parameter.shape)
                log_parameter.grad = own if log_parameter.grad is None else log_parameter.grad + own

    def natural_step(self, rate: float, floor: float) -> tuple[Tensor, Tensor]:
        """The next η and λ, by the derivatives that :meth:`add_gradients` got; λ times the variance is at least
        ``floor``.
        """
        assert self.derivatives is not None
        found, count = (torch.empty_like(self.eta), torch.empty_like(self.lam)), len(self.prior_variance)
        tensors = self.eta, self.lam, self.mean, *self.derivatives, self.prior_variance, *found
        sizes, pointers = self.eta.shape, (x.data_ptr() for x in tensors)
        _library.function("natural_step")(*sizes, count, rate, floor, *pointers)
        return found


def diagonal_path(k: Tensor, mean_bar: Tensor, log_lam: Tensor) -> DiagonalPath | None:
    """q(X) from the diagonal k of K_t, (N, 1) or (N, Q), mean_bar and log λ (N, Q); None if it needs autograd."""
    leaves = mean_bar, log_lam
    if k.requires_grad or k.dim() != 2 or any(x.dtype != torch.float64 for x in (k, *leaves)):
        return None
    if not all(x.is_leaf and x.requires_grad and x.shape == log_lam.shape for x in leaves) or any(
        map(has_hooks, leaves)
    ):
        return None
    with torch.no_grad():
        return DiagonalPath(k, mean_bar, log_lam)


class DiagonalPath:
    """The moments of q(X) and KL(q, p), and the gradients of KL(q, p) minus a function of the moments.

    Parameters are those of :func:`diagonal_path`.

    :raises NumericalError: if the divergence is not finite.
    """

    batch_shape = torch.Size()

    def __init__(self, k: Tensor, mean_bar: Tensor, log_lam: Tensor) -> None:
        self._k, self._mean_bar, self._log_lam = k, mean_bar, log_lam
        lam = self._lam = log_lam.exp()
        b = (k * lam).add_(1.0)
        #: μ and diag S, (N, Q)
        self.mean, self.variance = k * mean_bar, k / b
        terms = b.log_().addcmul_(mean_bar, self.mean).addcmul_(lam, self.variance, value=-1.0)
        #: KL(q, p)
        self.divergence = 0.5 * float(terms.sum())
        if not math.isfinite(self.divergence):
            raise lost_digits(terms)

    @torch.no_grad()
    def add_gradients(self, d_mean: Tensor, d_variance: Tensor) -> None:
        """Add the gradients of KL(q, p) minus a function with these derivatives (N, Q) to those of the parameters."""
        g_mean_bar = (self._mean_bar - d_mean).mul_(self._k)
        # ds/dλ = −s², and what is left of the divergence is ½ λ s²
        g_log_lam = torch.add(d_variance, self._lam, alpha=0.5).mul_(self.variance.square()).mul_(self._lam)
        for parameter, own in ((self._mean_bar, g_mean_bar), (self._log_lam, g_log_lam)):
            parameter.grad = own if parameter.grad is None else parameter.grad + own
