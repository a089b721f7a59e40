# SPDX-License-Identifier: Apache-2.0
"""Arguments of predictions, checked against the training data: times, outputs, exposures, and their sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import check_noise, is_whole, positive
from pyro_vgpds.data.parts import check_zone, sequence_names
from pyro_vgpds.data.reading import is_list, read_exposure, read_outputs, read_times, to_tensor
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import check_range
from pyro_vgpds.formatting import Default, counted
from pyro_vgpds.inference.outputs_start import check_exposure
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.prediction.outputs import Outputs, Parts
from pyro_vgpds.types import ArrayLike, DataLike

if TYPE_CHECKING:
    import pandas

__all__ = [
    "ONLY", "OneSequence", "SequenceLike", "describe_parts", "expose", "read_new_data", "read_new_times",
    "read_scale", "read_variance", "resolve_sequence", "resolve_sequences",
]  # fmt: skip

ONLY = Default("the only sequence")
_SHOWN = 20  # names in an error message

#: index or name of a training sequence, or None for a new one
OneSequence: TypeAlias = "int | str | None"
#: the same, or a list with one entry for each of several sequences
SequenceLike: TypeAlias = "OneSequence | Sequence[OneSequence]"


def resolve_sequences(sequence: SequenceLike | Default, data: Sequences, num_new: int) -> list[int | None]:
    """The training sequence that each of ``num_new`` sequences belongs to, from 0, or None for a new one.

    :param sequence: as in :class:`~pyro_vgpds.Posterior`; one that is not a list holds for all.
    :raises TypeError: if an entry is not a whole number, a name or None.
    :raises ValueError: if there is no such training sequence, or the number of entries differs.
    """
    one = cast("OneSequence | Default", sequence)
    given = list(sequence) if isinstance(sequence, (list, tuple)) else [one] * num_new
    if len(given) != num_new:
        raise ValueError(f"sequence has {len(given)} entries, but t has {counted(num_new, 'sequence')}.")
    return [resolve_sequence(each, data) for each in given]


def resolve_sequence(sequence: OneSequence | Default, data: Sequences) -> int | None:
    """The same for one sequence.

    :raises ValueError: also if the only sequence is asked for and there are several.
    """
    count = data.num_sequences
    if isinstance(sequence, Default):
        if count > 1:
            raise ValueError(
                f"sequence is required because there are {count} training sequences: {_known(data)}, or None for a "
                "new sequence."
            )
        return 0
    if sequence is None:
        return None
    if isinstance(sequence, str):
        if sequence not in (data.names or []):
            hint = "" if data.names else " The sequences have no names: Sequences(t, y, names=[...]) gives them names."
            raise ValueError(
                f"sequence must be {_known(data)}, or None for a new sequence, but got {sequence!r}.{hint}"
            )
        return cast("list[str]", data.names).index(sequence)
    if not is_whole(sequence):
        raise TypeError(f"sequence must be a whole number, a name or None, but got {sequence!r}.")
    if not -count <= sequence < count:
        raise ValueError(f"sequence must be {_known(data)}, or None for a new sequence, but got {sequence}.")
    return int(sequence) % count


def _known(data: Sequences) -> str:
    """The indices of the sequences, and their names."""
    found = f"0 to {data.num_sequences - 1}"
    if data.names is None:
        return found
    more = ", …" if len(data.names) > _SHOWN else ""
    return f"{found}, or one of the names {', '.join(map(repr, data.names[:_SHOWN]))}{more}"


def describe_parts(data: Sequences, new: Sequences, belongs: Sequence[int | None]) -> Parts:
    """The sequences of a prediction at new frames, with the names of the training sequences that they belong to."""
    known = sequence_names(data)
    fresh = "" if all(s is None for s in belongs) else "new "
    return Parts(new.lengths, [f"{fresh}{i}" if s is None else known[s] for i, s in enumerate(belongs)])


def read_new_times(t: ArrayLike, data: Sequences) -> Tensor:
    """New times of one sequence, (T,), in the units of the training times and in any order."""
    stamps = _read_stamps(t, data, increasing=False)
    if is_list(t):
        raise ValueError(f"t must be the times of one sequence, (T,), but got a list of {len(stamps)}.")
    times = torch.from_numpy(stamps[0]).to(data.times.t)
    check_range(times)
    return times


def read_new_data(t: DataLike, y: DataLike, data: Sequences, name: str = "y") -> Sequences:
    """New times and outputs; columns that a DataFrame does not have are hidden.

    :param name: the argument that ``y`` was given as, for errors.
    :raises ValueError: if there are no outputs, or not those of the training data.
    """
    if y is None:
        raise ValueError("y is required: outputs with NaN where they are hidden. For times alone use forecast().")
    stamps, several = _read_stamps(t, data), is_list(t)
    y = [_align(part, data, name) for part in y] if several and isinstance(y, (list, tuple)) else _align(y, data, name)
    arrays, _ = read_outputs(y, stamps, several, name)
    if name != "y" and any(bool(to_tensor(array, data.dtype).isinf().any()) for array in arrays):
        raise ValueError(f"{name} must be finite or NaN (not known), but it has infinite values.")
    new = Sequences(stamps if several else stamps[0], y, dtype=data.dtype, device=data.device)
    if new.num_outputs != data.num_base_outputs:
        raise ValueError(f"{name} has {new.num_outputs} outputs, but the model has {data.num_base_outputs}.")
    return new.lagged(data.lags) if data.lags else new


def _read_stamps(t: DataLike, data: Sequences, increasing: bool = True) -> list[np.ndarray]:
    """Times in the units of the training times, one array for each sequence."""
    stamps, origin, zone = read_times(t, data.time_origin, increasing)
    if origin is not None and data.time_origin is None:
        raise TypeError("t has dates, but the training times are numbers. Give numbers.")
    check_zone(zone, data, "t", origin is not None and not _is_numpy(t))
    return stamps


def _is_numpy(t: DataLike) -> bool:
    """Whether dates are datetime64 of numpy, which has no time zones: they are UTC if those of training have one."""
    return all(isinstance(part, np.ndarray) for part in t) if is_list(t) else isinstance(t, np.ndarray)


def _align(y: ArrayLike, data: Sequences, name: str) -> ArrayLike:
    """A DataFrame, or a Series with a name, with the columns of training, in their order."""
    columns = data.base_columns
    if columns is None or not hasattr(y, "reindex"):
        return y
    if hasattr(y, "to_frame"):  # a Series, whose name is that of its column
        series = cast("pandas.Series", y)
        if series.name is None:
            return y
        y = series.to_frame()
    frame = cast("pandas.DataFrame", y).rename(columns=str)
    unknown = [column for column in frame.columns if column not in columns]
    if unknown:
        raise ValueError(f"{name} must have columns of the training data, but it has {unknown[0]!r}.")
    return frame.reindex(columns=columns)


def read_variance(noise_variance: ArrayLike | float | None, data: Sequences) -> Tensor | None:
    """(1,) or (D,), with lags also of the lagged copies."""
    if noise_variance is None:
        return None
    given = positive("noise_variance", noise_variance)
    if given.shape != (data.num_outputs,):
        given = check_noise(given, data.num_base_outputs, "noise_variance")
    return _repeat(given.to(data.times.t).reshape(-1), data)


def read_scale(output_scale: ArrayLike | None, data: Sequences) -> Tensor | None:
    """(D,), with lags also of the lagged copies."""
    if output_scale is None:
        return None
    scale = positive("output_scale", output_scale).to(data.times.t)
    if len(scale.shape) != 1 or len(scale) not in (data.num_base_outputs, data.num_outputs):
        raise ValueError(f"output_scale must be ({data.num_base_outputs},), but its shape is {tuple(scale.shape)}.")
    return _repeat(scale, data)


def _repeat(value: Tensor, data: Sequences) -> Tensor:
    """Numbers of the data's own outputs also for their lagged copies."""
    own = data.num_base_outputs
    return value.repeat(data.num_outputs // own) if len(value) == own else value


def expose(outputs: LikelihoodValue, exposure: ArrayLike, prediction: Outputs) -> LikelihoodValue:
    """The likelihood of T predicted frames with other exposures, (D,) or (T, D).

    :raises ValueError: if the shape is another, an exposure is not positive, or an output has none.
    """
    times, width = prediction.shape
    value = read_exposure(exposure, [times], width, False, prediction.t.device)
    check_exposure(outputs.likelihood, value, prediction.columns, "exposure")
    return outputs.exposed(value)
