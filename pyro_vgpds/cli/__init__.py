# SPDX-License-Identifier: Apache-2.0
"""The command line ``pyro-vgpds``; ``python -m pyro_vgpds`` is the same."""

from pyro_vgpds.cli.run import main

__all__ = ["main"]
