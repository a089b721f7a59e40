# SPDX-License-Identifier: Apache-2.0
"""Where training starts if outputs are not Gaussian: Gaussian pseudo-outputs, from which the rest follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.communication import Communicator
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.shards import Shard
from pyro_vgpds.kernels import ARDRBF, Bias, Kernel
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.factors import rows_of_all
from pyro_vgpds.likelihoods.families import Gaussian
from pyro_vgpds.likelihoods.guess import function_means, guess
from pyro_vgpds.likelihoods.names import parse_likelihood
from pyro_vgpds.likelihoods.value import LikelihoodValue

__all__ = [
    "OutputStart", "check_exposure", "check_functions", "check_likelihood", "check_outputs", "default_mapping",
    "read_likelihood", "start_outputs",
]  # fmt: skip

_OFFSET = 0.1  # first variance of the functions' constant offsets, relative to that of the functions


class OutputStart(NamedTuple):
    """Functions that explain the outputs, as if these were Gaussian, with their means and scales (F,)."""

    data: Sequences
    mean: Tensor
    scale: Tensor

    @property
    def average(self) -> Tensor:
        """The average of all functions in units of their scales, (N,), NaN in frames without any output."""
        assert self.data.y is not None
        return ((self.data.y - self.mean) / self.scale).nanmean(-1)


def read_likelihood(likelihood: object) -> Likelihood | None:
    """The likelihood of outputs that are not Gaussian, else None."""
    found = None if likelihood is None else parse_likelihood(likelihood)
    return None if type(found) is Gaussian else found


def check_likelihood(likelihood: object, noise: object) -> None:
    """Raise an error unless just one of the two describes the outputs."""
    if read_likelihood(likelihood) is None:
        if noise is None:
            raise ValueError("noise must be a number, (D,) of them or a prior, but got None.")
    elif noise is not None:
        raise ValueError(f"noise must be None with likelihood={likelihood}, but got {noise!r:.80}.")


def check_functions(likelihood: Likelihood, count: int) -> None:
    """Raise a ValueError unless the likelihood of all outputs suits this number of functions."""
    if count % likelihood.num_functions:
        raise ValueError(
            f"output_mean must have {likelihood.num_functions} values for each output, as many as {likelihood} has "
            f"functions, but got {count}."
        )
    likelihood.meet(count // likelihood.num_functions)


def check_outputs(
    value: LikelihoodValue, data: Sequences, name: str = "data", columns: Sequence[str] | None = None
) -> None:
    """Raise a ValueError that names the first output of ``name`` that is not possible under the likelihood."""
    assert data.y is not None
    likelihood, columns = value.likelihood, data.columns if columns is None else columns
    if data.lags:
        raise ValueError(
            f"data with lags need Gaussian outputs, but the likelihood is {type(likelihood).__name__}. Give the data "
            "without lagged()."
        )
    likelihood.meet(data.num_outputs, columns)
    check_exposure(likelihood, data.exposure, columns)
    y = data.y.detach().double()
    wrong = (torch.isfinite(y) & ~likelihood.is_valid(torch.nan_to_num(y), value.parameters)).nonzero()
    if not len(wrong):
        return
    row, column = wrong[0].tolist()
    others = len(wrong) - 1
    more = f", and {others} more {'entry is' if others == 1 else 'entries are'} not" if others else ""
    raise ValueError(
        f"{name} has {float(y[row, column]):.10g} in {_place(data, row, column, columns)}, but "
        f"{likelihood.name_of(column)} outputs must be {likelihood.support_of(column)}{more}. NaN marks missing "
        "entries."
    )


def check_exposure(
    likelihood: Likelihood | None, exposure: Tensor | None, columns: Sequence[str] | None, name: str = "data"
) -> None:
    """Raise a ValueError that names the first output of ``name`` with an exposure whose likelihood takes none."""
    if exposure is None:
        return
    other = (exposure != 1.0).reshape(-1, exposure.shape[-1]).any(0)
    for column in other.nonzero().flatten().tolist():
        if likelihood is None or not likelihood.has_exposure(column):
            called = f" ({columns[column]!r})" if columns else ""
            raise ValueError(
                f"{name} has an exposure for output {column}{called}, whose likelihood is "
                f"{'Gaussian' if likelihood is None else likelihood.name_of(column)}: only counts (Poisson and "
                "NegativeBinomial) have one."
            )


def _place(data: Sequences, row: int, column: int, columns: Sequence[str] | None) -> str:
    sequence = next(i for i, rows in enumerate(data.times.slices()) if rows.start <= row < rows.stop)
    frame = row - data.times.slices()[sequence].start
    name = f" ({columns[column]!r})" if columns else ""
    return f"output {column}{name}, frame {frame} of sequence {sequence}"


def start_outputs(likelihood: Likelihood | None, data: Sequences) -> OutputStart:
    """The start for data; chooses the parameters of the likelihood that were not given. None: outputs are Gaussian.

    :raises ValueError: if an output is not possible under the likelihood, or in another process.
    """
    if likelihood is None:
        check_exposure(None, data.exposure, data.columns)
        return OutputStart(data, data.output_means, data.output_scales)
    if data.column_communicator.size > 1:
        raise ValueError(
            f"a model with {likelihood} needs all columns in each process, but they are divided between "
            f"{data.communicator.size}. Divide the sequences: distributed.shard(data)."
        )
    check_outputs(likelihood(), data)
    assert data.y is not None
    y, communicator = data.y.detach().double(), data.communicator
    likelihood.prepare(rows_of_all(y, communicator))
    likelihood.to(device=data.device, dtype=data.dtype)
    value = likelihood().exposed(data.exposure)
    f = guess(value, y, data.times.lengths, communicator)
    mean = function_means(value, y, communicator)
    seen = torch.isfinite(y).repeat_interleave(likelihood.num_functions, 1)
    # a guess of a discrete output that was not observed follows its neighbours; others are at the mean, without spread
    counts = seen | value.is_discrete(y.shape[1]).repeat_interleave(likelihood.num_functions).to(seen.device)
    scale = _deviations(f, counts, communicator)
    # of those that vary; the second function of an output may be in other units
    by_function = scale.unflatten(-1, (-1, likelihood.num_functions))
    usual = by_function.amax(0)
    usual = torch.where(usual > 0.0, usual, 1.0).expand_as(by_function).flatten()
    scale = torch.where(scale > 1e-3 * usual, scale, usual)
    # what was not observed is left to the start, which takes it from the other outputs
    f = torch.where(seen, f, torch.nan)
    lengths = list(data.times.lengths)
    pseudo = Sequences(list(data.times.t.split(lengths)), list(f.to(data.dtype).split(lengths)), dtype=data.dtype,
                       device=data.device)  # fmt: skip
    pseudo.time_origin = data.time_origin
    if communicator.size > 1:
        pseudo = Shard(pseudo, communicator)
    return OutputStart(pseudo, mean.to(data.dtype), scale.to(data.dtype))


def _deviations(f: Tensor, counts: Tensor, communicator: Communicator) -> Tensor:
    """Standard deviations (F,) of the function values (N, F) that count, in all processes."""
    number, total = communicator.all_reduce(torch.stack([counts.sum(0).to(f), torch.where(counts, f, 0.0).sum(0)]))
    number = number.clamp_min(1)
    return (communicator.all_reduce(torch.where(counts, f - total / number, 0.0).square().sum(0)) / number).sqrt()


def default_mapping(likelihood: Likelihood | None) -> Kernel:
    """The mapping for outputs: functions of outputs that are not Gaussian have an offset that is learned."""
    return ARDRBF() if likelihood is None else ARDRBF() + Bias(_OFFSET)
