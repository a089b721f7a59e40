# SPDX-License-Identifier: Apache-2.0
"""One pass over the outputs: their means, variances and missing patterns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.data.groups import Patterns

__all__ = ["Summary", "summarise"]


class Summary(NamedTuple):
    """Statistics of the observed entries of each output, (D,), and the rows in which outputs were observed."""

    means: Tensor
    variances: Tensor
    counts: Tensor
    patterns: Patterns


def summarise(blocks: Iterable[tuple[slice, Tensor]], num_outputs: int, t: Tensor) -> Summary:
    """The summary of blocks of columns (N, block) at the times t (N,); a ValueError if an output is infinite."""
    n = len(t)
    pattern = np.zeros(num_outputs, dtype=np.int32)  # 0 is "every row observed"
    masks: dict[bytes, int] = {np.packbits(np.ones(n, dtype=bool)).tobytes(): 0}
    means, variances = t.new_zeros(num_outputs), t.new_zeros(num_outputs)
    counts = torch.full((num_outputs,), n, dtype=torch.long, device=t.device)
    for where, block in blocks:
        if bool(torch.isinf(block).any()):
            row, column = (int(i) for i in torch.isinf(block).nonzero()[0])
            hint = " or too large for torch.float32: use another unit or dtype=torch.float64"
            raise ValueError(
                f"y must be finite or NaN (not observed), but row {row}, column {where.start + column} is infinite"
                f"{hint if block.dtype == torch.float32 else ''}."
            )
        missing = torch.isnan(block)
        if bool(missing.any()):
            bits = np.packbits(~missing.cpu().numpy(), axis=0).T
            pattern[where] = [masks.setdefault(b.tobytes(), len(masks)) for b in bits]
            counts[where] = n - missing.sum(0)
        count = counts[where].to(block.dtype)
        mean = torch.nansum(block, 0) / count
        means[where] = mean
        variances[where] = torch.nansum((block - mean).square(), 0) / count
    unpacked = [np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=n) for bits in masks]
    return Summary(means, variances, counts, Patterns(np.stack(unpacked).astype(bool), pattern))
