# SPDX-License-Identifier: Apache-2.0
"""The Gaussian factors of the outputs of a batch, which are a part of those of all frames."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.mapping.output_sites import OutputSites

__all__ = ["BatchFactors"]


class BatchFactors(OutputSites):
    """The factors of the outputs of a batch. Their updates are written to the store of all frames.

    :param store: the state of all factors, (2, N, F); NaN for frames that were not visited yet.
    :param rows: the frames of the batch, (n,). Default: all.
    :param is_held: whether ``Collapsed_ELBO`` leaves the updates to others.
    """

    def __init__(self, store: Tensor, rows: Tensor | None, is_held: bool = False) -> None:
        super().__init__()
        rows = torch.arange(store.shape[1], device=store.device) if rows is None else rows
        self._place = store, rows
        self.state, self.is_held = store[:, rows], is_held

    def set(self, state: Tensor, mark: int | None = None) -> None:
        super().set(state)
        store, rows = self._place
        store[:, rows] = self.state
