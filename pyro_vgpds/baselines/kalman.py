# SPDX-License-Identifier: Apache-2.0
"""Exact smoothing of linear Gaussian state-space models, for all sequences at once and any missing entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Grid", "Smoothed", "smooth"]

_MOST = 200_000  # number of steps, above which times are more likely wrong than sparse
_CHECK = 16  # steps between two checks whether the covariance has settled
_SETTLED = 1e-13  # largest change of a settled covariance in a step, in units of the standard deviations


class Grid:
    """Frames on grids of equal time steps, one for each sequence, padded to the length T of the longest.

    The interval between two frames is rounded to a whole number of steps, at least one. An interval of k steps contains
    k - 1 steps without a frame.

    :raises ValueError: if the grids together have more than 200,000 steps.
    """

    def __init__(self, t: Tensor, rows: list[slice], step: float) -> None:
        places = []
        for part in rows:
            intervals = (t[part].diff() / step).round().clamp_min(1.0)
            places.append(torch.cat([torch.zeros_like(t[:1]), intervals.cumsum(0)]))
        longest = max(float(place[-1]) for place in places) + 1
        if longest * len(rows) > _MOST:
            raise ValueError(
                f"the times span {len(rows)} x {longest:.0f} steps of {step:g}, more than {_MOST}: split the sequences "
                "at their longest gaps."
            )
        self.place = torch.cat(places).long()  #: (N,) step of each frame
        self.sequence = torch.cat([torch.full((len(p),), i) for i, p in enumerate(places)])  #: (N,)
        self.shape = (len(rows), int(longest))  #: S, T
        ends = torch.tensor([int(place[-1]) for place in places])
        self.within = torch.arange(self.shape[1] - 1) < ends.unsqueeze(-1)  #: (S, T - 1): transitions in a sequence

    def put(self, values: Tensor, empty: float = 0.0) -> Tensor:
        """Values of the frames (N, ...) as (S, T, ...), ``empty`` at steps without a frame."""
        grid = values.new_full((*self.shape, *values.shape[1:]), empty)
        grid[self.sequence, self.place] = values
        return grid

    def take(self, grid: Tensor) -> Tensor:
        """The values (N, ...) of (S, T, ...) at the frames."""
        return grid[self.sequence, self.place]


@dataclass(frozen=True)
class Smoothed:
    """Posterior moments of the states z, given all observations of their sequence."""

    mean: Tensor  #: (S, T, K)
    covariance: Tensor  #: (S, T, K, K)
    cross: Tensor  #: (S, T - 1, K, K), Cov(z_{n+1}, z_n)
    evidence: Tensor  #: log of the integral of p(z) Π exp(b_nᵀz_n − ½ z_nᵀW_n z_n)


def smooth(a: Tensor, q: Tensor, m0: Tensor, v0: Tensor, w: Tensor, b: Tensor) -> Smoothed:
    """Kalman filter and Rauch-Tung-Striebel smoother of z_1 ~ N(m0, V0), z_{n+1} = A z_n + N(0, Q), for W (S, T, K, K)
    and b (S, T, K).

    The likelihood of step n is exp(bᵀz − ½ zᵀWz) up to a constant: W = CᵀR⁻¹C and b = CᵀR⁻¹(y − d) of the observed
    entries, zero without any. With P = LLᵀ the predicted covariance and HHᵀ = I + LᵀWL, the filtered one is V = (P⁻¹ +
    W)⁻¹ = XᵀX with X = H⁻¹Lᵀ. Covariances do not depend on b, and settle while W stays the same: then they are not
    computed again.
    """
    size, eye = w.shape[0], torch.eye(len(a)).to(a)
    a_, q_ = a.expand(size, -1, -1), q.expand(size, -1, -1)
    alike = [False, *(w[:, 1:] == w[:, :-1]).flatten(2).all(-1).all(0).tolist()]  # W as in the step before
    predicted, settled = v0.expand(size, -1, -1), False
    repeated: list[bool] = []
    steps: list[tuple[Tensor, ...]] = []
    for n, here in enumerate(w.unbind(1)):
        settled = settled and alike[n]
        repeated.append(settled)
        if settled:
            steps.append(steps[-1])
            continue
        root = torch.linalg.cholesky_ex(predicted)[0]
        core = torch.linalg.cholesky_ex(torch.baddbmm(eye, root.mT, torch.bmm(here, root)))[0]
        half = torch.linalg.solve_triangular(core, root.mT, upper=False)
        av = torch.bmm(a_, torch.bmm(half.mT, half))
        steps.append((root, core.diagonal(dim1=-2, dim2=-1), half, av))
        last, predicted = predicted, torch.baddbmm(q_, av, a_.mT)
        settled = n % _CHECK == 0 and alike[n] and _is_settled(last, predicted)
    root, core, half, av = (torch.stack(part, 1) for part in zip(*steps, strict=True))
    # means before the observation: m_{n+1} = A (I − V W) m_n + A V b
    b = b.unsqueeze(-1)
    moves, before = a - av @ w, [m0.expand(size, -1).unsqueeze(-1)]
    for n, push in enumerate((av @ b)[:, :-1].unbind(1)):
        if not repeated[n]:
            move = moves[:, n]
        before.append(torch.baddbmm(push, move, before[-1]))
    m = torch.stack(before, 1)
    wm = w @ m
    shift = half @ (b - wm)  # X (b − W m)
    evidence = 0.5 * (shift.square() - 2.0 * core.log().unsqueeze(-1) - m * (wm - 2.0 * b)).sum()
    m = m + half.mT @ shift
    # backwards, with the gain J = V Aᵀ P⁻¹: z_n given z_{n+1} is N(m + J (z_{n+1} − A m), V − J A V)
    gains = torch.cholesky_solve(av[:, :-1], root[:, 1:]).mT
    own = m[:, :-1] - gains @ (a @ m[:, :-1])
    spreads = half[:, :-1].mT @ half[:, :-1] - gains @ av[:, :-1]
    means, covariances = [m[:, -1]], [half[:, -1].mT @ half[:, -1]]
    crosses: list[Tensor] = []
    settled, repeated = False, [*repeated, False]
    for n, own_n in zip(range(len(steps) - 2, -1, -1), own.unbind(1)[::-1], strict=True):
        same = repeated[n + 1] and repeated[n + 2]  # the gain is that of the pass before
        if not same:
            gain = gains[:, n]
        means.append(torch.baddbmm(own_n, gain, means[-1]))
        settled = settled and same
        crosses.append(crosses[-1] if settled else torch.bmm(gain, covariances[-1]))
        covariances.append(covariances[-1] if settled else torch.baddbmm(spreads[:, n], crosses[-1], gain.mT))
        settled = settled or (n % _CHECK == 0 and same and _is_settled(covariances[-2], covariances[-1]))
    mean, covariance = torch.stack(means[::-1], 1).squeeze(-1), torch.stack(covariances[::-1], 1)
    cross = torch.stack(crosses[::-1], 1).mT if crosses else covariance[:, 1:]
    return Smoothed(mean, covariance, cross, evidence)


def _is_settled(before: Tensor, after: Tensor) -> bool:
    """Whether covariances (S, K, K) are the same up to rounding."""
    scale = after.diagonal(dim1=-2, dim2=-1).sqrt()
    return bool(((after - before).abs() <= _SETTLED * scale.unsqueeze(-1) * scale.unsqueeze(-2)).all())
