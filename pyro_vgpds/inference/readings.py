# SPDX-License-Identifier: Apache-2.0
"""How the kernel of time of each model was read last, so that the next evaluation need not read it again."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from torch import nn

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.temporal.covariance import TemporalCovariance
from pyro_vgpds.temporal.path_reader import KernelReader

__all__ = ["keep_reader", "kept_reader"]


class _Reading(NamedTuple):
    reader: KernelReader
    data: weakref.ref[Sequences]
    structure: object


_readings: weakref.WeakKeyDictionary[object, _Reading] = weakref.WeakKeyDictionary()


def keep_reader(model: object, data: Sequences, covariance: TemporalCovariance) -> None:
    """Keep a reader of the kernel of a model, if K_t on the data has one."""
    kernel = getattr(model, "temporal", None)
    reader = covariance.path_reader(kernel) if isinstance(kernel, nn.Module) else None
    if reader is not None:
        _readings[model] = _Reading(reader, weakref.ref(data), getattr(model, "structure", None))


def kept_reader(model: object, data: Sequences) -> KernelReader | None:
    """The reader for a model on these data; None if more than the values of parameters has changed since."""
    reading = _readings.get(model)
    if reading is None or reading.data() is not data or reading.structure != getattr(model, "structure", None):
        return None
    kernel = getattr(model, "temporal", None)
    return reading.reader if isinstance(kernel, nn.Module) and reading.reader.is_current(kernel) else None
