# SPDX-License-Identifier: Apache-2.0
"""Sums of products of common kernels of time as programs, which compiled code runs in one call.

A kernel value is a tree of small tensors: to evaluate it, and to take gradients, takes hundreds of operations on a few
numbers each. If it consists of kernels that the compiled code ``_programs`` knows, products are distributed over sums,
and everything is computed from the matrix of its parameters. White noise may be a part of the outermost sum.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, chunks, run
from pyro_vgpds.kernels.constant import BiasValue, WhiteValue
from pyro_vgpds.kernels.stationary import (
    CosineValue,
    Matern12Value,
    Matern32Value,
    Matern52Value,
    PeriodicValue,
    RBFValue,
)
from pyro_vgpds.kernels.values import KernelValue, ProductValue, SumValue

__all__ = [
    "Matrices", "Program", "ProgramOf", "entries", "gathered", "read_program", "scattered", "split_gradient",
    "stacked", "white_of", "with_white",
]  # fmt: skip

#: (number in the compiled code, names of its parameters, size of its state, 0 for none) of each kernel
_KINDS: dict[type, tuple[int, tuple[str, ...], int]] = {
    BiasValue: (0, ("variance",), 1),
    Matern12Value: (1, ("variance", "lengthscale"), 1),
    Matern32Value: (2, ("variance", "lengthscale"), 2),
    Matern52Value: (3, ("variance", "lengthscale"), 3),
    CosineValue: (4, ("variance", "period"), 2),
    RBFValue: (5, ("variance", "lengthscale"), 0),
    PeriodicValue: (6, ("variance", "lengthscale", "period"), 0),
}
_BY_CODE = {code: (names, size) for code, names, size in _KINDS.values()}
_KNOWN = {*_KINDS, WhiteValue, SumValue, ProductValue}
_ATTRIBUTES = {"parts", "is_diagonal", "variance", "lengthscale", "period", "accuracy", "_harmonics"}
_WHITE = -1
_NUMBER_WORK = 40.0  # multiply-adds that a number of a kernel costs, with its exponentials
_MOST_LEAVES, _LARGEST_BLOCK = 4, 16  # of a term with a state: limits of the compiled code

#: a kernel without its parameters: the code of a leaf, or a symbol and the parts
Tree: TypeAlias = "int | tuple[str | Tree, ...]"
#: the leaves of each term
Terms: TypeAlias = list[tuple[int, ...]]


class Matrices(NamedTuple):
    """Where the matrices of a state-space form are written: those of one time step are ``size`` numbers."""

    dt: Tensor  #: different time steps (U,)
    #: whether a sequence begins there, (U,), as integers: A is then zero, and Q the stationary covariance
    begins: Tensor
    place: Tensor  #: the offset of each entry of each block, row by row
    size: int
    turned: bool  #: make the transposes of the blocks of A, too


_library = Library(
    f"{__package__}._programs",
    program_states="p nnnnn pppppppp",
    program_states_grad="p nnnnn pppppppp",
    program_covariances="p nnnn ppppp",
    program_spread="p nnnn i pp",
)


def entries() -> tuple[int, int]:
    """The addresses of the compiled functions of :meth:`Program.states` and :meth:`Program.states_grad`."""
    return _library.address("program_states"), _library.address("program_states_grad")


class Program:
    """A kernel without its parameters, as a sum of terms, each a product of leaves. Methods take ``values`` (P, K)."""

    def __init__(self, tree: Tree) -> None:
        codes: list[int] = []
        self.tree = tree
        terms = self._terms(tree, codes)
        starts = list(itertools.accumulate((len(_BY_CODE[code][0]) if code >= 0 else 1 for code in codes), initial=0))
        #: rows of ``values`` that are variances of white noise
        self.white = tuple(starts[i] for i, code in enumerate(codes) if code == _WHITE)
        kept = [i for i, code in enumerate(codes) if code >= 0]
        number = {i: n for n, i in enumerate(kept)}
        numbers = [len(kept), *itertools.chain(*((codes[i], starts[i]) for i in kept)), len(terms)]
        for term in terms:
            numbers += [len(term), *(number[i] for i in term)]
        #: the leaves and terms for the compiled code
        self.code = torch.tensor(numbers, dtype=torch.int64)
        sizes = [math.prod(_BY_CODE[codes[i]][1] for i in term) for term in terms]
        fits = all(len(term) <= _MOST_LEAVES for term in terms) and all(0 < size <= _LARGEST_BLOCK for size in sizes)
        #: the number of states of each term; empty if the kernel has no state-space form here
        self.sizes = tuple(sizes) if fits else ()
        #: the block of each state
        self.blocks = tuple(i for i, size in enumerate(self.sizes) for _ in range(size))

    def _terms(self, tree: Tree, codes: list[int]) -> Terms:
        """The terms of a tree, whose leaves are appended to ``codes`` in the order of their parameters."""
        if isinstance(tree, int):
            codes.append(tree)
            return [] if tree == _WHITE else [(len(codes) - 1,)]
        parts = [self._terms(part, codes) for part in tree[1:] if not isinstance(part, str)]
        if tree[0] == "+":
            return [term for part in parts for term in part]
        return [tuple(itertools.chain(*some)) for some in itertools.product(*parts)]

    def entries(self) -> tuple[Tensor, Tensor]:
        """Row and column, among all states, of each entry of each block."""
        starts = itertools.accumulate(self.sizes, initial=0)
        blocks = [(torch.arange(n) + start, n) for start, n in zip(starts, self.sizes, strict=False)]
        rows = torch.cat([own.repeat_interleave(n) for own, n in blocks])
        return rows, torch.cat([own.repeat(n) for own, n in blocks])

    def observation(self) -> Tensor:
        """h, (d,): a term is the first of its states."""
        return torch.cat([torch.eye(1, n, dtype=torch.float64)[0] for n in self.sizes])

    def states(self, values: Tensor, matrices: Matrices) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """A, its transposed blocks or None, process noise Q, (K, U, size) each, and variances (K,) without noise."""
        count, steps = values.shape[1], matrices.dt.shape[0]
        a, q, turned = (torch.zeros(count, steps, matrices.size, dtype=torch.float64) for _ in range(3))
        fixed = self._fixed(values, matrices)
        variance = torch.zeros(count, dtype=torch.float64)
        outputs = a.data_ptr(), turned.data_ptr() if matrices.turned else None, q.data_ptr(), variance.data_ptr()
        code, function = self.code.data_ptr(), _library.function("program_states")
        work = _NUMBER_WORK * count * steps * matrices.size
        _each(count, work, lambda k0, k1: function(code, k0, k1, count, steps, matrices.size, *fixed, *outputs))
        return a, turned if matrices.turned else None, q, variance

    def states_grad(self, values: Tensor, matrices: Matrices, g_a: Tensor, half: Tensor | None, g_q: Tensor) -> Tensor:
        """The gradient in ``values`` from those in A and Q; that in A is ``g_a`` plus twice the turned ``half``."""
        count, steps, out = values.shape[1], matrices.dt.shape[0], torch.zeros_like(values)
        tensors = [None if x is None else x.contiguous() for x in (g_a, half, g_q)]
        fixed = [*self._fixed(values, matrices), *(None if x is None else x.data_ptr() for x in tensors)]
        code, function = self.code.data_ptr(), _library.function("program_states_grad")
        work = _NUMBER_WORK * count * steps * matrices.size
        _each(count, work, lambda k0, k1: function(code, k0, k1, count, steps, matrices.size, *fixed, out.data_ptr()))
        return out

    def covariances(self, values: Tensor, d: Tensor) -> Tensor:
        """The covariances at distances ``d`` (U,) of different points, (K, U): without white noise."""
        out = torch.empty(values.shape[1], len(d), dtype=torch.float64)
        self._run_covariances(values, d, out.data_ptr(), None, None)
        return out

    def covariances_grad(self, values: Tensor, d: Tensor, grad: Tensor) -> Tensor:
        """The gradient in ``values`` from that of the covariances, (K, U)."""
        grad, out = grad.contiguous(), torch.zeros_like(values)
        self._run_covariances(values, d, None, grad.data_ptr(), out.data_ptr())
        return out

    def _run_covariances(self, values: Tensor, d: Tensor, *pointers: int | None) -> None:
        count, fixed = values.shape[1], (values.data_ptr(), d.data_ptr(), *pointers)
        code, function = self.code.data_ptr(), _library.function("program_covariances")
        _each(count, _NUMBER_WORK * count * len(d), lambda k0, k1: function(code, k0, k1, count, len(d), *fixed))

    def _fixed(self, values: Tensor, matrices: Matrices) -> list[int]:
        return [x.data_ptr() for x in (values, matrices.dt, matrices.begins, matrices.place)]


def gathered(few: Tensor, index: Tensor) -> Tensor:
    """``few[:, index]``, (K, E), of numbers (K, U)."""
    many = few.new_empty(few.shape[0], index.shape[0])
    _spread(few, index, many, 0)
    return many


def scattered(many: Tensor, index: Tensor, few: Tensor) -> None:
    """The gradient of :func:`gathered`: add numbers (K, E) to ``few`` (K, U)."""
    _spread(few, index, many.contiguous(), 1)


def _spread(few: Tensor, index: Tensor, many: Tensor, backwards: int) -> None:
    pointers, sizes = (few.data_ptr(), many.data_ptr()), (few.shape[1], index.shape[0])
    at, function = index.data_ptr(), _library.function("program_spread")
    _each(few.shape[0], 4.0 * many.numel(), lambda k0, k1: function(at, k0, k1, *sizes, backwards, *pointers))


def _each(count: int, work: float, call: Callable[[int, int], int]) -> None:
    """Run a function on ranges of kernels, in as many threads as pay off for its work in multiply-adds."""
    begins, ends = zip(*chunks(count, 1, work), strict=True)
    if any(run(call, begins, ends, work)):
        raise MemoryError("the compiled kernels ran out of memory.")


_make_program = functools.cache(Program)

#: the program of a kernel value, and its parameters, each (1,) or (K,)
ProgramOf: TypeAlias = tuple[Program, list[Tensor]]


def read_program(kernel: KernelValue) -> ProgramOf | None:
    """The program of a kernel value of time and its parameters, each (1,) or (K,); None if it has none.

    It has one if compiled code is available and knows all its parts, and if its parameters are vectors of float64 on
    the CPU.
    """
    if _library() is None:
        return None
    tensors: list[Tensor] = []
    tree = _read(kernel, tensors, True)
    if tree is None:
        return None
    count = 1
    for x in tensors:
        own = x.shape[0] if x.dim() == 1 else 0
        if not own or x.dtype != torch.float64 or not x.is_cpu or (own != count and 1 not in (own, count)):
            return None
        count = max(count, own)
    return _make_program(tree), tensors


def _read(value: object, tensors: list[Tensor], outermost: bool) -> Tree | None:
    kind = type(value)
    if kind not in _KNOWN or not vars(value).keys() <= _ATTRIBUTES:  # other attributes: a method was replaced
        return None
    if kind is SumValue or kind is ProductValue:
        parts: list[Tree] = []
        for part in value.parts:  # type: ignore[attr-defined]
            tree = _read(part, tensors, outermost and kind is SumValue)
            if tree is None:
                return None
            parts.append(tree)
        return ("+" if kind is SumValue else "*", *parts)
    if kind is WhiteValue:
        tensors.append(value.variance)  # type: ignore[attr-defined]
        return _WHITE if outermost else None
    code, names, _ = _KINDS[kind]
    tensors += [getattr(value, name) for name in names]
    return code


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Parameters (1,) or (K,) as (P, K)."""
    count = max(x.shape[0] for x in tensors)
    return torch.stack([x if x.shape[0] == count else x.expand(count) for x in tensors])


def split_gradient(gradient: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The gradient (P, K) for parameters (1,) or (K,)."""
    count, rows = gradient.shape[1], gradient.unbind()
    return [own if x.shape[0] == count else own.sum(0, True) for own, x in zip(rows, tensors, strict=True)]


def white_of(program: Program, values: Tensor) -> Tensor:
    """The variance of the white noise, (K, 1)."""
    rows = program.white
    if len(rows) == 1:
        return values[rows[0]].unsqueeze(-1)
    return values[list(rows)].sum(0).unsqueeze(-1) if rows else values.new_zeros(values.shape[1], 1)


def with_white(program: Program, gradient: Tensor, white: Tensor) -> Tensor:
    """The gradient (P, K), with that in the variance of the white noise, of each chain or kernel, put in its place."""
    if program.white:
        white = white if white.shape[0] == gradient.shape[1] else white.sum(0, True)
        for row in program.white:
            gradient[row] = white
    return gradient
