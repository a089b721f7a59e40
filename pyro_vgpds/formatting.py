# SPDX-License-Identifier: Apache-2.0
"""Texts of numbers, defaults and priors."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torch import Tensor
from torch.distributions import Distribution, Independent

__all__ = ["Default", "counted", "describe_prior", "is_number", "joined", "numbers", "on_terminal", "to_number"]


class Default:
    """The default of an argument for which None has another meaning; signatures show ``meaning``."""

    def __init__(self, meaning: str) -> None:
        self.meaning = meaning

    def __repr__(self) -> str:
        return f"<{self.meaning}>"


def counted(number: int, noun: str) -> str:
    """``1 output``, ``2 outputs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def joined(names: Iterable[str]) -> str:
    """Names separated by commas, or by semicolons if a name has a comma.

    >>> from pyro_vgpds.formatting import joined
    >>> joined(["a", "b"]), joined(["a, b", "c"])
    ('a, b', 'a, b; c')
    """
    texts = list(names)
    return ("; " if any("," in text for text in texts) else ", ").join(texts)


def numbers(value: Tensor) -> str:
    """``0.25``, or ``[1, 2]``, to four digits."""
    texts = [f"{number:.4g}" for number in value.detach().flatten().tolist()]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def describe_prior(prior: object) -> str:
    """A distribution with its numbers, ``LogNormal(loc=-3, scale=1)``; a function of the module by its name."""
    while isinstance(prior, Independent):
        prior = prior.base_dist
    if not isinstance(prior, Distribution):
        return str(getattr(prior, "__name__", type(prior).__name__)).removeprefix("_pyro_prior_")  # Pyro's prefix
    values = {name: getattr(prior, name, None) for name in prior.arg_constraints}
    shown = [f"{name}={numbers(value)}" for name, value in values.items() if isinstance(value, Tensor)]
    if not shown and hasattr(prior, "base_dist"):
        shown = [describe_prior(prior.base_dist)]
    return f"{type(prior).__name__}({', '.join(shown)})"


def on_terminal() -> bool:
    """Whether the standard error is a terminal: False also if it is missing or closed.

    >>> from pyro_vgpds.formatting import on_terminal
    >>> on_terminal()
    False
    """
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False) and sys.stderr.isatty()


def is_number(text: str) -> bool:
    """Whether a string is a number by :func:`to_number`.

    >>> from pyro_vgpds.formatting import is_number
    >>> is_number("1e-3"), is_number("24h")
    (True, False)
    """
    try:
        to_number(text)
    except ValueError:
        return False
    return True


def to_number(text: str) -> float:
    """The number that a string such as 1e-3 or nan is. Unlike ``float``, it takes 2_1 for text: a name, not 21.

    :raises ValueError: if it is something else.

    >>> from pyro_vgpds.formatting import to_number
    >>> to_number("1e-3")
    0.001
    """
    if "_" in text:
        raise ValueError(f"{text!r} is not a number")
    return float(text)
