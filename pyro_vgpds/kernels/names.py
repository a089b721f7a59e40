# SPDX-License-Identifier: Apache-2.0
"""Names of kernels: in text, such as ``"matern32 + white + bias"``, and in files.

Text is parsed, and a name that is read from a file is looked up. Neither is ever imported or run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar, overload

from pyro_vgpds.data.durations import UNITS
from pyro_vgpds.kernels.ard import ARDRBF, ARDLinear
from pyro_vgpds.kernels.base import Kernel, Product, Sum
from pyro_vgpds.kernels.constant import Bias, White
from pyro_vgpds.kernels.linear import Linear
from pyro_vgpds.kernels.markov_rbf import MarkovRBF
from pyro_vgpds.kernels.stationary import RBF, Cosine, Matern12, Matern32, Matern52, Periodic
from pyro_vgpds.parameters.registry import Registry

__all__ = ["KERNELS", "parse_kernel", "parse_mapping", "register_kernel"]

_Names = dict[str, Callable[[], Kernel]]
#: the kernel of time of each name at its initial values: a small latent noise for white, a small offset for bias
_KERNELS: _Names = {
    "rbf": RBF,
    "markovrbf": MarkovRBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "periodic": Periodic,
    "cosine": Cosine,
    "linear": Linear,
    "white": lambda: White(1e-2),
    "bias": lambda: Bias(0.1),
}
_MAPPINGS: _Names = {
    "rbf": ARDRBF,
    "linear": ARDLinear,
    "white": lambda: White(1e-2),
    "bias": lambda: Bias(0.1),
}
_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|(?P<sign>[-+*(),=]))")
_DEEPEST = 20  # nested brackets
_SHOWN = 200  # characters in an error
_MOST = 50  # kernels: more cannot be trained in any useful time
K = TypeVar("K", bound=Kernel)
#: all that files can hold, besides sums and products
KERNELS = Registry(Kernel, "register_kernel", {"Sum": Sum, "Product": Product})


def parse_kernel(text: str) -> Kernel:
    """The kernel of time that ``text`` describes.

    Names are ``rbf``, ``markovrbf``, ``matern12``, ``matern32``, ``matern52``, ``periodic``, ``cosine``, ``linear``,
    ``white`` and ``bias``, in upper or lower case; ``+``, ``*`` and brackets combine them. A name may have parameters,
    which are initial values or, with ``fixed``, never change:
    ``"periodic(period=24 fixed) * rbf(lengthscale=100) + white(variance=0.01)"``. For data with dates, times can have
    one of the units s, min, h, d, w and y (365.25 d): ``"periodic(period=24h)"``. Other parameters have the defaults of
    their class, except that ``white`` starts at 0.01 and ``bias`` at 0.1.

    :param text: the description.
    :raises ValueError: if the text is not a kernel; the message gives the position and what is expected there.
    :raises TypeError: if it is not a string.

    >>> from pyro_vgpds.kernels import parse_kernel
    >>> parse_kernel("periodic(period=24 fixed) * rbf(lengthscale=100) + white")
    Periodic(variance=1, lengthscale=1, period=24 (fixed)) * RBF(variance=1, lengthscale=100) + White(variance=0.01)
    """
    return _Reader(text, _KERNELS, "matern32+white+bias").kernel()


def parse_mapping(text: str) -> Kernel:
    """The mapping kernel that ``text`` describes: ``rbf`` (:class:`ARDRBF`), ``linear`` (:class:`ARDLinear`),
    ``white``, ``bias`` and their sums, written as in :func:`parse_kernel`.

    :param text: the description.
    :raises ValueError: if the text is not a kernel, or it is a product, which has no analytic Ψ statistics.
    :raises TypeError: if it is not a string.

    >>> from pyro_vgpds.kernels import parse_mapping
    >>> parse_mapping("rbf + linear(weight=0.5)")
    ARDRBF(variance=1, weight=1) + ARDLinear(weight=0.5)
    """
    reader = _Reader(text, _MAPPINGS, "rbf+linear")
    for kind, sign, at in reader.tokens:
        if kind == "sign" and sign == "*":
            raise reader.error("* is not allowed, because products have no analytic Psi statistics,", at)
    return reader.kernel()


class _Reader:
    """Recursive descent: sum = product (+ product)*, product = factor (* factor)*, factor = name | ( sum )."""

    def __init__(self, text: str, names: _Names, example: str) -> None:
        """
        :raises TypeError: if ``text`` is not a string.
        :raises ValueError: if it has a character that no kernel has.
        """
        if not isinstance(text, str):
            raise TypeError(f"the kernel must be a string such as {example!r}, but got {type(text).__name__}.")
        self.text, self.at, self.names, self.example = text, 0, names, example
        self.tokens: list[tuple[str, str, int]] = []  # kind, text, position
        while self.text[self.at :].strip():
            match = _TOKEN.match(self.text, self.at)
            if match is None:
                at = len(self.text) - len(self.text[self.at :].lstrip())
                raise self.error(f"{self.text[at]!r} is not allowed", at)
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind], match.start(kind)))
            self.at = match.end()
        self.tokens.append(("end", "", len(text)))
        self.next = self.count = 0

    def error(self, problem: str, at: int) -> ValueError:
        signs = "+ and *" if self.names is _KERNELS else "+"
        shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}…"
        return ValueError(
            f"the kernel {shown!r}: {problem} at character {at + 1}. Write names with {signs}, as in "
            f"{self.example!r}; the names are {', '.join(self.names)}."
        )

    def peek(self) -> str:
        return self.tokens[self.next][1]

    def take(self, wanted: str, kind: str | None = None) -> str:
        """The next token, which must be of this kind or, if ``kind`` is None, equal to ``wanted``."""
        found, text, at = self.tokens[self.next]
        if (found != kind) if kind else (text != wanted):
            raise self.error(f"expected {wanted}, but got {text or 'the end'}", at)
        self.next += 1
        return text

    def kernel(self) -> Kernel:
        kernel = self.sum(0)
        kind, text, at = self.tokens[self.next]
        if kind != "end":
            raise self.error(f"expected + or *, but got {text}", at)
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
                raise self.error(f"more than {_DEEPEST} nested brackets", self.tokens[self.next][2])
            self.next += 1
            kernel = self.sum(depth + 1)
            self.take(")")
            return kernel
        at = self.tokens[self.next][2]
        name = self.take("the name of a kernel", "name")
        if name.lower() not in self.names:
            raise self.error(f"unknown kernel {name!r}", at)
        self.count += 1
        if self.count > _MOST:
            raise self.error(f"more than {_MOST} kernels", at)
        kernel = self.names[name.lower()]()
        if self.peek() == "(":
            self.parameters(kernel)
        return kernel

    def parameters(self, kernel: Kernel) -> None:
        self.take("(")
        while True:
            at = self.tokens[self.next][2]
            name = self.take("the name of a parameter", "name")
            if name not in kernel.parameter_names:
                known = ", ".join(kernel.parameter_names)
                raise self.error(f"{type(kernel).__name__} has no parameter {name!r}, only {known},", at)
            self.take("=")
            at = self.tokens[self.next][2]
            value = float(self.take("a positive number", "number"))
            if not 0.0 < value < float("inf"):
                raise self.error(f"{name} must be a positive number, but got {value:g}", at)
            kernel.set(name, self.unit(kernel, name, value))
            if self.peek() == "fixed":
                self.next += 1
                kernel.fix(name)
            if self.peek() != ",":
                break
            self.next += 1
        self.take(")")

    def unit(self, kernel: Kernel, name: str, value: float) -> float | str:
        """The value with the unit that follows, if one does."""
        kind, text, at = self.tokens[self.next]
        if kind != "name" or text == "fixed":
            return value
        if text.lower() not in UNITS:
            raise self.error(f"unknown unit {text!r} (known: {', '.join(UNITS)})", at)
        if name not in kernel.time_parameters:
            raise self.error(f"{name} of {type(kernel).__name__} is not a time, so it has no unit {text!r},", at)
        self.next += 1
        return f"{value!r}{text}"


@overload
def register_kernel(kernel: type[K]) -> type[K]: ...


@overload
def register_kernel(kernel: None = None, *, name: str) -> Callable[[type[K]], type[K]]: ...


def register_kernel(
    kernel: type[K] | None = None, *, name: str | None = None
) -> type[K] | Callable[[type[K]], type[K]]:
    """Give a kernel class the name under which files keep it, so that models with it can be saved and loaded.

    A file holds this name, the parameters and the options (``option_names``) of the kernel. To load it, import the
    module that registers the kernel first: files never name modules and nothing in them is run. The constructor must
    take each parameter and option by its name. Use it as a decorator, with or without a name.

    :param kernel: a class that derives from :class:`Kernel`.
    :param name: the name in files. Default: that of the class. Choose one that other people's kernels do not have,
        and keep it when you rename the class.
    :returns: the class.
    :raises TypeError: if ``kernel`` is not such a class, or ``name`` is not a string.
    :raises ValueError: if another class has the name already.

    >>> from pyro_vgpds.kernels import Kernel, KernelValue, register_kernel
    >>> @register_kernel(name="mylab.Brownian")
    ... class Brownian(Kernel):
    ...     def __init__(self, variance=1.0):
    ...         super().__init__()
    ...         self.add_parameter("variance", variance)
    >>> Brownian(2.0)
    Brownian(variance=2)
    """
    return KERNELS.decorate(kernel, name)
