# SPDX-License-Identifier: Apache-2.0
r"""The recursions of ``recursions.py`` as associative scans: torch code on any device, of depth log N.

Shapes and equations are those of :mod:`pyro_vgpds.temporal.recursions`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.temporal.chains import Kept, Layout

__all__ = ["Scans"]

Elements: TypeAlias = tuple[Tensor, ...]
_NUMBERS = 1 << 24  # numbers in one set of matrices; a recursion holds tens of such sets at a time


def scan(combine: Callable[[Elements, Elements], Elements], x: Elements) -> Elements:
    """All prefixes of ``x`` along axis 1 under the associative ``combine(earlier, later)``."""
    n = x[0].shape[1]
    if n < 2:
        return x
    odd = scan(combine, combine(tuple(v[:, : n - 1 : 2] for v in x), tuple(v[:, 1::2] for v in x)))
    even = combine(tuple(v[:, : (n - 1) // 2] for v in odd), tuple(v[:, 2::2] for v in x))
    out = tuple(torch.empty_like(v) for v in x)
    for o, first, e, d in zip(out, x, even, odd, strict=True):
        o[:, 0], o[:, 2::2], o[:, 1::2] = first[:, 0], e, d
    return out


def _affine(step: Tensor, source: Tensor, square: bool = False, back: bool = False) -> Tensor:
    """X_k = step_k X_{k−1} + source_k (``square``: step X stepᵀ + source), from X_{−1} = 0.

    ``back`` runs from the last frame with stepᵀ; its result at k is the message from frame k to frame k − 1.
    """
    step = step.expand(source.shape[:2] + step.shape[2:])
    if back:
        step, source = step.mT.flip(1), source.flip(1)

    def combine(x: Elements, y: Elements) -> Elements:
        moved = y[0] @ x[1]
        return y[0] @ x[0], (moved @ y[0].mT if square else moved) + y[1]

    result = scan(combine, (step, source))[1]
    return result.flip(1) if back else result


def _spread(x: Tensor, layout: Layout) -> Tensor:
    """The matrices of each chain and frame, (C, N, d, d); those of a single kernel broadcast, (1, N, d, d)."""
    x = x.index_select(1, layout.step)
    return x if len(x) == 1 else x.index_select(0, layout.kernel)


def _collect(g: Tensor, layout: Layout, like: Tensor) -> Tensor:
    """The sums over the chains of each kernel and the frames of each time step, of the shape of ``like``."""
    g = g.new_zeros((len(like), *g.shape[1:])).index_add_(0, layout.kernel, g)
    return torch.zeros_like(like).index_add_(1, layout.step, g)


def _in_blocks(gradients: int = 0) -> Callable[[Callable[..., Elements]], Callable[..., Elements]]:
    """Run a function of matrices (C, N, d, d) on blocks of chains, so that they stay within a fixed amount of memory.

    :param gradients: the number of leading results that are gradients in a and q.
    """

    def decorate(function: Callable[..., Elements]) -> Callable[..., Elements]:
        @functools.wraps(function)
        def run(a: Tensor, q: Tensor, layout: Layout, *inputs: Tensor) -> Elements:
            size = max(1, _NUMBERS // (len(layout.step) * a.shape[-1] ** 2))
            results = []
            for index, *block in zip(layout.kernel.split(size), *[x.split(size) for x in inputs], strict=True):
                own = Layout(layout.h, layout.step, index, layout.blocks)
                out = function(_spread(a, own), _spread(q, own), layout.h, *block)
                results.append((*[_collect(g, own, a) for g in out[:gradients]], *out[gradients:]))
            parts = list(zip(*results, strict=True))
            sums = [functools.reduce(torch.Tensor.add_, part) for part in parts[:gradients]]
            return (*sums, *map(torch.cat, parts[gradients:]))

        return run

    return decorate


class _Filter(NamedTuple):
    """For each frame: P of the frame before, P⁻, w = P⁻h, v = h·w, u = 1/(1 + λv), c = λu, and Φ = (I − c w h) A."""

    before: Tensor
    predicted: Tensor
    w: Tensor
    v: Tensor
    u: Tensor
    c: Tensor
    phi: Tensor


def _later(x: Tensor) -> Tensor:
    """x_{k−1} at k; zero at the first."""
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def _earlier(x: Tensor) -> Tensor:
    """x_{k+1} at k; zero at the last."""
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(-1) * y.unsqueeze(-2)


def _combine(x: Elements, y: Elements) -> Elements:
    # the map of the covariance by some frames: P ↦ A (P⁻¹ + J)⁻¹ Aᵀ + C (Särkkä and García-Fernández 2021, lemma 8)
    (a, c, j), (a_new, c_new, j_new) = x, y
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    moved = torch.linalg.solve(eye + c @ j_new, torch.cat([a, c], -1))
    moved_a, moved_c = moved.split(a.shape[-1], -1)
    c_out = a_new @ moved_c @ a_new.mT + c_new
    j_out = a.mT @ j_new @ moved_a + j
    return a_new @ moved_a, 0.5 * (c_out + c_out.mT), 0.5 * (j_out + j_out.mT)


def _filter(a: Tensor, q: Tensor, h: Tensor, lam: Tensor) -> _Filter:
    def update(p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w = (p @ h.unsqueeze(-1)).squeeze(-1)
        v = (w * h).sum(-1)
        u = 1.0 / (1.0 + lam * v)
        return w, v, u, lam * u

    shape = lam.shape + a.shape[-2:]
    a, q = a.expand(shape), q.expand(shape)
    w, _, _, c = update(q)
    row = (h.unsqueeze(-2) @ a).squeeze(-2)
    lift = c[..., None, None]
    elements = a - lift * _outer(w, row), q - lift * _outer(w, w), lift * _outer(row, row)
    before = _later(scan(_combine, elements)[1])
    predicted = a @ before @ a.mT + q
    w, v, u, c = update(predicted)
    return _Filter(before, predicted, w, v, u, c, a - c[..., None, None] * _outer(w, row))


def _information(a: Tensor, h: Tensor, f: _Filter) -> tuple[Tensor, Tensor]:
    """N_k, and N_k w_k."""
    row = (h.unsqueeze(-2) @ a).squeeze(-2)
    future = _earlier(_affine(f.phi, f.c[..., None, None] * _outer(row, row), square=True, back=True))
    return future, (future @ f.w.unsqueeze(-1)).squeeze(-1)


@_in_blocks()
def _variance(a: Tensor, q: Tensor, h: Tensor, lam: Tensor) -> Elements:
    f = _filter(a, q, h, lam)
    n = (f.w * _information(a, h, f)[1]).sum(-1)
    return f.u * f.v - f.u.square() * n, f.c + f.c.square() * n, torch.log1p(lam * f.v).sum(-1)


def _pull(x: Tensor, y: Tensor, h: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """Gᵀ X G with G = I − c w h, of y = X w and n = w·y."""
    hy = _outer(h.expand_as(y), y)
    return x - c[..., None, None] * (hy + hy.mT) + (c.square() * n)[..., None, None] * _outer(h, h)


@_in_blocks(2)
def _variance_grad(a: Tensor, q: Tensor, h: Tensor, lam: Tensor, d_lam: Tensor, weight: Tensor) -> Elements:
    f = _filter(a, q, h, lam)
    future, y = _information(a, h, f)
    w, v, u, c = f.w, f.v, f.u, f.c
    n = (w * y).sum(-1)
    hh = _outer(h, h)
    inside = _pull(future, y, h, c, n) + c[..., None, None] * hh  # N⁻
    # tangents in the direction d_lam
    after = _affine(f.phi, -(d_lam * u.square())[..., None, None] * _outer(w, w), square=True)
    d_before = _later(after)
    d_predicted = a @ d_before @ a.mT
    d_w = (d_predicted @ h.unsqueeze(-1)).squeeze(-1)
    d_v = (d_w * h).sum(-1)
    d_u = -u.square() * (d_lam * v + lam * d_v)
    d_c = d_lam * u.square() - c.square() * d_v
    # Ġᵀ N G + Gᵀ N Ġ + ċ h hᵀ, where Gᵀ N (ċ w + c ẇ) hᵀ needs N (ċ w + c ẇ) = x
    turn = d_c.unsqueeze(-1) * w + c.unsqueeze(-1) * d_w
    x = (future @ turn.unsqueeze(-1)).squeeze(-1)
    x = x - (c * (w * x).sum(-1)).unsqueeze(-1) * h
    cross = _outer(x, h.expand_as(x))
    source = d_c[..., None, None] * hh - cross - cross.mT
    d_future = _earlier(_affine(f.phi, a.mT @ source @ a, square=True, back=True))
    d_y = (d_future @ w.unsqueeze(-1)).squeeze(-1)
    d_n = (w * d_y).sum(-1) + 2.0 * (y * d_w).sum(-1)
    d_inside = _pull(d_future, d_y, h, c, (w * d_y).sum(-1)) + source
    d_s = d_u * v + u * d_v - 2.0 * u * d_u * n - u.square() * d_n
    g_q = d_inside + weight[:, None, None, None] * inside
    g_a = 2.0 * (g_q @ a @ f.before + inside @ a @ d_before)
    return g_a, g_q, d_s


@_in_blocks()
def _solve(a: Tensor, q: Tensor, h: Tensor, eta: Tensor, lam: Tensor) -> Elements:
    f = _filter(a, q, h, lam)
    # m_k = Φ m_{k−1} + w u η, and r_{k−1} = Φᵀ r_k + Aᵀh u (η − λ h·A m_{k−1})
    after = _affine(f.phi, (f.w * (f.u * eta).unsqueeze(-1)).unsqueeze(-1))
    mean = ((a @ _later(after)).squeeze(-1) * h).sum(-1)
    surprise = f.u * (eta - lam * mean)
    pull = a.mT @ (h * surprise.unsqueeze(-1)).unsqueeze(-1)
    n = (f.w * _earlier(_affine(f.phi, pull, back=True)).squeeze(-1)).sum(-1)
    return mean + f.v * surprise + f.u * n, surprise - f.c * n


def _path(a: Tensor, q: Tensor, h: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """r_k = h_k b_k + A_{k+1}ᵀ r_{k+1} and z_k = A_k z_{k−1} + Q_k r_k, each (C, N, d, 1)."""
    own = (h * b.unsqueeze(-1)).unsqueeze(-1)
    r = own + _earlier(_affine(a, a.mT @ own, back=True))
    return r, _affine(a, q @ r)


@_in_blocks()
def _matmul(a: Tensor, q: Tensor, h: Tensor, b: Tensor) -> Elements:
    return ((_path(a, q, h, b)[1].squeeze(-1) * h).sum(-1),)


@_in_blocks(2)
def _quadratic(a: Tensor, q: Tensor, h: Tensor, left: Tensor, right: Tensor) -> Elements:
    (r, z), (r_new, z_new) = _path(a, q, h, left), _path(a, q, h, right)
    g_a, g_q = r @ _later(z_new).mT + r_new @ _later(z).mT, r @ r_new.mT
    return g_a, 0.5 * (g_q + g_q.mT)


@_in_blocks()
def _draw(a: Tensor, q: Tensor, h: Tensor, white: Tensor, noise: Tensor) -> Elements:
    f = _filter(a, q, h, 1.0 / white)
    size = (f.v + white).sqrt()
    after = _affine(a, (f.w * (noise / size).unsqueeze(-1)).unsqueeze(-1))
    return (((a @ _later(after)).squeeze(-1) * h).sum(-1) + size * noise,)


@_in_blocks(2)
def _draw_grad(a: Tensor, q: Tensor, h: Tensor, white: Tensor, noise: Tensor, grad: Tensor) -> Elements:
    f = _filter(a, q, h, 1.0 / white)
    size = (f.v + white).sqrt()
    rate = noise / size
    before = _later(_affine(a, (f.w * rate.unsqueeze(-1)).unsqueeze(-1)))  # m of the frame before
    own = h * grad.unsqueeze(-1)
    g_moved = own.unsqueeze(-1) + _earlier(_affine(a, a.mT @ own.unsqueeze(-1), back=True))  # of A m
    g_m = g_moved.squeeze(-1) - own
    g_v = 0.5 * rate * (grad - (g_m * f.w).sum(-1) / size.square())  # through τ² = v + ω
    half = 0.5 * _outer(g_m * rate.unsqueeze(-1), h.expand_as(g_m))
    source = half + half.mT + g_v[..., None, None] * _outer(h, h)
    future = _earlier(_affine(f.phi, a.mT @ source @ a, square=True, back=True))
    y = (future @ f.w.unsqueeze(-1)).squeeze(-1)
    n = (f.w * y).sum(-1)
    g_q = _pull(future, y, h, f.c, n) + source
    g_a = 2.0 * g_q @ a @ f.before + g_moved @ before.mT
    g_noise = size * grad + (g_m * f.w).sum(-1) / size
    return g_a, g_q, g_v + f.c.square() * n, g_noise


@_in_blocks()
def _undraw(a: Tensor, q: Tensor, h: Tensor, white: Tensor, x: Tensor) -> Elements:
    f = _filter(a, q, h, 1.0 / white)
    after = _affine(f.phi, (f.w * (f.c * x).unsqueeze(-1)).unsqueeze(-1))
    return ((x - ((a @ _later(after)).squeeze(-1) * h).sum(-1)) / (f.v + white).sqrt(),)


class Scans(NamedTuple):
    """The recursions, in the form of :class:`~pyro_vgpds.temporal.chains.Chains`."""

    a: Tensor  #: (K, U, d, d)
    q: Tensor
    layout: Layout

    def variance(self, lam: Tensor) -> tuple[Tensor, Tensor, Tensor, Kept]:
        s, precision, logdet = _variance(*self, lam)
        return s, precision, logdet, ()

    def variance_grad(self, lam: Tensor, d_lam: Tensor, weight: Tensor) -> Elements:
        return _variance_grad(*self, lam, d_lam, weight)

    def solve(self, eta: Tensor, lam: Tensor, kept: Kept = ()) -> Elements:
        return _solve(*self, eta, lam)

    def matmul(self, b: Tensor) -> Tensor:
        return _matmul(*self, b)[0]

    def quadratic(self, left: Tensor, right: Tensor) -> Elements:
        return _quadratic(*self, left, right)

    def draw(self, white: Tensor, noise: Tensor) -> Tensor:
        return _draw(*self, white, noise)[0]

    def draw_grad(self, white: Tensor, noise: Tensor, grad: Tensor) -> Elements:
        return _draw_grad(*self, white, noise, grad)

    def undraw(self, white: Tensor, x: Tensor) -> Tensor:
        return _undraw(*self, white, x)[0]
