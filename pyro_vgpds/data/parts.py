# SPDX-License-Identifier: Apache-2.0
"""Parts of sequences: other outputs at the same times, some frames, some sequences."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pyro_vgpds.data.sequences import Sequences

__all__ = ["base_outputs", "make_like", "split_outputs", "take_frames", "with_outputs", "without_lags"]


def base_outputs(data: Sequences) -> Tensor:
    """The outputs (N, D) without lagged copies."""
    return data.read(0, data.num_base_outputs)


def split_outputs(data: Sequences) -> tuple[list[Tensor], list[Tensor]]:
    """Times (n,) and outputs (n, D) of each sequence, without lagged copies."""
    return list(data.times.t.split(data.lengths)), list(base_outputs(data).split(data.lengths))


def make_like(
    data: Sequences, t: Sequence[Tensor], y: Sequence[Tensor], lags: Sequence[int] | None = None
) -> Sequences:
    """Other times and outputs with the names, dates, dtype and device of ``data``.

    :param lags: Default: those of ``data``.
    """
    columns = None if data.columns is None else data.columns[: data.num_base_outputs]
    new = Sequences(
        [part.cpu() for part in t], [part.cpu() for part in y], columns=columns, dtype=data.dtype, device=data.device
    )
    new.time_origin = data.time_origin
    lags = data.lags if lags is None else lags
    return new.lagged(lags) if lags else new


def without_lags(data: Sequences) -> Sequences:
    """The same sequences without lagged copies."""
    return make_like(data, *split_outputs(data), lags=()) if data.lags else data


def with_outputs(data: Sequences, y: Tensor) -> Sequences:
    """The same times with the outputs ``y`` (N, D)."""
    return make_like(data, data.times.t.split(data.lengths), y.split(data.lengths))


def take_frames(data: Sequences, rows: Sequence[Tensor | slice]) -> Sequences:
    """Some frames of each sequence.

    :param rows: for each sequence a slice, a mask or indices of its frames; sequences without frames are dropped.
    """
    parts = [(t[r], y[r]) for t, y, r in zip(*split_outputs(data), rows, strict=True)]
    kept = [(t, y) for t, y in parts if len(t)]
    return make_like(data, [t for t, _ in kept], [y for _, y in kept])
