# SPDX-License-Identifier: Apache-2.0
"""Parts of sequences: other outputs at the same times, some frames, some sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.data.dates import to_dates
from pyro_vgpds.data.sequences import Sequences

__all__ = [
    "base_outputs", "check_data", "check_zone", "like_training", "make_like", "merge_frames", "same_outputs",
    "sequence_names", "split_outputs", "take_frames", "to_stamps", "with_outputs",
    "without_lags",
]  # fmt: skip


def check_data(data: object, needs_outputs: bool = True) -> None:
    """Raise a TypeError if ``data`` is not sequences, or a ValueError if it has no outputs and ``needs_outputs``."""
    if not isinstance(data, Sequences):
        is_frame = hasattr(data, "iloc") and hasattr(data, "columns")
        got = "a DataFrame. Sequences.from_frame(frame) reads it." if is_frame else f"{type(data).__name__}."
        raise TypeError(f"data must be Sequences(t, y), but got {got}")
    if needs_outputs and data.y is None:
        raise ValueError(f"data must be Sequences(t, y) with outputs, but got {data!r:.80}.")


def base_outputs(data: Sequences) -> Tensor:
    """The outputs (N, D) without lagged copies."""
    return data.read(0, data.num_base_outputs)


def split_outputs(data: Sequences) -> tuple[list[Tensor], list[Tensor]]:
    """Times (n,) and outputs (n, D) of each sequence, without lagged copies."""
    return list(data.times.t.split(data.lengths)), list(base_outputs(data).split(data.lengths))


def sequence_names(data: Sequences) -> list[str]:
    """The names of the sequences. Default: their numbers."""
    return data.names or [str(i) for i in range(data.num_sequences)]


def to_stamps(t: Tensor | np.ndarray, data: Sequences) -> np.ndarray:
    """Times in the kind of the data's: dates if they have dates, else the numbers themselves."""
    numbers = t.detach().cpu().numpy() if isinstance(t, Tensor) else t
    return numbers if data.time_origin is None else to_dates(numbers, data.time_origin)


def same_outputs(data: Sequences, other: Sequences) -> bool:
    """Whether two data of the same shape and dtype have the same outputs, except lagged copies."""
    if data is other:
        return True
    for columns, block in data.blocks():
        start, stop = columns.start, min(columns.stop, data.num_base_outputs)
        if start < stop:
            mine, theirs = block[:, : stop - start], other.read(start, stop)
            if not torch.equal(mine.isnan(), theirs.isnan()) or not torch.equal(mine.nan_to_num(), theirs.nan_to_num()):
                return False
    return True


def make_like(
    data: Sequences,
    t: Sequence[Tensor],
    y: Sequence[Tensor],
    lags: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    exposure: Tensor | None = None,
) -> Sequences:
    """Other times and outputs with the columns, dates, dtype and device of ``data``.

    :param lags: Default: those of ``data``.
    :param names: of the sequences. Default: those of ``data``, if there are as many.
    :param exposure: Default: those of ``data``, if they are the same in all frames or sequences are as long as there.
    """
    if names is None and len(t) == data.num_sequences:
        names = data.names
    new = Sequences(
        [part.cpu() for part in t], [part.cpu() for part in y], columns=data.base_columns, names=names,
        dtype=data.dtype, device=data.device,
    )  # fmt: skip
    new.time_origin, new.time_zone = data.time_origin, data.time_zone
    own = data.exposure
    new.exposure = (
        own if exposure is None and own is not None and (own.dim() == 1 or new.lengths == data.lengths) else exposure
    )
    lags = data.lags if lags is None else lags
    return new.lagged(lags) if lags else new


def without_lags(data: Sequences) -> Sequences:
    """The same sequences without lagged copies."""
    return make_like(data, *split_outputs(data), lags=()) if data.lags else data


def with_outputs(data: Sequences, y: Tensor) -> Sequences:
    """The same times with the outputs ``y`` (N, D)."""
    return make_like(data, data.times.t.split(data.lengths), y.split(data.lengths))


def take_frames(data: Sequences, rows: Sequence[Tensor | slice]) -> Sequences:
    """Some frames of each sequence: a slice, a mask or indices. Sequences without frames are dropped."""
    parts = [(t[r], y[r]) for t, y, r in zip(*split_outputs(data), rows, strict=True)]
    kept = [i for i, (t, _) in enumerate(parts) if len(t)]
    names = None if data.names is None else [data.names[i] for i in kept]
    exposure = data.exposure
    if exposure is not None and exposure.dim() > 1:
        exposure = torch.cat([e[r] for e, r in zip(exposure.split(data.lengths), rows, strict=True)])
    return make_like(data, [parts[i][0] for i in kept], [parts[i][1] for i in kept], names=names, exposure=exposure)


def check_zone(zone: str | None, data: Sequences, name: str, dated: bool = True) -> None:
    """Raise a TypeError if new dates have a time zone and those of training have none, or the reverse.

    :param dated: whether new dates without a zone are refused, too; else they are UTC.
    """
    if zone is not None and data.time_zone is None:
        raise TypeError(
            f"{name} has dates of the time zone {zone}, but the training dates have none. Give dates without a time "
            "zone, such as t.tz_localize(None)."
        )
    if zone is None and data.time_zone is not None and dated:
        raise TypeError(
            f"{name} has dates without a time zone, but those of training are of {data.time_zone}. Give dates with a "
            f"time zone, such as t.tz_localize({data.time_zone!r})."
        )


def like_training(data: Sequences, training: Sequences) -> Sequences:
    """The same sequences with times that count from the date of the training data; numbers are seconds since that date.

    :raises TypeError: if the times of ``data`` are dates and those of training are numbers, or only one of them has a
        time zone.
    """
    origin = training.time_origin
    if data.time_origin is not None and origin is None:
        raise TypeError("data has dates, but the training times are numbers. Give numbers.")
    check_zone(data.time_zone, training, "data", data.time_origin is not None)
    if data.time_origin == origin:
        return data
    shift = (
        0.0
        if data.time_origin is None or origin is None
        else float((data.time_origin - origin) / np.timedelta64(1, "s"))
    )
    t, y = split_outputs(data)
    new = make_like(data, [part + shift for part in t], y)
    new.time_origin, new.time_zone = origin, training.time_zone
    return new


def merge_frames(t: Tensor, y: Tensor, t_new: Tensor, y_new: Tensor) -> tuple[Tensor, Tensor]:
    """Times (n,) and outputs (n, D) of a sequence together with new frames, in the order of time.

    At times that both have, observed outputs of the new frame replace those of the old one.
    """
    times, place = torch.cat([t, t_new]).unique(return_inverse=True)
    merged = y.new_full((len(times), y.shape[1]), torch.nan)
    merged[place[: len(t)]] = y
    fresh = place[len(t) :]
    merged[fresh] = torch.where(y_new.isfinite(), y_new, merged[fresh])
    return times, merged
