# SPDX-License-Identifier: Apache-2.0
"""Kernels of time written as text, such as ``"matern32 + white + bias"``. The text is read, never run."""

from __future__ import annotations

import re
from collections.abc import Callable

from pyro_vgpds.kernels.base import Kernel
from pyro_vgpds.kernels.constant import Bias, White
from pyro_vgpds.kernels.markov_rbf import MarkovRBF
from pyro_vgpds.kernels.stationary import RBF, Linear, Matern12, Matern32, Matern52, Periodic

__all__ = ["parse_kernel"]

#: what a name stands for, where it has no arguments: those of a small latent noise and of a small offset
_KERNELS: dict[str, Callable[[], Kernel]] = {
    "rbf": RBF,
    "markovrbf": MarkovRBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "periodic": Periodic,
    "linear": Linear,
    "white": lambda: White(1e-2),
    "bias": lambda: Bias(0.1),
}
_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|(?P<sign>[-+*(),=]))")
_DEEPEST = 20  # brackets within brackets


def parse_kernel(text: str) -> Kernel:
    """The kernel of time that ``text`` describes.

    Names are ``rbf``, ``markovrbf``, ``matern12``, ``matern32``, ``matern52``, ``periodic``, ``linear``, ``white`` and
    ``bias``, in capitals or not; ``+``, ``*`` and brackets combine them. A name may have parameters, learned from the
    value that is given or held at it: ``"periodic(period=24 fixed) * rbf(lengthscale=100) + white(variance=0.01)"``.
    What is left out is chosen from the data, or is the default of the class; ``white`` starts at 0.01 and ``bias`` at
    0.1.

    :param text: the description.
    :raises ValueError: where the text is not a kernel; it says where and what is wanted.
    :raises TypeError: where it is no text.

    >>> from pyro_vgpds.kernels import parse_kernel
    >>> parse_kernel("periodic(period=24 fixed) * rbf(lengthscale=100) + white")
    Periodic(variance=1, lengthscale=1, period=24 (fixed)) * RBF(variance=1, lengthscale=100) + White(variance=0.01)
    """
    if not isinstance(text, str):
        raise TypeError(f"the kernel must be a text such as 'matern32+white+bias', but got {type(text).__name__}.")
    return _Reader(text).kernel()


class _Reader:
    """Recursive descent: sum = product (+ product)*, product = factor (* factor)*, factor = name | ( sum )."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tokens: list[tuple[str, str, int]] = []  # kind, text, where it begins
        while self.text[self.at :].strip():
            match = _TOKEN.match(self.text, self.at)
            if match is None:
                at = len(self.text) - len(self.text[self.at :].lstrip())
                raise self.error(f"{self.text[at]!r} is not understood", at)
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind], match.start(kind)))
            self.at = match.end()
        self.tokens.append(("end", "", len(text)))
        self.next = 0

    def error(self, problem: str, at: int) -> ValueError:
        return ValueError(
            f"the kernel {self.text!r}: {problem} at character {at + 1}. Write names with + and *, as in "
            f"'matern32+white+bias'; the names are {', '.join(_KERNELS)}."
        )

    def peek(self) -> str:
        return self.tokens[self.next][1]

    def take(self, wanted: str, kind: str | None = None) -> str:
        """The next token, which must be of this kind, or where none is named be ``wanted`` itself."""
        found, text, at = self.tokens[self.next]
        if (found != kind) if kind else (text != wanted):
            raise self.error(f"{wanted} is wanted, but there is {text or 'the end'}", at)
        self.next += 1
        return text

    def kernel(self) -> Kernel:
        kernel = self.sum(0)
        kind, text, at = self.tokens[self.next]
        if kind != "end":
            raise self.error(f"+ or * is wanted, but there is {text}", at)
        return kernel

    def sum(self, depth: int) -> Kernel:
        total = self.product(depth)
        while self.peek() == "+":
            self.next += 1
            total = total + self.product(depth)
        return total

    def product(self, depth: int) -> Kernel:
        total = self.factor(depth)
        while self.peek() == "*":
            self.next += 1
            total = total * self.factor(depth)
        return total

    def factor(self, depth: int) -> Kernel:
        if self.peek() == "(":
            if depth == _DEEPEST:
                raise self.error("too many brackets within brackets", self.tokens[self.next][2])
            self.next += 1
            kernel = self.sum(depth + 1)
            self.take(")")
            return kernel
        at = self.tokens[self.next][2]
        name = self.take("the name of a kernel", "name")
        if name.lower() not in _KERNELS:
            raise self.error(f"there is no kernel {name!r}", at)
        kernel = _KERNELS[name.lower()]()
        if self.peek() == "(":
            self.parameters(kernel)
        return kernel

    def parameters(self, kernel: Kernel) -> None:
        self.take("(")
        while True:
            at = self.tokens[self.next][2]
            name = self.take("the name of a parameter", "name")
            if name not in kernel._names:
                known = ", ".join(kernel._names)
                raise self.error(f"{type(kernel).__name__} has no parameter {name!r}, only {known},", at)
            self.take("=")
            at = self.tokens[self.next][2]
            value = float(self.take("a positive number", "number"))
            if not 0.0 < value < float("inf"):
                raise self.error(f"{name} must be a positive number, but is {value:g}", at)
            kernel.set(name, value)
            kernel.unset.discard(name)
            if self.peek() == "fixed":
                self.next += 1
                kernel.fix(name)
            if self.peek() != ",":
                break
            self.next += 1
        self.take(")")
