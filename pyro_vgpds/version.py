# SPDX-License-Identifier: Apache-2.0
"""The version, which files record."""

__all__ = ["__version__"]

__version__ = "0.1.0"
