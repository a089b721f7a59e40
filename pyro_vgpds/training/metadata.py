# SPDX-License-Identifier: Apache-2.0
"""The metadata of model files: the source of the data, names, and the record of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from pyro_vgpds.training.api import FitResult, Record

__all__ = ["describe", "read_result"]

_HISTORY = 2000  # records that are kept of a training history


def describe(
    result: FitResult,
    before: Tensor,
    *,
    source: str,
    scale: Tensor | None = None,
    names: list[str] | None = None,
    shape: Sequence[int] | None = None,
    fps: float | None = None,
    seed: int = 0,
    shrink: int = 1,
) -> dict[str, Any]:
    """Metadata for :func:`~pyro_vgpds.save`.

    :param before: relevance of the latent dimensions before training, (Q,).
    :param scale: what the outputs were divided by, (D,).
    :param names: of the sequences.
    :param shape: (H, W) of the frames of a video.
    :param fps: its frames per second.
    :param shrink: as ``--shrink`` of the command line.
    """
    every = -(-len(result.history) // _HISTORY)
    return {
        "source": source,
        "scale": scale,
        "names": names,
        "shape": shape,
        "fps": fps,
        "shrink": shrink,
        "relevance_before": before.tolist(),
        "training": {
            "history": [[record.step, record.seconds, record.bound] for record in result.history[::every]],
            "bound": result.bound,
            "stopped": result.stopped,
            "num_undone": result.num_undone,
            "method": result.method,
            "seed": seed,
        },
    }


def read_result(metadata: Mapping[str, Any]) -> FitResult | None:
    """The record of training that :func:`describe` wrote, if there is one."""
    about = metadata.get("training")
    if not about:
        return None
    history = [Record(int(step), seconds, bound) for step, seconds, bound in about["history"]]
    return FitResult(about["bound"], history, about["stopped"], about["num_undone"], about["method"])
