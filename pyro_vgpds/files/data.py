# SPDX-License-Identifier: Apache-2.0
"""Training data as parts of files."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.data.dates import read_zone
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.kernels import Json

__all__ = ["Tensors", "build_data", "describe_data"]

#: by their names in the file
Tensors: TypeAlias = dict[str, Tensor]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def describe_data(data: Sequences) -> tuple[Json, Tensors]:
    """Header and tensors of the data. Lagged copies of outputs are not stored, but made again."""
    header: Json = {
        "data": {
            "lengths": list(data.lengths),
            "columns": data.base_columns,
            "time_origin": None if data.time_origin is None else str(data.time_origin),
            "time_zone": data.time_zone,
            "lags": list(data.lags),
            "names": data.names,
        },
        "dtype": str(data.dtype).removeprefix("torch."),
    }
    exposure = {} if data.exposure is None else {"data.exposure": data.exposure}
    return header, {"data.t": data.times.t, "data.y": data.read(0, data.num_base_outputs), **exposure}


def build_data(
    header: Json, tensors: Tensors, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Sequences:
    """The data that :func:`describe_data` described."""
    about = header["data"]
    ends = torch.tensor(about["lengths"]).cumsum(0)[:-1]
    t, y = (list(torch.tensor_split(tensors[f"data.{name}"], ends)) for name in ("t", "y"))
    dtype = _DTYPES[header["dtype"]] if dtype is None else dtype
    names = about.get("names")  # not in older files
    exposure = tensors.get("data.exposure")  # only of counts
    data = Sequences(t, y, columns=about["columns"], names=names, exposure=exposure, dtype=dtype, device=device)
    data.time_origin = None if about["time_origin"] is None else np.datetime64(about["time_origin"])
    data.time_zone = about.get("time_zone")  # not in older files
    if data.time_zone is not None:
        read_zone(data.time_zone)
    return data.lagged(about["lags"]) if about.get("lags") else data  # older files have none
