# SPDX-License-Identifier: Apache-2.0
"""Numbers and values in words."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """``1 output``, ``2 outputs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
