# SPDX-License-Identifier: Apache-2.0
"""Files: their common container, trained models, tables of predictions, and videos."""

from pyro_vgpds.files.container import FileFormatError
from pyro_vgpds.files.film import write_film
from pyro_vgpds.files.models import load, load_metadata, save
from pyro_vgpds.files.tables import write_table

__all__ = [
    "FileFormatError", "load", "load_metadata", "save", "write_film", "write_table",
]  # fmt: skip
