# SPDX-License-Identifier: Apache-2.0
"""The jitter rule, and the Cholesky factorisation that follows it."""

from __future__ import annotations

import copy
import math
import warnings
from typing import TypeVar

import torch
from torch import Tensor

from pyro_vgpds.checks import check_dtype

__all__ = [
    "NumericalError",
    "add_diagonal",
    "broadcast_shapes",
    "cholesky",
    "default_jitter",
    "in_double",
    "matvec",
    "positive_part",
    "positive_power",
    "with_own_gradient",
]  # fmt: skip

V = TypeVar("V")

_MAX_TRIES = 6
_warned: set[str] = set()


class NumericalError(ArithmeticError):
    """A matrix is not positive definite, even with more jitter, or the bound is not finite.

    >>> import torch
    >>> from pyro_vgpds.linalg import cholesky
    >>> cholesky(torch.full((2, 2), float("nan")), "K")
    Traceback (most recent call last):
    pyro_vgpds.linalg.NumericalError: K (2 x 2) has entries that are not finite...
    """


def default_jitter(dtype: torch.dtype) -> float:
    """Relative jitter of a dtype: the square root of its machine epsilon.

    This is the library's only jitter rule: a covariance matrix that must be factorised gets
    ``default_jitter(dtype) * mean(diag)`` added to its diagonal, which is 1.5e-8 of its scale in float64 and
    3.5e-4 in float32. If a ``jitter`` argument is given, that number is added instead, not scaled.

    :param dtype: float64 or float32.

    >>> import torch
    >>> from pyro_vgpds.linalg import default_jitter
    >>> default_jitter(torch.float64)
    1.4901161193847656e-08
    """
    check_dtype(dtype)
    return math.sqrt(torch.finfo(dtype).eps)


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """The shape of tensors of these shapes together: ``torch.broadcast_shapes``, which takes far longer.

    :raises RuntimeError: if they do not fit together.
    """
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    longest = max(map(len, shapes))
    found = [1] * longest
    for shape in shapes:
        for i, size in enumerate(shape, longest - len(shape)):
            if size != 1 and found[i] != size:
                if found[i] != 1:
                    return torch.broadcast_shapes(*shapes)  # raises the error
                found[i] = size
    return torch.Size(found)


def add_diagonal(matrix: Tensor, value: Tensor | float) -> Tensor:
    """``matrix + value * I``; ``value`` is a number or has the batch shape of ``matrix``."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return matrix + (value[..., None, None] * eye if isinstance(value, Tensor) else eye.mul_(value))


def jittered(matrix: Tensor, jitter: float | None = None) -> Tensor:
    """``matrix`` with ``jitter`` added to its diagonal. Default: the rule of :func:`default_jitter`."""
    if jitter is None:
        return add_diagonal(matrix, default_jitter(matrix.dtype) * matrix.diagonal(dim1=-2, dim2=-1).mean(-1))
    return add_diagonal(matrix, jitter)


def cholesky(matrix: Tensor, name: str, jitter: float | None = 0.0) -> Tensor:
    """Lower Cholesky factor of ``matrix`` (..., n, n), with more jitter if the factorisation fails.

    :param name: the name of the matrix in warnings and errors.
    :param jitter: added to the diagonal in the first attempt; ``None`` for the rule of :func:`default_jitter`.
    :raises NumericalError: if the matrix is not finite, or not positive definite with 100,000 times the default jitter.
    """
    first = matrix if jitter == 0.0 else jittered(matrix, jitter)
    factor, info = torch.linalg.cholesky_ex(first)
    if not info.any():
        return factor
    size = f"{name} ({matrix.shape[-1]} x {matrix.shape[-1]})"
    if not torch.isfinite(matrix).all():
        raise NumericalError(
            f"{size} has entries that are not finite. A parameter has diverged: lower the learning rate, or check "
            "the scale of the data and of the times."
        )
    scale = matrix.detach().diagonal(dim1=-2, dim2=-1).abs().mean(-1)
    start = jitter / float(scale.max().clamp_min(1e-300)) if jitter else 0.0
    extra = max(start, default_jitter(matrix.dtype))
    for _ in range(_MAX_TRIES):
        factor, info = torch.linalg.cholesky_ex(add_diagonal(matrix, extra * scale))
        if not info.any():
            if name not in _warned:
                _warned.add(name)
                warnings.warn(
                    f"{size} was not positive definite: jitter raised to {extra:.1e} of its diagonal. "
                    "This warning is shown once for each kind of matrix.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return factor
        extra *= 10.0
    raise NumericalError(
        f"{size} is not positive definite, even with jitter of {extra / 10:.0e} of its diagonal. Try a larger "
        "`jitter`, fewer or more widely spread inducing inputs, or float64."
    )


def positive_part(matrix: Tensor) -> Tensor:
    """``matrix`` (..., n, n), a covariance, without negative eigenvalues that rounding errors made.

    A difference of large matrices, such as the posterior covariance under a prior of large variance, has rounding
    errors that are large compared with it. It is ``matrix`` itself if the jitter of :func:`default_jitter` exceeds its
    errors.
    """
    _, info = torch.linalg.cholesky_ex(jittered(matrix))
    if not bool(info.any()) or not bool(torch.isfinite(matrix).all()):
        return matrix
    return positive_power(0.5 * (matrix + matrix.mT))


def positive_power(matrix: Tensor, power: float = 1.0) -> Tensor:
    """The positive part of symmetric matrices (..., n, n), to a power: negative eigenvalues become zero."""
    e, u = torch.linalg.eigh(matrix)
    return (u * e.clamp_min(0.0).pow(power).unsqueeze(-2)) @ u.mT


def in_double(value: V) -> V:
    """A kernel value, or those in a list or tuple, with all tensors in float64; itself if they are float64 already.

    float32 has too few digits for the differences and inverses of the bound, whatever the jitter.
    """
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value  # type: ignore[return-value]
    if isinstance(value, (list, tuple)):
        parts = [in_double(part) for part in value]
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else type(value)(parts)
    if isinstance(value, torch.nn.Module) or not hasattr(value, "__dict__"):
        return value
    old = vars(value)
    new = {name: in_double(part) for name, part in old.items() if isinstance(part, (Tensor, list, tuple))}
    if all(part is old[name] for name, part in new.items()):
        return value
    result = copy.copy(value)
    vars(result).update(new)
    return result


def matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    """Products (..., n) of matrices (..., n, m) and vectors (..., m)."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def with_own_gradient(x: Tensor) -> Tensor:
    """``x`` with a gradient of its own; a leaf if it does not require one already, and itself without gradients."""
    if not torch.is_grad_enabled():
        return x
    if not x.requires_grad:
        return x.detach().requires_grad_()
    x = x.view_as(x)
    x.retain_grad()
    return x
