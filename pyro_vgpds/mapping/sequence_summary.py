# SPDX-License-Identifier: Apache-2.0
"""Training frames that are not in memory: predictions need the sums over them, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.mapping.bound import SiteLimits
from pyro_vgpds.mapping.frame_sums import FrameSums, common_groups, rescaled_sums, take_groups
from pyro_vgpds.mapping.psi import Psi
from pyro_vgpds.mapping.site_gp import SitePart

__all__ = ["SequenceSummary", "joined_groups", "summary_psi"]

_SUMS = ("a", "v", "slack", "of_output", "rows", "square", "log_scale")


class SequenceSummary(NamedTuple):
    """What sequences that are not in memory add to a trained model."""

    sums: FrameSums  #: over their frames
    kl: float  #: KL(q(X), p(X)) of their latent paths
    num_sequences: int  #: how many they are
    lam: Tensor  #: λ of q(X), the average over their frames, (Q,)
    limits: SiteLimits | None = None  #: of their Gaussian factors, if outputs are not Gaussian
    estimate: float = 0.0  #: what draws add to the bound of their outputs

    def rescaled(self, old: Tensor, new: Tensor) -> SequenceSummary:
        """The same for outputs with the scales ``new`` (D,) in place of ``old``."""
        return self._replace(sums=rescaled_sums(self.sums, old, new))

    def part(self, factor: Tensor) -> SitePart:
        """The same for Gaussian factors of outputs, as frames in memory have it."""
        assert self.limits is not None
        a = self.sums.a[self.sums.of_output]
        psi0 = self.sums.slack[self.sums.of_output] + a.diagonal(dim1=-2, dim2=-1).sum(-1)
        psi = Psi(psi0, factor @ self.sums.v, factor @ a @ factor.mT)
        return SitePart(psi, self.limits, -self.sums.log_scale)

    def tensors(self) -> dict[str, Tensor]:
        """All numbers, for a file."""
        found = {f"sums.{name}": getattr(self.sums, name) for name in _SUMS}
        numbers = self.sums.v.new_tensor([self.kl, self.num_sequences, self.estimate])
        if self.limits is not None:
            found |= {"seen": self.limits.seen, "most": self.limits.most, "size": torch.tensor(self.limits.size)}
        return {**found, "numbers": numbers, "lam": self.lam}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], device: torch.device) -> SequenceSummary:
        """The inverse of :meth:`tensors`."""
        own = {name: value.to(device) for name, value in tensors.items()}
        sums = FrameSums(*(own[f"sums.{name}"] for name in _SUMS))
        kl, count, estimate = tensors["numbers"].tolist()
        limits = SiteLimits(own["seen"], int(own["size"]), own["most"]) if "seen" in own else None
        return cls(sums, kl, int(count), own["lam"], limits, estimate)

    def to(self, device: torch.device) -> SequenceSummary:
        """The same on a device."""
        return SequenceSummary.from_tensors(self.tensors(), device)


def joined_groups(groups: ColumnGroups, sums: FrameSums) -> ColumnGroups:
    """The column groups of frames in memory, which have the columns themselves, divided by the groups of the sums over
    others. Numbers of rows are those of both, and sums of squares those of the frames in memory.
    """
    assert groups.order is not None, "sums over other frames need the columns themselves"
    of_output, own, other = common_groups(groups.of_column, sums.of_output)
    known = (own >= 0) | (other >= 0)  # the others are of outputs that were never observed
    widths = torch.bincount(of_output, minlength=len(own))
    chosen = known.nonzero().squeeze(-1)
    chosen = chosen[widths[chosen].argsort(stable=True)]  # groups of the same width follow each other
    place = torch.full_like(own, -1)
    place[chosen] = torch.arange(len(chosen), device=own.device)
    of_column = place[of_output]
    order = of_column.argsort(stable=True)[int((of_column < 0).sum()) :]
    n, d = len(groups.factor), len(of_output)
    columns = groups.factor.new_zeros(n, d).index_copy(1, groups.order, groups.factor)[:, order]
    first = torch.full_like(chosen, d).scatter_reduce(0, of_column[order], order, "amin")  # an output of each group
    mask = groups.mask
    if mask is not None or len(chosen) != 1 or int(own[chosen[0]]) < 0:
        whole = groups.factor.new_ones(len(groups.columns), n) if mask is None else mask
        mask = take_groups(whole, own[chosen])
    rows = torch.nn.functional.pad(groups.rows, (0, 1))[own[chosen]] + sums.rows[first]
    sizes = widths[chosen]
    squares = columns.square().sum(0)
    return replace(
        groups, mask=mask, columns=sizes.to(groups.rows), rows=rows, factor=columns, widths=tuple(sizes.tolist()),
        square=rows.new_zeros(len(chosen)).index_add(0, of_column[order], squares), of_column=of_column,
        log_scale=groups.log_scale + sums.log_scale, order=order, joint_squares=None,
    )  # fmt: skip


def summary_psi(sums: FrameSums, groups: ColumnGroups, factor: Tensor) -> Psi:
    """The Ψ statistics behind sums over frames that are not in memory, for groups by :func:`joined_groups`. ``factor``
    is L, by which the sums are whitened.
    """
    assert groups.order is not None
    group = groups.of_column[groups.order]
    which = torch.full((groups.num_groups,), -1, dtype=torch.long, device=group.device)
    which[group] = sums.of_output[groups.order]  # outputs of a group have the same
    a = take_groups(sums.a, which)
    psi0 = take_groups(sums.slack, which) + a.diagonal(dim1=-2, dim2=-1).sum(-1)
    return Psi(psi0, factor @ sums.v[:, groups.order], factor @ a @ factor.mT)
