# SPDX-License-Identifier: Apache-2.0
"""A linear dynamical system, trained by expectation maximisation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_vgpds.baselines.gaps import FilledPair, Gaps
from pyro_vgpds.baselines.kalman import Grid, Smoothed, smooth
from pyro_vgpds.baselines.pca import pairs
from pyro_vgpds.checks import check_count, check_flags, check_not_negative
from pyro_vgpds.data.filling import line_between, patterns
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.types import DataLike

__all__ = ["LinearDynamicalSystem", "linear_dynamical_system"]

# Priors, in units in which every output has variance one
_RIDGE = 1e-2  # precision of the entries of A (relative to Q) and of C (relative to R)
_STATE_NOISE = 1e-4  # one pseudo-observation of the transition noise, with this variance
_OUTPUT_NOISE = 1e-2  # one pseudo-observation of the noise of each output, with this variance
_LEAST_NOISE = 1e-6  # lower limit of R
_SHIFT = 1e-4  # ridge of the initial fixed point
_RADIUS = 0.9999  # of the eigenvalues of A that exceeded one


def linear_dynamical_system(
    t: DataLike | Sequences,
    y: DataLike | None = None,
    num_states: int | None = None,
    num_steps: int = 50,
    return_variance: bool = False,
) -> FilledPair:
    """Fill by a linear dynamical system that is trained on the same data: ``LinearDynamicalSystem.fit(...).fill(...)``.

    :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
    :param y: outputs (N, D) with NaN, or a list of them.
    :param num_states: dimension K of the state. Default: the least of 30, D and N / 10.
    :param num_steps: maximum number of EM steps.
    :param return_variance: also return the predictive variances (noise included), zero for observed entries.
    :returns: float64 (N, D) without NaN, or a list of them; with ``return_variance`` a pair of those.
    :raises ValueError: as :meth:`LinearDynamicalSystem.fit`.

    >>> import numpy as np
    >>> from pyro_vgpds.baselines import linear_dynamical_system
    >>> t = np.arange(60.0)
    >>> y = np.stack([np.sin(t / 3), np.cos(t / 3)], 1)
    >>> y[50:] = np.nan  # a forecast
    >>> filled = linear_dynamical_system(t, y, num_states=2)
    >>> bool(abs(filled[55, 0] - np.sin(55 / 3)) < 0.1)
    True
    """
    check_flags(return_variance=return_variance)
    return LinearDynamicalSystem.fit(t, y, num_states, num_steps).fill(t, y, return_variance)


@dataclass(frozen=True)
class LinearDynamicalSystem:
    """z_1 ~ N(m0, V0), z_{n+1} = A z_n + N(0, Q), y_n = C z_n + d + N(0, R) with a diagonal R. Fields are float64.

    One transition takes one ``step`` of time. The interval between two frames is rounded to a whole number of steps, at
    least one, so a lost frame or a forecast is a state without observation.

    >>> from dataclasses import asdict
    >>> import torch
    >>> from pyro_vgpds.baselines import LinearDynamicalSystem
    >>> system = LinearDynamicalSystem.fit(data, num_states=3, num_steps=5)
    >>> system.loadings.shape
    torch.Size([5, 3])
    >>> torch.save(asdict(system), "system.pt")
    >>> same = LinearDynamicalSystem(**torch.load("system.pt"))
    """

    transition: Tensor  #: A (K, K); no eigenvalue exceeds one in modulus
    transition_noise: Tensor  #: Q (K, K)
    loadings: Tensor  #: C (D, K)
    offset: Tensor  #: d (D,)
    noise: Tensor  #: the diagonal of R (D,)
    initial_mean: Tensor  #: m0 (K,)
    initial_covariance: Tensor  #: V0 (K, K)
    step: Tensor  #: time of one transition ()
    objective: Tensor  #: log-likelihood of scaled data plus log-prior, initially and after each EM step

    @classmethod
    def fit(
        cls,
        t: DataLike | Sequences,
        y: DataLike | None = None,
        num_states: int | None = None,
        num_steps: int = 50,
        tolerance: float = 1e-5,
    ) -> LinearDynamicalSystem:
        """Train by EM, starting from the principal components of the linearly interpolated data.

        The M step is exact for any missing entries. Weak conjugate priors keep all covariances positive definite, and
        the noise of an output is at least 10⁻⁶ of its variance. The step of time is the median interval between frames.
        After training, eigenvalues of A that exceed one in modulus are shrunk to 0.9999, so that long forecasts stay
        bounded.

        :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
        :param y: outputs (N, D) with NaN, or a list of them.
        :param num_states: dimension K of the state, at most N and 2 D. Default: the least of 30, D and N / 10. Frames
            without observations do not count in N.
        :param num_steps: maximum number of EM steps.
        :param tolerance: stop if a step increases the objective by less than this per observed entry.
        :raises ValueError: as ``Sequences``; if a column was never observed, ``num_states`` is out of range, a variance
            overflows, or an interval is so long that the states would not fit into memory.
        """
        gaps = Gaps(t, y)
        check_count("num_steps", num_steps)
        check_not_negative("tolerance", tolerance)
        n, outputs = int(gaps.seen.any(1).sum()), gaps.y.shape[1]
        num_states = max(1, min(30, outputs, n // 10)) if num_states is None else num_states
        check_count("num_states", num_states)
        if num_states > min(n, 2 * outputs):
            limits = f"{n}, the number of observed frames, and {2 * outputs}, twice the number of outputs"
            raise ValueError(f"num_states must be at most {limits}, but got {num_states}.")
        with torch.no_grad():
            spread, step = gaps.spread, gaps.step
            if not bool(spread.isfinite().all()):
                raise ValueError("y has values so large that their variance is not a finite number. Use another unit.")
            problem = _Problem(gaps, Grid(gaps.t, gaps.rows, float(step)), gaps.means, spread)
            system = problem.maximise(problem.components(num_states), step, problem.adjacent())
            objective: list[float] = []
            while True:
                states, log_likelihood = problem.states(system)
                objective.append(log_likelihood + _log_prior(system))
                gain = objective[-1] - objective[-2] if len(objective) > 1 else math.inf
                if len(objective) > num_steps or gain < tolerance * float(problem.mask.sum()):
                    break
                system = problem.maximise(states, step, problem.grid.within)
            return replace(
                system, transition=_bounded(system.transition), loadings=system.loadings * spread.unsqueeze(-1),
                offset=system.offset * spread + gaps.means, noise=system.noise * spread.square(),
                objective=torch.tensor(objective, dtype=torch.float64),
            )  # fmt: skip

    def fill(self, t: DataLike | Sequences, y: DataLike | None = None, return_variance: bool = False) -> FilledPair:
        """Fill other sequences, without training. A column may be hidden in all frames.

        :param t: times (N,), or a list of them, or :class:`~pyro_vgpds.Sequences` alone.
        :param y: outputs (N, D) with NaN, or a list of them.
        :param return_variance: also return the predictive variances (noise included), zero for observed entries.
        :returns: float64 (N, D) without NaN, or a list of them; with ``return_variance`` a pair of those.
        :raises ValueError: as ``Sequences``, and if y does not have D columns.

        >>> y = data.read().clone()
        >>> y[:, 0] = torch.nan
        >>> bool(system.fill(data.times.t[:20], y[:20]).isnan().any())
        False
        """
        check_flags(return_variance=return_variance)
        gaps = Gaps(t, y, hidden_columns=True)
        if gaps.y.shape[1] != len(self.offset):
            raise ValueError(f"y has {gaps.y.shape[1]} columns, but the system was trained on {len(self.offset)}.")
        with torch.no_grad():
            grid = Grid(gaps.t, gaps.rows, float(self.step))
            zero, one = torch.zeros_like(self.offset), torch.ones_like(self.offset)
            states, _ = _Problem(gaps, grid, zero, one).states(self)
            values = grid.take(states.mean) @ self.loadings.mT + self.offset
            if not return_variance:
                return gaps.fill(values)
            variances = grid.take(states.covariance).flatten(1) @ pairs(self.loadings).mT + self.noise
            return gaps.fill_pair(values, variances, return_variance)


class _Problem:
    """The E and the M step for data that are centred by ``centre`` (D,) and divided by ``scale`` (D,)."""

    def __init__(self, gaps: Gaps, grid: Grid, centre: Tensor, scale: Tensor) -> None:
        self.gaps, self.grid = gaps, grid
        self.y = torch.where(gaps.seen, (gaps.y - centre) / scale, 0.0)
        self.mask = gaps.seen.to(self.y)
        self.frames, self.frame_of = patterns(gaps.seen)
        self.columns, self.column_of = patterns(gaps.seen.mT.contiguous())

    def states(self, system: LinearDynamicalSystem) -> tuple[Smoothed, float]:
        """The posterior of the states, and the log-likelihood."""
        k, weighted = len(system.transition), system.loadings / system.noise.sqrt().unsqueeze(-1)
        w = (self.frames.to(self.y) @ pairs(weighted)).unflatten(-1, (k, k))[self.frame_of]
        rest = self.mask * (self.y - system.offset) / system.noise.sqrt()
        states = smooth(
            system.transition,
            system.transition_noise,
            system.initial_mean,
            system.initial_covariance,
            self.grid.put(w),
            self.grid.put(rest @ weighted),
        )
        constant = -0.5 * (rest.square() + self.mask * (2.0 * math.pi * system.noise).log()).sum()
        return states, float(constant + states.evidence)

    def components(self, num_states: int) -> Smoothed:
        """Initial states: principal components of the interpolated frames, then of their changes, of unit variance.

        They are shifted to the fixed point z of their regression z_{n+1} = A z_n + c, because the states of the model
        decay to zero: EM moves slowly from the mean of the frames to the centre of an oscillation.
        """
        parts, some = [], self.gaps.seen.any(1)
        for rows, times, _, seen in self.gaps.sequences():
            parts.append(torch.where(seen.any(0), line_between(times, self.y[rows], seen), 0.0))
        changes = torch.cat([torch.cat([part.diff(dim=0), torch.zeros_like(part[:1])]) for part in parts])
        scores = _scores(torch.cat(parts), some, num_states)
        if scores.shape[1] < num_states:
            scores = torch.cat([scores, _scores(changes, some, num_states - scores.shape[1])], 1)
        frames, steps = self.grid.put(scores, torch.nan), torch.arange(self.grid.shape[1]).to(scores)
        mean = torch.stack([line_between(steps, part, ~part.isnan()) for part in frames])
        adjacent = self.adjacent()
        mean = mean - _fixed_point(mean[:, :-1][adjacent], mean[:, 1:][adjacent])
        nothing = mean.new_zeros(*mean.shape, num_states)
        return Smoothed(mean, nothing, nothing[:, 1:], mean.new_zeros(()))

    def adjacent(self) -> Tensor:
        """The transitions (S, T - 1) between two frames with observations: the others are only interpolated."""
        seen = self.grid.put(self.gaps.seen.any(1), False)
        both = seen[:, 1:] & seen[:, :-1]
        return both if bool(both.any()) else self.grid.within

    def maximise(self, states: Smoothed, step: Tensor, within: Tensor) -> LinearDynamicalSystem:
        """The M step, with the priors of :func:`_log_prior`, from the transitions ``within`` (S, T - 1)."""
        mean, k = states.mean, states.mean.shape[-1]
        ridge = _RIDGE * torch.eye(k).to(mean)
        square = states.covariance + _outer(mean, mean)
        # z_{n+1} = A z_n + noise
        late, early = square[:, 1:][within].sum(0), square[:, :-1][within].sum(0) + ridge
        both = (states.cross + _outer(mean[:, 1:], mean[:, :-1]))[within].sum(0)
        a = torch.linalg.solve(early, both, left=False)
        q = (late - a @ both.mT + _STATE_NOISE * torch.eye(k).to(mean)) / (int(within.sum()) + 1)
        # the first states, and one more with E[z] = 0 and E[zzᵀ] = I
        count = len(mean) + 1
        m0 = mean[:, 0].sum(0) / count
        v0 = (square[:, 0].sum(0) + torch.eye(k).to(mean)) / count - _outer(m0, m0)
        # each output regressed on (z, 1), over the frames in which it is observed
        points = torch.nn.functional.pad(self.grid.take(mean), (0, 1), value=1.0)  # (N, K + 1)
        normal = _outer(points, points)
        normal[:, :k, :k] += self.grid.take(states.covariance)
        normal = (self.columns.to(mean) @ normal.flatten(1)).unflatten(-1, (k + 1, k + 1))
        normal[:, :k, :k] += ridge
        right = self.y.mT @ points  # (D, K + 1)
        root = torch.linalg.cholesky(normal)[self.column_of]
        c = torch.cholesky_solve(right.unsqueeze(-1), root).squeeze(-1)
        residual = self.y.square().sum(0) - (c * right).sum(1)
        r = ((residual + _OUTPUT_NOISE) / (self.mask.sum(0) + 1)).clamp_min(_LEAST_NOISE)
        return LinearDynamicalSystem(a, 0.5 * (q + q.mT), c[:, :k], c[:, k], r, m0, 0.5 * (v0 + v0.mT), step, m0[:0])


def _log_prior(system: LinearDynamicalSystem) -> float:
    """Logarithm of the conjugate priors, up to a constant. In the M step they act as a few additional observations."""
    a, q, r = system.transition, system.transition_noise, system.noise
    m, v = system.initial_mean, system.initial_covariance
    eye = torch.eye(len(a)).to(a)
    transition = q.logdet() + torch.linalg.solve(q, _STATE_NOISE * eye + _RIDGE * a @ a.mT).trace()
    initial = v.logdet() + torch.linalg.solve(v, eye + _outer(m, m)).trace()
    output = r.log() + (_OUTPUT_NOISE + _RIDGE * system.loadings.square().sum(1)) / r
    return -0.5 * float(transition + initial + output.sum())


def _bounded(a: Tensor) -> Tensor:
    """A with eigenvalues above one in modulus shrunk to just below it; all of A is shrunk if it is nearly defective."""
    values, vectors = torch.linalg.eig(a)
    radius = values.abs()
    if bool((radius <= 1.0).all()):
        return a
    if float(torch.linalg.cond(vectors)) > 1e8:
        return a * (_RADIUS / radius.max())
    values = torch.where(radius > 1.0, values * _RADIUS / radius, values)
    return torch.linalg.solve(vectors, vectors * values, left=False).real


def _fixed_point(early: Tensor, late: Tensor) -> Tensor:
    """The fixed point (K,) of the regression of states on the states before them, (n, K) each; shrunk towards zero."""
    if len(early) <= early.shape[1]:
        return early.new_zeros(early.shape[1])
    eye, middle = torch.eye(early.shape[1]).to(early), early.mean(0)
    centred = early - middle
    a = torch.linalg.solve(centred.mT @ centred + _RIDGE * eye, late.mT @ centred, left=False)
    rest = eye - a
    return torch.linalg.solve(rest.mT @ rest + _SHIFT * eye, rest.mT @ (late.mean(0) - a @ middle))


def _scores(y: Tensor, some: Tensor, number: int) -> Tensor:
    """At most ``number`` principal components of y (N, D) that have variance one over the frames ``some``."""
    centred = y - y[some].mean(0)
    _, s, v = torch.linalg.svd(centred[some], full_matrices=False)
    s, v = s[:number], v[:number]
    return centred @ (v / s.clamp_min(1e-9 * s.max().clamp_min(1e-290)).unsqueeze(-1)).mT * int(some.sum()) ** 0.5


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(-1) * y.unsqueeze(-2)
