# SPDX-License-Identifier: Apache-2.0
"""The metadata of model files: where the data come from, names, and the record of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pyro_vgpds.training.result import FitResult, pack_records, unpack_records

__all__ = ["Metadata"]

_HISTORY = 2000  # records that are kept of a training history


@dataclass(frozen=True)
class Metadata:
    """What :func:`~pyro_vgpds.save` writes for the command line. Files from elsewhere may have none of it.

    >>> from pyro_vgpds import load_metadata, save
    >>> from pyro_vgpds.training.metadata import Metadata
    >>> save("model.safetensors", model, guide, data, Metadata(source="walk.csv", training=result).pack())
    >>> Metadata.unpack(load_metadata("model.safetensors")).training.bound == result.bound
    True
    """

    source: str | None = None  #: name of the data file
    names: list[str] | None = None  #: of the sequences
    shape: tuple[int, int] | None = None  #: (H, W) of the frames of a video
    fps: float | None = None  #: of a video
    shrink: int = 1  #: side of the blocks of pixels that were averaged
    relevance_before: list[float] | None = None  #: of the latent dimensions before training, (Q,)
    training: FitResult | None = None
    seed: int | None = None  #: of training
    time: str | None = None  #: column of the times in the data file
    sequence: str | None = None  #: column with the name of each row's sequence

    def pack(self) -> dict[str, object]:
        """Numbers, strings, lists and dictionaries."""
        packed: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "seed"}
        packed["training"] = None if self.training is None else {**_pack(self.training), "seed": self.seed}
        return packed

    @classmethod
    def unpack(cls, metadata: Mapping[str, Any]) -> Metadata:
        """The inverse of :meth:`pack`. Other entries are ignored."""
        known = {f.name: metadata[f.name] for f in fields(cls) if metadata.get(f.name) is not None}
        if "shape" in known:
            known["shape"] = (int(known["shape"][0]), int(known["shape"][1]))
        if "training" in known:
            known["seed"], known["training"] = known["training"].get("seed"), _unpack(known["training"])
        return cls(**known)


def _pack(result: FitResult) -> dict[str, object]:
    every = -(-len(result.history) // _HISTORY)
    about = {"bound": result.bound, "stopped": result.stopped, "num_undone": result.num_undone, "method": result.method}
    return {**about, "history": pack_records(result.history[::every])}


def _unpack(about: Mapping[str, Any]) -> FitResult:
    history = unpack_records(about["history"])
    return FitResult(about["bound"], history, about["stopped"], about["num_undone"], about["method"])
