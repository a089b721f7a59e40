# SPDX-License-Identifier: Apache-2.0
"""The collapsed bound of the squared exponential kernel in two compiled calls (``_bound.c``), for small problems.

It is what :mod:`~pyro_vgpds.mapping.rbf_bound` does in steps, for outputs without gaps that have one noise each. In
small problems most of the time of the steps is that of their calls.
"""

from __future__ import annotations

import ctypes
import functools
from typing import ClassVar

import torch
from torch import Tensor

from pyro_vgpds.compiled import LOOP_WORK, open_library
from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.linalg import default_jitter
from pyro_vgpds.mapping import native, native_inducing, rows
from pyro_vgpds.mapping.bound import check_ceiling, check_noise, check_rounding
from pyro_vgpds.mapping.group_terms import check_finite

__all__ = ["is_small", "small_bound"]

_EPS = torch.finfo(torch.float64).eps


class _Functions(ctypes.Structure):
    """The struct ``functions`` of ``_bound.c``."""

    _fields_: ClassVar = [(f"function{i}", ctypes.c_void_p) for i in range(8)]


@functools.cache
def _library() -> tuple[ctypes.CDLL, _Functions] | None:
    number, real, pointer = ctypes.c_long, ctypes.c_double, ctypes.c_void_p
    library = open_library(
        f"{__package__}._bound",
        bound_size=[*[number] * 4, pointer],
        bound_begin=[pointer, *[number] * 4, *[pointer] * 6, *[real] * 2, *[pointer] * 3],
        bound_end=[pointer, *[number] * 4, *[pointer] * 6, *[real] * 3, *[pointer] * 9],
    )
    addresses = *native_inducing.entries(), *rows.entries(), *native.entries()
    return None if library is None or not all(addresses) else (library, _Functions(*addresses))


def is_small(z: Tensor, weight: Tensor, noise: Tensor, groups: ColumnGroups) -> bool:
    """Whether :func:`small_bound` can be used, with tensors that are float64 and on the CPU: there are no gaps, each
    output has its own noise, and only one thread would pay off.
    """
    (points, dims), (count, width) = z.shape, groups.factor.shape
    return (
        groups.mask is None
        and groups.joint_squares is None
        and noise.shape[0] == width > 1
        and weight.shape == (dims,)
        and groups.is_ordered
        and native.row_work(count, points, dims) + rows.row_work(count, points, dims, width) < 2.0 * LOOP_WORK
        and not native.is_single()
        and _library() is not None
    )


@functools.cache
def _size(*sizes: int) -> int:
    library, size = _library()[0], ctypes.c_long()  # type: ignore[index]
    library.bound_size(*sizes, ctypes.addressof(size))
    return size.value


def small_bound(
    mean: Tensor,
    variance: Tensor,
    z: Tensor,
    parameters: tuple[Tensor, Tensor],
    noise: Tensor,
    groups: ColumnGroups,
    jitter: float | None,
    wanted: bool = True,
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """The bound and its gradients in mean, variance, z, w, σ² and noise; None if K_MM needs more jitter.

    :param wanted: whether gradients are. Others as in :func:`~pyro_vgpds.mapping.rbf_bound.rbf_bound`.
    :raises NumericalError: as :func:`~pyro_vgpds.mapping.bound.collapsed_bound` does.
    """
    library, functions = _library()  # type: ignore[misc]
    weight, scale = parameters
    inputs = [x.contiguous() for x in (mean, variance, z, weight, groups.factor, noise)]
    pointers = [x.data_ptr() for x in inputs]
    (points, dims), (count, width) = z.shape, groups.factor.shape
    sizes = count, points, dims, width
    variance_of_f, relative = scale.item(), default_jitter(z.dtype) if jitter is None else 0.0
    added = relative * variance_of_f if jitter is None else jitter
    work, A, numbers = z.new_empty(_size(*sizes)), z.new_empty(points, points), (ctypes.c_double * 4)()
    shared, given = work.data_ptr(), ctypes.addressof(functions)
    failed = library.bound_begin(given, *sizes, *pointers, variance_of_f, added, shared, A.data_ptr(), numbers)
    if failed == 2:
        return None
    _check_memory(failed)
    trace, total, size, least = numbers
    check_noise(least)
    check_finite(total)
    check_rounding(count * variance_of_f - trace, _EPS * size, least * count, points)
    e, u = torch.linalg.eigh(A)
    u = u.contiguous()
    gradients = [torch.empty_like(x) for x in (*inputs[:4], inputs[5])] if wanted else []
    written = [x.data_ptr() for x in gradients] or [0] * 5
    failed = library.bound_end(
        given, *sizes, *pointers[1:], groups.squares.data_ptr(), variance_of_f, added, relative, shared, e.data_ptr(),
        u.data_ptr(), *written, numbers,
    )  # fmt: skip
    _check_memory(failed)
    value, most, g_scale = numbers[:3]
    check_ceiling(value, most, least, groups)
    result = z.new_tensor(value - float(groups.log_scale))
    if not wanted:
        return result, ()
    g_mean, g_variance, g_z, g_weight, g_noise = gradients
    return result, (g_mean, g_variance, g_z, g_weight, z.new_tensor(g_scale).view(scale.shape), g_noise)


def _check_memory(failed: int) -> None:
    if failed:
        raise MemoryError("the compiled bound ran out of memory")
