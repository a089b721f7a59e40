# SPDX-License-Identifier: Apache-2.0
"""The collapsed bound of the squared exponential kernel in a few compiled calls (``_bound.c``).

It is what :mod:`~pyro_vgpds.mapping.rbf_bound` does in steps. In small problems most of their time is that of calls; in
large ones it is time in which one thread works and the others wait.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, chunks, pointer, run
from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.linalg import default_jitter
from pyro_vgpds.mapping import native_inducing, native_psi1, native_psi2, native_terms
from pyro_vgpds.mapping.bound import check_ceiling, check_noise, check_rounding
from pyro_vgpds.mapping.group_terms import LEAST_PIVOT, check_finite

__all__ = ["BoundInputs", "bound_is_compiled", "compiled_bound"]

_EPS = torch.finfo(torch.float64).eps
_MOST_NOISES = 10  # noises per inducing input up to which sums of inverses take less time than eigenvectors
_NAMES = {
    "numbers": "F N M Q R noises single parts C group_parts",
    "inputs": "mean variance z w y noise squares seen used widths mask rows columns",
    "reals": "count scale jitter relative",
    "outputs": "work sums of_points results of_K g_mean g_variance g_z g_w g_noise",
}


class _Functions(ctypes.Structure):
    """The struct ``functions`` of ``_bound.c``."""

    _fields_: ClassVar = [(f"function{i}", ctypes.c_void_p) for i in range(14)]


class _Problem(ctypes.Structure):
    """The struct ``problem`` of ``_bound.c``."""

    _fields_: ClassVar = [
        (name, ctypes.c_double if kind == "reals" else ctypes.c_long if kind == "numbers" else ctypes.c_void_p)
        for kind, names in _NAMES.items()
        for name in names.split()
    ]


_library = Library(
    f"{__package__}._bound",
    bound_sizes="pp",
    bound_begin="p",
    bound_covariance="p",
    bound_forward="p nnn",
    bound_sums="pp",
    bound_whiten="ppp",
    bound_spectrum="ppp n p",
    bound_cholesky="p n p",
    bound_resolvents="p n p",
    bound_groups="p nnnn",
    bound_terms="p n p",
    bound_backward="p nnn",
    bound_end="pp",
)


@functools.cache
def _functions() -> _Functions | None:
    """The compiled functions of other modules that ``_bound.c`` calls; None if one was not built."""
    algebra = native_inducing.entries()
    addresses = *algebra, *native_terms.entries(), *native_psi1.entries(), *native_psi2.entries()
    return _Functions(*addresses) if all(addresses) and _library.available() else None


def bound_is_compiled(noise: Tensor, groups: ColumnGroups) -> bool:
    """Whether :func:`compiled_bound` can be used, with float64 tensors on the CPU and noise (D,) or (1,)."""
    if groups.factor.shape[1] == 0 or groups.joint_squares is not None or _functions() is None:
        return False
    return noise.shape[0] == 1 or (groups.order is not None and groups.factor.shape[1] > 1)


class BoundInputs(NamedTuple):
    """What the bound of the squared exponential kernel has gradients in."""

    mean: Tensor  #: of the latent points, (N, Q)
    variance: Tensor  #: of the latent points, (N, Q)
    z: Tensor  #: (M, Q)
    weight: Tensor  #: w, (Q,) or (1,)
    scale: Tensor  #: σ², one number
    noise: Tensor  #: (1,) or (D,)


def compiled_bound(
    inputs: BoundInputs, groups: ColumnGroups, jitter: float | None, wanted: bool = True
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """The bound and its gradients in the inputs; None if K_MM needs more jitter, or outputs with gaps eigenvalues.

    :param wanted: whether gradients are. Others as in :func:`~pyro_vgpds.mapping.rbf_bound.rbf_bound`.
    :raises NumericalError: as :func:`~pyro_vgpds.mapping.bound.collapsed_bound` does.
    """
    mean, variance, z, weight, scale, noise = inputs
    if groups.mask is not None and len(noise) > 1 and groups.widths[-1] > _MOST_NOISES * len(z):
        return None
    check_noise(noise.min().item())
    order = None if len(noise) == 1 or groups.is_ordered else groups.order
    given = mean, variance, z, weight.expand(z.shape[1]), noise if order is None else noise.detach()[order]
    own = (_Evaluation if groups.mask is None else _GroupEvaluation)(given, scale.item(), groups, jitter)
    value = own.terms(wanted) if own.sums() else None
    if value is None:
        return None
    result = z.new_tensor(value - float(groups.log_scale))
    if not wanted:
        return result, ()
    g_mean, g_variance, g_z, g_weight, g_noise, g_scale = own.gradients()
    if order is not None:
        g_noise = torch.zeros_like(noise).index_copy_(0, order, g_noise)
    return result, (
        g_mean, g_variance, g_z, g_weight.sum_to_size(weight.shape), z.new_tensor(g_scale).view(scale.shape), g_noise,
    )  # fmt: skip


class _Evaluation:
    """The calls of one evaluation, in order.

    :param inputs: mean, variance, z, w and noise.
    :param scale: σ². Others as in :func:`compiled_bound`.
    """

    def __init__(self, inputs: tuple[Tensor, ...], scale: float, groups: ColumnGroups, jitter: float | None) -> None:
        mean, variance, z, w, noise = self._inputs = [x.detach().contiguous() for x in inputs]
        y, self._groups = groups.factor.contiguous(), groups
        shared = len(noise) == 1
        seen, squares = z.new_tensor(groups.totals).split(1) if shared else (groups.rows_of_columns, groups.squares)
        (points, dims), (count, width) = z.shape, y.shape
        self._least = noise.min().item()
        library, functions = _library(), _functions()
        assert library is not None
        assert functions is not None
        self._library = library
        mask, many = groups.mask, 0 if groups.mask is None else groups.num_groups
        self._work = native_psi2.row_work(count, points, dims, many) + native_psi1.row_work(count, points, dims, width)
        self._ranges = chunks(count, native_psi2.ROWS, self._work, shared=many == 0)
        self._group_work = many * points**2 * (points / 2 + 1.5 * width / max(many, 1))
        self._group_ranges = chunks(many, 1, self._group_work) if many else []
        parts = len(self._ranges), many, len(self._group_ranges)
        numbers = count, points, dims, width, len(noise), int(native_psi2.is_single()), *parts
        outputs = groups.rows, groups.columns
        own_groups = (None,) * 4 if mask is None else (_width_tensor(groups.widths), mask.contiguous(), *outputs)
        given = mean, variance, z, w, y, noise, squares, seen, groups.used, *own_groups
        relative = default_jitter(z.dtype) if jitter is None else 0.0
        added = relative * scale if jitter is None else jitter
        reals = float(groups.columns[0]) if shared else 1.0, scale, added, relative
        own = self._problem = _Problem(ctypes.addressof(functions), *numbers, *map(pointer, given), *reals)
        self._address, self._kept = ctypes.addressof(own), given
        self._sizes = (ctypes.c_long * 4)()
        self._library.bound_sizes(self._address, self._sizes)
        work, *sizes, _ = self._sizes
        self._memory = [z.new_empty(size) for size in (work, *(len(self._ranges) * size for size in sizes))]
        own.work, own.sums, own.of_points = (x.data_ptr() for x in self._memory)
        self._results: list[Tensor] = []

    def sums(self) -> bool:
        """Compute those over rows; False if K_MM is not positive definite."""
        self._library.bound_begin(self._address)
        if not self._divide(self._library.bound_forward, self._library.bound_covariance):
            return False
        size = ctypes.c_double()
        self._library.bound_sums(self._address, ctypes.addressof(size))
        self._error = _EPS * size.value
        return True

    def _divide(self, function: Callable[..., int], *others: Callable[..., int]) -> bool:
        """Call other functions, and one for all ranges of rows, on as many threads as pay off; False if a matrix is not
        positive definite.
        """
        functions = [*others, *[function] * len(self._ranges)]
        given = [*[()] * len(others), *((i, *rows) for i, rows in enumerate(self._ranges))]
        status = run(lambda own, numbers: own(self._address, *numbers), functions, given, self._work)
        _check_memory(1 in status)
        return not any(status)

    def terms(self, wanted: bool) -> float | None:
        """The bound without the Jacobian of the scaling; None if it needs the eigenvalues of several groups."""
        if wanted:
            self._results = [torch.empty_like(x) for x in self._inputs]
            for name, x in zip(_NAMES["outputs"].split()[-5:], self._results, strict=True):
                setattr(self._problem, name, x.data_ptr())
        numbers = (ctypes.c_double * 4)()
        if not self._find_terms(wanted, numbers):
            return None
        value, most = numbers[:2]
        check_ceiling(value, most, self._least, self._groups)
        return value

    def _find_terms(self, wanted: bool, numbers: ctypes.Array[ctypes.c_double]) -> bool:
        if self._problem.noises > _MOST_NOISES * self._problem.M or not self._factorised(wanted, numbers):
            self._spectrum(wanted, numbers)
        return True

    def _factorised(self, wanted: bool, numbers: ctypes.Array[ctypes.c_double]) -> bool:
        """Compute them without eigenvalues; False if rounding errors have made a matrix indefinite."""
        one = self._problem.noises == 1
        failed = (self._library.bound_cholesky if one else self._library.bound_resolvents)(
            self._address, wanted, numbers
        )
        if failed == 2 or not numbers[2] >= LEAST_PIVOT:
            return False
        _check_memory(failed)
        self._check_slack(numbers[3])
        return True

    def _spectrum(self, wanted: bool, numbers: ctypes.Array[ctypes.c_double]) -> None:
        """Compute them in any case."""
        points = self._problem.M
        A = self._inputs[2].new_empty(points, points)
        _check_memory(self._library.bound_whiten(self._address, A.data_ptr(), numbers))
        trace, total = numbers[:2]
        check_finite(total)
        self._check_slack(self._problem.N * self._problem.scale - trace)
        e, u = torch.linalg.eigh(A)
        u = u.contiguous()
        _check_memory(self._library.bound_spectrum(self._address, e.data_ptr(), u.data_ptr(), wanted, numbers))

    def _check_slack(self, slack: float) -> None:
        check_rounding(slack, self._error, self._least * self._problem.N, self._problem.M)

    def gradients(self) -> tuple[Any, ...]:
        """Those in mean, variance, z, w and noise, and a number, that in σ²."""
        self._divide(self._library.bound_backward)
        g_scale = ctypes.c_double()
        self._library.bound_end(self._address, ctypes.addressof(g_scale))
        return *self._results, g_scale.value


class _GroupEvaluation(_Evaluation):
    """The same for outputs with gaps."""

    def sums(self) -> bool:
        self._library.bound_begin(self._address)
        failed = self._library.bound_covariance(self._address)  # first, because the sums are multiplied by its decay
        _check_memory(failed == 1)
        if failed:
            return False
        self._divide(self._library.bound_forward)
        self._library.bound_sums(self._address, None)
        return True

    def _find_terms(self, wanted: bool, numbers: ctypes.Array[ctypes.c_double]) -> bool:
        own, ranges, z = self._problem, self._group_ranges, self._inputs[2]
        found, of_K = z.new_empty(own.C, 6), z.new_empty(len(ranges), self._sizes[3])
        self._memory += [found, of_K]
        own.results, own.of_K = found.data_ptr(), of_K.data_ptr()
        call, address = self._library.bound_groups, self._address
        status = run(lambda i, part: call(address, wanted, i, *part), range(len(ranges)), ranges, self._group_work)
        _check_memory(1 in status)
        _, least, slack, squares, *_ = found.unbind(1)
        if any(status) or not float(least.amin()) >= LEAST_PIVOT:
            return False
        check_rounding(slack, _EPS * squares.sqrt(), self._least * self._groups.rows, own.M)
        _check_memory(self._library.bound_terms(address, wanted, numbers))
        return True


@functools.lru_cache(maxsize=16)
def _width_tensor(widths: tuple[int, ...]) -> Tensor:
    return torch.tensor(widths, dtype=torch.long)


def _check_memory(failed: int) -> None:
    if failed:
        raise MemoryError("the compiled bound ran out of memory")
