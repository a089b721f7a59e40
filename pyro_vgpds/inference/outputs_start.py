# SPDX-License-Identifier: Apache-2.0
"""Where training starts if outputs are not Gaussian: Gaussian pseudo-outputs, from which the rest follows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.kernels import ARDRBF, Bias, Kernel
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.families import Gaussian
from pyro_vgpds.likelihoods.guess import column_means, guess

__all__ = ["OutputStart", "check_likelihood", "check_outputs", "default_mapping", "read_likelihood", "start_outputs"]

_OFFSET = 0.1  # first variance of the functions' constant offsets, relative to that of the functions


class OutputStart(NamedTuple):
    """Functions that explain the outputs, as if these were Gaussian, with their means and scales (F,)."""

    data: Sequences
    mean: Tensor
    scale: Tensor


def read_likelihood(likelihood: object) -> Likelihood | None:
    """The likelihood of outputs that are not Gaussian, else None.

    :raises TypeError: if it is something else.
    """
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"likelihood must be one of pyro_vgpds.likelihoods, such as NegativeBinomial(), but got {likelihood!r:.80}."
        )
    return None if type(likelihood) is Gaussian else likelihood


def check_likelihood(likelihood: object, noise: object) -> None:
    """Raise an error unless just one of the two describes the outputs."""
    if read_likelihood(likelihood) is None:
        if noise is None:
            raise ValueError("noise must be a number, (D,) of them or a prior, but got None.")
    elif noise is not None:
        raise ValueError(f"noise must be None with likelihood={likelihood}, but got {noise!r:.80}.")


def check_outputs(likelihood: Likelihood, data: Sequences) -> None:
    """Raise a ValueError that names the first output that is not possible under the likelihood.

    :param likelihood: the likelihood of all outputs.
    :param data: sequences with outputs.
    """
    assert data.y is not None
    if data.lags:
        raise ValueError(
            f"data with lags need Gaussian outputs, but the likelihood is {type(likelihood).__name__}. Give the data "
            "without lagged()."
        )
    y = data.y.detach().double()
    wrong = (torch.isfinite(y) & ~likelihood.is_valid(torch.nan_to_num(y), likelihood().parameters)).nonzero()
    if not len(wrong):
        return
    row, column = wrong[0].tolist()
    sequence = next(i for i, rows in enumerate(data.times.slices()) if rows.start <= row < rows.stop)
    frame = row - data.times.slices()[sequence].start
    name = f" ({data.columns[column]!r})" if data.columns else ""
    more = f", and {len(wrong) - 1} more entries are not" if len(wrong) > 1 else ""
    raise ValueError(
        f"data has {float(y[row, column])!r} in output {column}{name}, frame {frame} of sequence {sequence}, but "
        f"{type(likelihood).__name__} outputs must be {likelihood.support_of(column)}{more}. NaN marks missing entries."
    )


def start_outputs(likelihood: Likelihood, data: Sequences) -> OutputStart:
    """The start for data whose outputs are possible; chooses the parameters of the likelihood that were not given."""
    assert data.y is not None
    y = data.y.detach().double()
    likelihood.prepare(y)
    likelihood.to(device=data.device, dtype=data.dtype)
    value = likelihood()
    f = guess(value, y, data.times.lengths)
    mean = value.link(column_means(y))
    centred = f - f.mean(0)
    scale = centred.square().mean(0).sqrt()
    scale = (
        torch.where(scale > 1e-3 * scale.max(), scale, scale.max()) if bool(scale.max() > 0) else torch.ones_like(f[0])
    )
    lengths = list(data.times.lengths)
    pseudo = Sequences(list(data.times.t.split(lengths)), list(f.to(data.dtype).split(lengths)), dtype=data.dtype,
                       device=data.device)  # fmt: skip
    return OutputStart(pseudo, mean.to(data.dtype), scale.to(data.dtype))


def default_mapping(likelihood: Likelihood | None) -> Kernel:
    """The mapping for outputs: functions of outputs that are not Gaussian have an offset that is learned."""
    return ARDRBF() if likelihood is None else ARDRBF() + Bias(_OFFSET)
