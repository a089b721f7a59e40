# SPDX-License-Identifier: Apache-2.0
"""The C code at the end of arrays of more than 2³¹ numbers: the results of the same rows in small arrays.

The arrays are memory that is never written, except for the rows that are used.
"""

import mmap
import sys

import pytest
import torch

from pyro_vgpds.mapping import native_psi2, panels
from pyro_vgpds.temporal import chains, tiles

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="memory that is not reserved, as Linux has it"),
    pytest.mark.skipif(not native_psi2.available(), reason="the C code is not built"),
]
_NORESERVE = 0x4000  # MAP_NORESERVE, which Python has a name for from 3.13 on
LARGE = 2**31


def sparse(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Zeros that take no memory until they are written."""
    count = torch.Size(shape).numel()
    try:
        memory = mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except OSError as error:
        pytest.skip(f"no {8 * count / 2**30:.0f} GiB of addresses here: {error}")
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)


def pointers(*tensors: torch.Tensor | None) -> list[int | None]:
    return [None if x is None else x.data_ptr() for x in tensors]


def test_midpoint_sums():
    rows, dims, groups, points = 70, 8, 9, 5
    most = LARGE // dims + rows
    a, r, mu = torch.randn(rows), torch.rand(rows, dims) * 0.3 + 0.05, torch.randn(rows, dims)
    z, mask, g = (
        torch.randn(points, dims),
        (torch.rand(groups, rows) > 0.4).double(),
        torch.randn(groups, points, points),
    )
    large = sparse(most), sparse(most, dims), sparse(most, dims), z, sparse(groups, most)
    for one, other in zip(large[:3], (a, r, mu), strict=True):
        one[-rows:] = other
    large[4][:, -rows:] = mask
    assert large[1].numel() > LARGE
    assert large[4].numel() > LARGE
    library = native_psi2._library()
    sums = torch.empty(groups, panels.panels_size(points))
    given = most, points, dims, groups, *pointers(*large)
    assert library.grouped_forward(*given, most - rows, most, None, 0, sums.data_ptr()) == 0
    assert torch.allclose(panels.matrices_of(sums, points), native_psi2.forward(a, r, mu, z, mask), rtol=1e-12)
    found = sparse(most), sparse(most, dims), sparse(most, dims), torch.empty_like(z)
    packed = torch.empty(2, groups + 2, 32)  # five points, in two panels of four, with a block each
    given_g = large[4], panels.panels_of(g), None, None, packed, None
    assert library.grouped_pack(most, points, groups, *pointers(*given_g)) == 0
    assert library.grouped_backward(*given, most - rows, most, *pointers(packed, *found)) == 0
    for one, other in zip(found, native_psi2.backward(g, a, r, mu, z, mask), strict=True):
        assert torch.allclose(one[-len(other) :], other, rtol=1e-12)


def problem(size: int, count: int, frames: int) -> tuple[torch.Tensor, ...]:
    """Transitions (1, 1, d, d) of a stable chain, its noise, h (N, d), and λ and η (C, N)."""
    a = 0.9 * torch.eye(size)[None, None]
    q = (1 - 0.9**2) * torch.eye(size)[None, None]
    return a, q, torch.rand(frames, size) + 0.5, torch.rand(count, frames) + 0.1, torch.randn(count, frames)


@pytest.mark.parametrize("size", [1, 6])
def test_chains(size):
    """More chains times frames than 2³¹, and the last of more matrices than that."""
    count, frames = 3, 2**15
    a, q, h, lam, eta = problem(size, count, frames)
    most, kernels = LARGE // frames + count, LARGE // size**2 + 1
    pattern = chains.pattern(tuple(range(size)))
    step = torch.zeros(frames, dtype=torch.int64)
    library, found = chains._library(), []
    for total, kinds, make in ((count, 1, torch.zeros), (most, kernels, sparse)):
        index, all_a, all_q = make(total, dtype=torch.int64), make(kinds, 1, size, size), make(kinds, 1, size, size)
        index[-count:], all_a[-1], all_q[-1] = kinds - 1, a[0], q[0]
        rows = [make(total, frames) for _ in range(5)]
        rows[0][-count:], rows[1][-count:] = lam, eta
        weight, gradients = make(total), [make(kinds, 1, size, size) for _ in range(2)]
        weight[-count:] = 0.5
        fixed = pointers(pattern, step, index, all_a, all_q, h)
        sizes = (frames, size, 1, total - count, total)
        assert library.run_chains(
            chains._SOLVE, *sizes, *fixed, *pointers(rows[0], rows[1], None, None, *rows[2:], None, None)
        ) == 0  # fmt: skip
        results = [row[-count:].clone() for row in rows[2:]]
        assert library.run_chains(
            chains._GRADIENT, *sizes, *fixed, *pointers(rows[0], rows[1], None, weight, rows[2], None, None, *gradients)
        ) == 0  # fmt: skip
        found.append([*results, rows[2][-count:].clone(), *(one[-1].clone() for one in gradients)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert bool((one != 0).any())


def test_tiles():
    count, frames, size = 2, 2**14, 8  # two tiles
    a, q, h, lam, eta = problem(size, count, frames)
    packing = tiles._make_tiles(tuple(range(size)))
    packed = packing.pack(a), packing.pack(a).mT.contiguous(), packing.pack(q)
    h = packing.pack_vectors(h)
    most, kernels = LARGE // frames + count, LARGE // packed[0].numel() + 1
    step = torch.zeros(frames, dtype=torch.int64)
    library, found = tiles._library(), []
    for total, kinds, make in ((count, 1, torch.zeros), (most, kernels, sparse)):
        index = make(total, dtype=torch.int64)
        matrices = [make(kinds, *one.shape[1:]) for one in packed]
        index[-count:] = kinds - 1
        for one, other in zip(matrices, packed, strict=True):
            one[-1] = other[0]
        left, right, v, *outputs = (make(total, frames) for _ in range(5))
        left[-count:], right[-count:] = lam, eta
        w, weight = make(total, frames, 4 * packing.count), make(total)
        weight[-count:] = 0.5
        gradients = [make(kinds, *one.shape[1:]) for one in packed[:2]]
        fixed = pointers(step, index, *matrices, h)
        sizes = (frames, packing.count, 1, total - count, total)
        results = []
        for task, second, third in ((tiles._VARIANCE, None, None), (tiles._SOLVE, right, None)):
            assert library.run_tiles(
                task, *sizes, *fixed, *pointers(left, second, third, None, w, v, *outputs, None, None)
            ) == 0  # fmt: skip
            results += [one[-count:].clone() for one in (*outputs, v, w)]
        assert library.run_tiles(
            tiles._GRADIENT, *sizes, *fixed, *pointers(left, None, right, weight, w, v, outputs[0], None, *gradients)
        ) == 0  # fmt: skip
        found.append([*results, outputs[0][-count:].clone(), *(one[-1].clone() for one in gradients)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert bool((one != 0).any())
