# SPDX-License-Identifier: Apache-2.0
r"""q(X) of a Markov kernel from the kernel's parameters, in two calls of autograd instead of hundreds.

If the kernel is a :class:`~pyro_vgpds.kernels.programs.Program`, compiled code makes its transitions and runs the
recursions, and the gradients are written out here. :mod:`pyro_vgpds.temporal.markov` has the equations, and computes
the same for all other kernels. With σ = 1/(1 + ωλ), the sites of f are (ση, σλ), and

.. math:: \mu = \mu_f + \omega\bar\mu, \qquad s = \sigma\,(\omega + \sigma s_f), \qquad
          \log|B| = \log|B_f| - \sum \log\sigma.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels.programs import Matrices, Program, split_gradient, stacked, white_of, with_white
from pyro_vgpds.temporal import tiles
from pyro_vgpds.temporal.chains import Chains
from pyro_vgpds.temporal.tiles import TiledChains
from pyro_vgpds.types import Context

__all__ = ["Frames", "frames_of", "natural_posterior", "plain_posterior", "time_steps", "transitions"]

_SHARED = 0.5  # number of different time steps, relative to that of frames, up to which frames share their matrices


def time_steps(times: Times) -> tuple[Tensor, Tensor, Tensor]:
    """The time steps (U,) that have matrices of their own, whether a sequence begins there (U,), and which of them
    precedes each frame (N,).

    Frames at regular times have few different steps. At irregular times each frame has its own.
    """
    t = times.t.double()
    first = torch.zeros(len(t), dtype=torch.bool, device=t.device)
    first[list(times.starts)] = True
    steps, which = times.steps
    if len(steps) + 1 <= _SHARED * len(t) and not times.t.requires_grad:
        begins = torch.arange(len(steps) + 1, device=t.device) == len(steps)
        return torch.nn.functional.pad(steps, (0, 1)), begins, torch.where(first, len(steps), which)
    dt = torch.where(first, 0.0, torch.diff(t, prepend=t[:1]))
    return dt, first, torch.arange(len(t), device=t.device)


_ZERO = torch.zeros(1, dtype=torch.float64)


class Frames:
    """What the recursions of a program need of the times, which is the same for all parameters."""

    def __init__(self, times: Times, program: Program) -> None:
        self.program, self.blocks = program, program.blocks
        dt, begins, step = time_steps(times)
        dt, begins, self.step = dt.contiguous(), begins.to(torch.int64), step.contiguous()
        rows, columns = program.entries()
        d = len(self.blocks)
        self.h = program.observation().repeat(len(times), 1)  # (N, d)
        #: matrices as they are, and as the recursions read them
        self.plain = Matrices(dt, begins, rows * d + columns, d * d, turned=False)
        self.own = self.plain
        self.own_h = self.h
        self.is_tiled = tiles.fits(self.blocks)
        if self.is_tiled:
            self.count, place = tiles.place(self.blocks)
            to = 4 * place[rows] + place[columns] % 4
            self.own = Matrices(dt, begins, to, 16 * self.count, turned=True)
            self.own_h = torch.zeros(len(times), 4 * self.count, dtype=torch.float64)
            self.own_h[:, place] = self.h
        self._indices: dict[tuple[int, int], Tensor] = {}
        self.passes: dict[tuple[int, int], object] = {}  #: compiled ones, by the numbers of kernels and chains

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "passes": {}}  # they have addresses of this process

    def index(self, kernels: int, chains: int) -> Tensor:
        """The kernel of each chain."""
        if (kernels, chains) not in self._indices:
            self._indices[kernels, chains] = torch.arange(kernels).expand(chains).contiguous()
        return self._indices[kernels, chains]

    def variance(self, tensors: list[Tensor]) -> Tensor:
        """The diagonal of K_t, the same for all frames, (K,), without a gradient."""
        values = stacked([x.detach() for x in tensors])
        return self.program.covariances(values, _ZERO)[:, 0] + white_of(self.program, values)[:, 0]

    def model(self, values: Tensor, chains: int) -> tuple[TiledChains | Chains, Tensor]:
        """Recursions of chains with transitions at the parameters ``values`` (P, K), and the variance (K,) of f."""
        a, turned, q, variance = self.program.states(values, self.own)
        index = self.index(values.shape[1], chains)
        shape = (*a.shape[:2], -1, 4, 4) if self.is_tiled else (*a.shape[:2], self.h.shape[1], self.h.shape[1])
        if turned is None:
            return Chains(a.view(shape), q.view(shape), self.own_h, self.step, index, self.blocks), variance
        return TiledChains(a.view(shape), turned.view(shape), q.view(shape), self.own_h, self.step, index), variance


def frames_of(times: Times, program: Program) -> Frames:
    """The frames of a program, made once for its times."""
    found = times.made.get(program.tree)
    if not isinstance(found, Frames):
        found = times.made[program.tree] = Frames(times, program)
    return found


class _Pass(Context, Protocol):
    """The context of functions here."""

    frames: Frames
    model: TiledChains | Chains
    num_kept: int


def transitions(frames: Frames, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """A and Q, (K, U, d, d), with gradients in the parameters."""
    return _Transitions.apply(frames, *tensors)


def natural_posterior(frames: Frames, eta: Tensor, lam: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """μ = S η, diag S, mean_bar (N, Q) each and log|B| (Q,), with gradients in η, λ and the parameters; and the
    variance (K,) of the prior without a gradient.
    """
    return _Natural.apply(frames, eta, lam, *tensors)


def plain_posterior(frames: Frames, mean_bar: Tensor, lam: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """μ = K_t mean_bar and diag S, (N, Q) each, log|B| (Q,), and the variance (K,), as :func:`natural_posterior`.

    :param frames: whose states are not in tiles.
    """
    return _FromMeanBar.apply(frames, mean_bar, lam, *tensors)


class _Transitions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Pass, frames: Frames, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        a, _, q, _ = frames.program.states(stacked(tensors), frames.plain)
        ctx.frames = frames
        ctx.save_for_backward(*tensors)
        d = len(frames.blocks)
        return a.unflatten(-1, (d, d)), q.unflatten(-1, (d, d))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Pass, g_a: Tensor, g_q: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        gradient = ctx.frames.program.states_grad(stacked(tensors), ctx.frames.plain, g_a, None, g_q)
        return None, *split_gradient(gradient, tensors)


class _Noisy(NamedTuple):
    """What white noise makes of the precisions λ of the sites."""

    white: Tensor  #: ω, (K, 1)
    lam: Tensor  #: λ, (Q, N)
    shrink: Tensor  #: σ
    own: Tensor  #: σλ, the precisions of the sites of f

    @classmethod
    def of(cls, white: Tensor, lam: Tensor) -> _Noisy:
        shrink = (lam * white).add_(1.0).reciprocal_()
        return cls(white, lam, shrink, shrink * lam)

    def variance(self, s: Tensor) -> Tensor:
        """The diagonal of S from that of f."""
        return torch.addcmul(self.white, self.shrink, s).mul_(self.shrink)

    def logdet(self, smooth: Tensor) -> Tensor:
        """log|B| from that of f."""
        return smooth + torch.log1p(self.lam * self.white).sum(-1)

    def gradients(self, g_shrink: Tensor, g_own: Tensor, g_s: Tensor, s: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """The gradients in λ and, without what depends on ω directly, in ω.

        :param g_shrink: the gradient in σ through all else.
        :param g_own: that in σλ.
        :param g_s: that in the diagonal of S.
        :param s: the diagonal of f.
        :param weight: the gradient in log|B|, (Q, 1).
        """
        white, lam, shrink, _ = self
        g_shrink = g_shrink + lam * g_own + g_s * (white + 2.0 * shrink * s) - weight / shrink
        g_shrink *= shrink * shrink
        return shrink * g_own - white * g_shrink, shrink * g_s - lam * g_shrink


class _Natural(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Pass, frames: Frames, eta: Tensor, lam: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        values, eta, lam = stacked(tensors), eta.t().contiguous(), lam.t().contiguous()  # (P, K) and (Q, N)
        (model, total), white = frames.model(values, lam.shape[0]), white_of(frames.program, values)
        sites = _Noisy.of(white, lam)
        s, _, logdet, kept = model.variance(sites.own)
        mean, mean_bar = model.solve(sites.shrink * eta, sites.own, kept)
        ctx.frames, ctx.model = frames, model
        ctx.num_kept = len(kept)
        ctx.save_for_backward(values, *sites, eta, s, mean, mean_bar, *kept, *tensors)
        total += white[:, 0]
        ctx.mark_non_differentiable(total)
        mu = torch.addcmul(mean, white, mean_bar)
        return mu.t(), sites.variance(s).t(), mean_bar.t(), sites.logdet(logdet), total

    @staticmethod
    @once_differentiable
    def backward(
        ctx: _Pass, g_mu: Tensor, g_s: Tensor, g_bar: Tensor, g_logdet: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        values, white, lam, shrink, own, eta, s, mean, mean_bar, *rest = ctx.saved_tensors
        kept, tensors = tuple(rest[: ctx.num_kept]), tuple(rest[ctx.num_kept :])
        program, model, weight = ctx.frames.program, ctx.model, g_logdet.unsqueeze(-1)
        g_mu, g_s = g_mu.t(), g_s.t()
        # of f: b = mean_bar = η_f − λ_f mean, and d mean = W dK_f b − S dΛ mean + S dη; see recursions
        g_a, g_q, g_own = model.variance_grad(own, shrink * shrink * g_s, g_logdet)
        g_b = torch.addcmul(g_bar.t(), white, g_mu)
        through, left = model.solve(g_mu - own * g_b, own, kept)
        more_a, more_q = model.quadratic(left, mean_bar)
        g_eta = through + g_b
        g_own += weight * s - mean * g_eta
        g_lam, g_white = _Noisy(white, lam, shrink, own).gradients(eta * g_eta, g_own, g_s, s, weight)
        half = g_a if isinstance(model, TiledChains) else None
        more_a = more_a if half is not None else g_a + more_a
        gradient = program.states_grad(values, ctx.frames.own, more_a, half, g_q + more_q)
        gradient = with_white(program, gradient, (g_mu * mean_bar + g_white).sum(-1))
        needs_eta, needs_lam = ctx.needs_input_grad[1:3]
        to_eta, to_lam = (shrink * g_eta).t() if needs_eta else None, g_lam.t() if needs_lam else None
        return None, to_eta, to_lam, *split_gradient(gradient, tensors)


class _FromMeanBar(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Pass, frames: Frames, mean_bar: Tensor, lam: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        values, mean_bar, lam = stacked(tensors), mean_bar.t().contiguous(), lam.t().contiguous()
        (model, total), white = frames.model(values, lam.shape[0]), white_of(frames.program, values)
        assert isinstance(model, Chains), "tiles cannot multiply with K_f"
        sites = _Noisy.of(white, lam)
        s, _, logdet, _ = model.variance(sites.own)
        ctx.frames, ctx.model = frames, model
        ctx.save_for_backward(values, *sites, s, mean_bar, *tensors)
        total += white[:, 0]
        ctx.mark_non_differentiable(total)
        mu = torch.addcmul(model.matmul(mean_bar), white, mean_bar)
        return mu.t(), sites.variance(s).t(), sites.logdet(logdet), total

    @staticmethod
    @once_differentiable
    def backward(ctx: _Pass, g_mu: Tensor, g_s: Tensor, g_logdet: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        values, white, lam, shrink, own, s, mean_bar, *tensors = ctx.saved_tensors
        program, model, weight = ctx.frames.program, ctx.model, g_logdet.unsqueeze(-1)
        assert isinstance(model, Chains)
        g_mu, g_s = g_mu.t().contiguous(), g_s.t()
        g_a, g_q, g_own = model.variance_grad(own, shrink * shrink * g_s, g_logdet)
        more_a, more_q = model.quadratic(g_mu, mean_bar)
        g_own += weight * s
        g_lam, g_white = _Noisy(white, lam, shrink, own).gradients(g_s.new_zeros(()), g_own, g_s, s, weight)
        gradient = program.states_grad(values, ctx.frames.own, g_a + more_a, None, g_q + more_q)
        gradient = with_white(program, gradient, (g_mu * mean_bar + g_white).sum(-1))
        needs_mean, needs_lam = ctx.needs_input_grad[1:3]
        to_mean = torch.addcmul(model.matmul(g_mu), white, g_mu).t() if needs_mean else None
        return None, to_mean, g_lam.t() if needs_lam else None, *split_gradient(gradient, tensors)
