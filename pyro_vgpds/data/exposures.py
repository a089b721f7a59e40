# SPDX-License-Identifier: Apache-2.0
"""Exposures of counts: the time, population or effort that each count belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import as_numbers
from pyro_vgpds.data.reading import is_list
from pyro_vgpds.types import DataLike

__all__ = ["join_exposures", "read_exposure"]


def read_exposure(
    exposure: DataLike | None, lengths: Sequence[int], num_outputs: int, several: bool, device: torch.device
) -> Tensor | None:
    """Exposures (D,), the same in every frame, or (N, D), also from a list of (n, D); None stays None.

    :param num_outputs: D, or 0 if it is not known.
    :param several: whether the times were a list of sequences.
    :raises ValueError: if the shape is another, or an exposure is not positive and finite.
    :raises TypeError: if it is not numbers.
    """
    if exposure is None:
        return None
    if several and is_list(exposure):
        if len(exposure) != len(lengths):
            raise ValueError(f"t has {len(lengths)} sequences, but exposure has {len(exposure)}.")
        parts = [as_numbers(f"exposure[{i}]", part) for i, part in enumerate(exposure)]
        if len({part.shape[1:] for part in parts}) > 1 or parts[0].ndim == 0:
            raise ValueError(f"exposure must be (n, D) for each sequence, but got {[part.shape for part in parts]}.")
        value = np.concatenate(parts)
    else:
        value = as_numbers("exposure", exposure)
    width = num_outputs or value.shape[-1] if value.ndim else 0
    if value.shape not in ((width,), (sum(lengths), width)):
        raise ValueError(
            f"exposure must be (D,) or (N, D) with N = {sum(lengths)} frames and D = {num_outputs or 'any number of'} "
            f"outputs, but its shape is {value.shape}."
        )
    wrong = np.argwhere(~(np.isfinite(value) & (value > 0.0)))
    if len(wrong):
        *row, column = wrong[0].tolist()
        raise ValueError(
            f"exposure must be positive and finite, but it is {float(value[tuple(wrong[0])])!r} for output {column}"
            f"{_frame(row[0], lengths) if row else ''}."
        )
    return torch.from_numpy(value.copy()).to(device)


def _frame(row: int, lengths: Sequence[int]) -> str:
    sequence = 0
    while row >= lengths[sequence]:
        row -= lengths[sequence]
        sequence += 1
    return f", frame {row} of sequence {sequence}"


def join_exposures(exposures: Sequence[tuple[Tensor | None, int]], num_outputs: int) -> Tensor | None:
    """The exposures of data that are joined, each (D,), (N, D) or None with its number of frames; None counts as 1."""
    known = [each for each, _ in exposures if each is not None]
    if not known:
        return None
    if len(known) == len(exposures) and all(each.dim() == 1 and each.equal(known[0]) for each in known):
        return known[0]
    ones = torch.ones(num_outputs, dtype=known[0].dtype, device=known[0].device)
    return torch.cat([(ones if each is None else each).expand(count, num_outputs) for each, count in exposures])
