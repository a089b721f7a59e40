# SPDX-License-Identifier: Apache-2.0
"""Files: the container that all share, trained models, and films."""

from pyro_vgpds.files.container import FileFormatError
from pyro_vgpds.files.film import write_film
from pyro_vgpds.files.models import load, load_metadata, save

__all__ = [
    "FileFormatError",
    "load",
    "load_metadata",
    "save",
    "write_film",
]
