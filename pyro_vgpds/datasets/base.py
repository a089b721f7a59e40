# SPDX-License-Identifier: Apache-2.0
"""The return type of all loaders and generators: arrays with metadata."""

from __future__ import annotations

import importlib
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted

__all__ = ["DAMAGED", "Dataset", "require"]

#: exceptions of numpy for an npz or npy file that is truncated, damaged or of another format
DAMAGED = (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error, tokenize.TokenError)


@dataclass(frozen=True, repr=False)
class Dataset:
    """One or several sequences of D outputs, with metadata.

    >>> from pyro_vgpds.datasets import make_sequences
    >>> dataset = make_sequences(num_sequences=2, num_outputs=5, length=(20, 25))
    >>> [y.shape for y in dataset.y]
    [(25, 5), (23, 5)]
    >>> dataset
    Dataset(2 sequences, 48 frames, 5 outputs: 2 sequences on a drifting cycle, 5 outputs)
    >>> dataset.sequences()
    Sequences(2 sequences, 48 frames, 5 outputs)
    """

    t: list[np.ndarray]  #: times, (N_s,) for each sequence
    y: list[np.ndarray]  #: outputs, (N_s, D); NaN where nothing was observed
    description: str  #: a summary in one line
    terms: str = ""  #: source and licence
    columns: list[str] | None = None  #: names of the D outputs
    names: list[str] | None = None  #: names of the sequences
    latent: list[np.ndarray] | None = None  #: the true latent path, (N_s, Q), if known
    dates: list[np.ndarray] | None = None  #: the date of each frame, (N_s,) of datetime64, if known

    def __repr__(self) -> str:
        sizes = (counted(len(self.y), "sequence"), counted(sum(map(len, self.y)), "frame"))
        return f"{type(self).__name__}({', '.join(sizes)}, {counted(self.y[0].shape[1], 'output')}: {self.description})"

    def sequences(self) -> Sequences:
        """The data as :class:`~pyro_vgpds.Sequences`, one for each entry of ``t``."""
        return Sequences(self.t, self.y, columns=self.columns)


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or raise an ImportError with the command that installs the ``extra`` of it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(
            f"this function needs {package}, which is not installed: pip install 'pyro_vgpds[{extra}]' ({error})."
        ) from error
