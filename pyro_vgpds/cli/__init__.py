# SPDX-License-Identifier: Apache-2.0
"""The command line ``pyro-vgpds``, which is also ``python -m pyro_vgpds``."""

from pyro_vgpds.cli.run import main

__all__ = ["main"]
