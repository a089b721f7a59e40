# SPDX-License-Identifier: Apache-2.0
"""``python -m pyro_vgpds``: the command line."""

import sys

from pyro_vgpds.cli import main

if __name__ == "__main__":
    sys.exit(main())
