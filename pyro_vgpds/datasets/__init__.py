# SPDX-License-Identifier: Apache-2.0
"""Data to try the library on."""

from pyro_vgpds.datasets.synthetic import Dataset, make_sequences

__all__ = ["Dataset", "make_sequences"]
