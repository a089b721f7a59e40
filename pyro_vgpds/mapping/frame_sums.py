# SPDX-License-Identifier: Apache-2.0
"""Sums over frames: all that the bound with explicit inducing variables needs of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.communication import Communicator
from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.mapping.bound import check_slack
from pyro_vgpds.mapping.distributed_psi import sum_parts
from pyro_vgpds.mapping.group_terms import whiten
from pyro_vgpds.mapping.psi import Psi, expect
from pyro_vgpds.mapping.sparse_gp import SparseGP

__all__ = [
    "FrameSums", "added_groups", "added_sums", "common_groups", "frame_sums", "removed_sums", "rescaled_sums",
    "sum_frames", "take_groups", "whitened_psi",
]  # fmt: skip


class FrameSums(NamedTuple):
    """Sums over frames: all that the bound needs of them, for D outputs in C groups that were observed together."""

    a: Tensor  #: A = L⁻¹ Ψ2 L⁻ᵀ, (C, M, M)
    v: Tensor  #: L⁻¹ Ψ1ᵀ Y, (M, D), 0 for outputs that were not observed
    slack: Tensor  #: ψ0 − tr A, (C,), never negative
    of_output: Tensor  #: the group of each output, (D,), -1 if nothing of it was observed
    rows: Tensor  #: number of frames in which each output was observed, (D,)
    square: Tensor  #: sum of squares of each output, (D,)
    log_scale: Tensor  #: the log of the scale, summed over all observed entries


def frame_sums(gp: SparseGP, mean: Tensor, variance: Tensor, factor: Tensor, groups: ColumnGroups) -> FrameSums:
    """The sums of frames with latent points N(mean_n, diag variance_n), (N, Q). The x of ``gp`` is not read.

    :param groups: the column groups of the outputs, with the columns themselves.
    :raises NumericalError: if rounding error dominates.
    """
    psi = expect(gp.kernel, mean.double(), variance.double(), gp.inducing, groups.mask, groups.factor)
    a, v, slack = whitened_psi(psi, factor, gp.noise.detach().amin() * groups.rows)
    order, d = groups.order, len(groups.of_column)
    assert order is not None, "explicit inducing variables need the columns themselves"
    counts = torch.nn.functional.pad(groups.rows, (0, 1))[groups.of_column]  # an output that was not observed has -1
    return FrameSums(
        a, v.new_zeros(len(v), d).index_copy(1, order, v), slack, groups.of_column, counts,
        counts.new_zeros(d).index_copy(0, order, groups.factor.square().sum(0)), groups.log_scale,
    )  # fmt: skip


def whitened_psi(psi: Psi, factor: Tensor, unit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A = L⁻¹ Ψ2 L⁻ᵀ, L⁻¹ Ψ1ᵀ Y and the slack ψ0 − tr A, from L.

    :param unit: of noise, as for :func:`~pyro_vgpds.mapping.bound.check_slack`.
    :raises NumericalError: if rounding error dominates.
    """
    a, v = whiten(factor, psi.psi2), solve_triangular(factor, psi.psi1_y, upper=False)
    slack = psi.psi0 - a.diagonal(dim1=-2, dim2=-1).sum(-1)
    check_slack(slack, torch.cholesky_inverse(factor.detach()), psi.psi2, unit)
    return a, v, slack.clamp_min(0.0)  # or training would exploit the rounding


def common_groups(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest groups of outputs that lie within one group of each of two kinds: the new group of each output, (D,),
    and the first and second group that each new one lies in, (G,).

    :param first: a group of each output, (D,); -1 for none.
    :param second: another one.

    >>> import torch
    >>> from pyro_vgpds.mapping.frame_sums import common_groups
    >>> [part.tolist() for part in common_groups(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))]
    [[0, 1, 2], [0, 0, 1], [0, 1, 1]]
    """
    count = int(second.max()) + 2
    both, which = ((first + 1) * count + second + 1).unique(return_inverse=True)
    return which, torch.div(both, count, rounding_mode="floor") - 1, both % count - 1


def take_groups(values: Tensor, groups: Tensor) -> Tensor:
    """Values (C, ...) of the groups (G,), zeros for -1."""
    return torch.cat([values, values.new_zeros(1, *values.shape[1:])])[groups]


def added_groups(of_output: Tensor, a: Tensor, sums: FrameSums | None) -> tuple[Tensor, Tensor]:
    """The group of each output (D,), -1 if nothing of it was observed, and A of each group (G, M, M), with those of
    more frames, if there are any.
    """
    if sums is None:
        return of_output, a
    of_output, own, other = common_groups(of_output, sums.of_output)
    return of_output, take_groups(a, own) + take_groups(sums.a, other)


def added_sums(first: FrameSums, second: FrameSums) -> FrameSums:
    """The sums over the frames of both, which have the same outputs, kernel and inducing inputs."""
    return _combined(first, second, 1.0)


def removed_sums(whole: FrameSums, part: FrameSums) -> FrameSums:
    """The sums over the frames of ``whole`` that are not in ``part``."""
    rest = _combined(whole, part, -1.0)
    return rest._replace(slack=rest.slack.clamp_min(0.0), square=rest.square.clamp_min(0.0))  # of rounding


def _combined(first: FrameSums, second: FrameSums, sign: float) -> FrameSums:
    of_output, own, other = common_groups(first.of_output, second.of_output)
    a, slack = (
        take_groups(x, own) + sign * take_groups(y, other)
        for x, y in ((first.a, second.a), (first.slack, second.slack))
    )
    return FrameSums(
        a, first.v + sign * second.v, slack, of_output, first.rows + sign * second.rows,
        first.square + sign * second.square, first.log_scale + sign * second.log_scale,
    )  # fmt: skip


def rescaled_sums(sums: FrameSums, old: Tensor, new: Tensor) -> FrameSums:
    """The sums of outputs divided by ``old`` (D,), as if they were divided by ``new`` (D,)."""
    ratio = old / new
    log_scale = sums.log_scale - (sums.rows * ratio.log()).sum()
    return sums._replace(v=sums.v * ratio, square=sums.square * ratio.square(), log_scale=log_scale)


def sum_frames(sums: FrameSums, communicator: Communicator, different: bool = False) -> FrameSums:
    """The sums over the frames of all processes. Gradients are right for a loss that is 1/K of a function of them; if
    the functions are ``different``, the gradients of the processes are summed.
    """
    if communicator.size == 1:
        return sums
    every = communicator.all_gather_rows(sums.of_output.unsqueeze(0))  # (K, D)
    groups, of_output = every.unique(dim=1, return_inverse=True)  # (K, G): outputs that are alike in all processes
    own = groups[communicator.rank]
    slack, v, a = sum_parts(take_groups(sums.slack, own), sums.v, take_groups(sums.a, own), communicator, different)
    with torch.no_grad():
        parts = [sums.rows, sums.square, sums.log_scale.unsqueeze(-1)]
        rows, square, log_scale = communicator.all_reduce(torch.cat([part.to(a) for part in parts])).split(
            [len(p) for p in parts]
        )
    return FrameSums(a, v, slack, of_output, rows, square, log_scale.squeeze(-1))
