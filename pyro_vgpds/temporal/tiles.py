# SPDX-License-Identifier: Apache-2.0
"""The recursions as compiled loops for large states that consist of small blocks, such as quasi-periodic kernels.

The transition matrices are block-diagonal. Blocks are packed into tiles of 4 × 4, and the compiled code ``_tiles``
multiplies tiles: O(d²) per frame instead of O(d³). Its filter keeps w and v (see ``recursions``), from which each mean
costs O(d). Draws and products with K_f are those of :class:`~pyro_vgpds.temporal.chains.Chains`.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.compiled import Library, chunks
from pyro_vgpds.temporal.chains import FRAME_WORK, UNROLLED, Kept, Layout, RangeCall

__all__ = ["PackedChains", "TiledChains", "entry", "fits", "place"]

_SIDE = 4  # of a tile
_VARIANCE, _SOLVE, _GRADIENT, _QUADRATIC = range(4)


_library = Library(f"{__package__}._tiles", run_tiles="i nnnnn pppppppppppppppp")


def entry() -> int:
    """The address of the compiled function."""
    return _library.address("run_tiles")


def fits(blocks: tuple[int, ...]) -> bool:
    """Whether states of these blocks are run in tiles: the state is large and its blocks are small."""
    return len(blocks) > UNROLLED and max(Counter(blocks).values()) <= _SIDE and _library() is not None


class _Tiles:
    """The places of the states in tiles: large blocks first, each in the first tile that has room."""

    def __init__(self, blocks: tuple[int, ...]) -> None:
        members = [[i for i, number in enumerate(blocks) if number == own] for own in dict.fromkeys(blocks)]
        tiles: list[list[int]] = []
        for block in sorted(members, key=len, reverse=True):
            tile = next((tile for tile in tiles if len(tile) + len(block) <= _SIDE), None)
            if tile is None:
                tiles.append(list(block))
            else:
                tile += block
        self.count = len(tiles)
        self.place = torch.empty(len(blocks), dtype=torch.long)
        for i, tile in enumerate(tiles):
            self.place[torch.tensor(tile)] = _SIDE * i + torch.arange(len(tile))
        # entries (row, column) of d x d matrices that are in tiles, and their places among all numbers of the tiles
        same = (self.place.unsqueeze(-1) // _SIDE) == self.place // _SIDE
        row, column = same.nonzero(as_tuple=True)
        self.entries = row * len(blocks) + column
        self.places = self.place[row] * _SIDE + self.place[column] % _SIDE

    def pack(self, x: Tensor) -> Tensor:
        """Tiles (K, U, T, 4, 4) of matrices (K, U, d, d)."""
        out = x.new_zeros(*x.shape[:2], self.count * _SIDE * _SIDE)
        out[..., self.places] = x.flatten(-2)[..., self.entries]
        return out.unflatten(-1, (self.count, _SIDE, _SIDE))

    def unpack(self, tiles: Tensor) -> Tensor:
        d = len(self.place)
        out = tiles.new_zeros(*tiles.shape[:2], d * d)
        out[..., self.entries] = tiles.flatten(-3)[..., self.places]
        return out.unflatten(-1, (d, d))

    def pack_vectors(self, x: Tensor) -> Tensor:
        """Vectors (N, 4T) of vectors (N, d)."""
        out = x.new_zeros(len(x), self.count * _SIDE)
        out[:, self.place] = x
        return out


_make_tiles = functools.cache(_Tiles)


class TiledChains(NamedTuple):
    """Transitions of K kernels in tiles, the frames, and the kernel of each of C chains. Nothing is checked."""

    a: Tensor  #: (K, U, T, 4, 4)
    turned: Tensor  #: the transposes of the tiles of ``a``
    q: Tensor
    h: Tensor  #: (N, 4T)
    step: Tensor  #: (N,), integers
    kernel: Tensor  #: (C,), integers

    def _run(
        self,
        task: int,
        inputs: tuple[Tensor | None, ...],  # λ, η and the direction of λ
        kept: Kept,
        num_outputs: int,
        weight: Tensor | None = None,
        gradients: bool = False,
    ) -> tuple[Tensor, ...]:
        """Outputs (C, N) of a task; with ``gradients``, preceded by the gradients in a and q."""
        a, q, n, chains = self.a, self.q, self.step.shape[0], self.kernel.shape[0]
        given = tuple(None if x is None else x.contiguous() for x in inputs)
        outputs = tuple(a.new_empty(chains, n) for _ in range(num_outputs))
        work = FRAME_WORK * self.h.numel() * self.h.shape[-1] * chains
        ranges = chunks(chains, 1, work)
        tensors = (
            self.step, self.kernel, a, self.turned, q, self.h, *given, weight, *(kept or (None, None)),
            *(*outputs, None, None)[:2],
        )  # fmt: skip
        call = RangeCall(_library.function("run_tiles"), (task, n, a.shape[2], a.shape[1]), tensors, work)
        return (*call.run(ranges, (a, q) if gradients else ()), *outputs)

    def _make_kept(self) -> Kept:
        """Memory for w (C, N, 4T) and v (C, N)."""
        shape = (self.kernel.shape[0], self.step.shape[0])
        return self.h.new_empty(*shape, self.h.shape[-1]), self.h.new_empty(shape)

    def variance(self, lam: Tensor) -> tuple[Tensor, Tensor, Tensor, Kept]:
        """The diagonals of S and of (K_f + Λ⁻¹)⁻¹, log|I + Λ K_f|, and what :meth:`solve` needs."""
        kept = self._make_kept()
        s, precision = self._run(_VARIANCE, (lam, None, None), kept, 2)
        return s, precision, torch.log1p(lam * kept[1]).sum(-1), kept

    def variance_grad(self, lam: Tensor, d_lam: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """Half of the transposed gradient in a, and the gradients in q and λ."""
        return self._run(_GRADIENT, (lam, None, d_lam), self._make_kept(), 1, weight.contiguous(), gradients=True)

    def solve(self, eta: Tensor, lam: Tensor, kept: Kept) -> tuple[Tensor, ...]:
        """S η and (I + Λ K_f)⁻¹ η."""
        return self._run(_SOLVE, (lam, eta, None), kept, 2)

    def quadratic(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        """The gradients of left·K_f right in a and q."""
        return self._run(_QUADRATIC, (left, right, None), (), 0, gradients=True)


def place(blocks: tuple[int, ...]) -> tuple[int, Tensor]:
    """The number of tiles for states of these blocks, and the place of each state in them."""
    tiles = _make_tiles(blocks)
    return tiles.count, tiles.place


class PackedChains(NamedTuple):
    """The recursions of chains whose states are packed into tiles, in the form of :class:`Chains`."""

    chains: TiledChains
    tiles: _Tiles

    @classmethod
    def of(cls, a: Tensor, q: Tensor, layout: Layout) -> PackedChains:
        """The recursions of a layout."""
        tiles = _make_tiles(layout.blocks)
        packed = tiles.pack(a)
        step, index = (x.to(torch.int64).contiguous() for x in (layout.step, layout.kernel))
        h = tiles.pack_vectors(layout.h)
        return cls(TiledChains(packed, packed.mT.contiguous(), tiles.pack(q), h, step, index), tiles)

    def variance(self, lam: Tensor) -> tuple[Tensor, Tensor, Tensor, Kept]:
        return self.chains.variance(lam)

    def variance_grad(self, lam: Tensor, d_lam: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        half, g_q, g_lam = self.chains.variance_grad(lam, d_lam, weight)
        return 2.0 * self.tiles.unpack(half).mT, self.tiles.unpack(g_q), g_lam

    def solve(self, eta: Tensor, lam: Tensor, kept: Kept = ()) -> tuple[Tensor, ...]:
        return self.chains.solve(eta, lam, kept or self.chains.variance(lam)[-1])

    def quadratic(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(self.tiles.unpack, self.chains.quadratic(left, right)))
