# SPDX-License-Identifier: Apache-2.0
"""The sites of all frames, of which training in batches has some at a time: how they are kept, and where they start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam
from torch import Tensor

from pyro_vgpds.checks import check_callable, check_path
from pyro_vgpds.data.batches import SequenceDataset
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.amortized import AmortizedOpperArchambeau
from pyro_vgpds.inference.encoder import Encoder, encoder_inputs
from pyro_vgpds.mapping.output_sites import OutputSites
from pyro_vgpds.types import PathLike

__all__ = [
    "BatchFactors", "Encode", "first_sites", "free_parameters", "linear_encoder", "regression_encoder", "site_store",
]  # fmt: skip

_PRECISION = 10.0  # of the first sites, as those of a model on all data
_FRAMES = 20_000  # whose first sites are computed at a time
_HIDDEN = 300  # random functions of the outputs that latent points of a sample are regressed on
_FEW = 50  # frames of a sample, below which it is regressed on the outputs alone
_LEAST_ERROR = 1e-4  # variance of the latent points that are predicted, at least
_SEED = 19

#: sequences ↦ their sites η and λ, (n, Q) each
Encode: TypeAlias = Callable[[Sequences], tuple[Tensor, Tensor]]


def first_sites(
    model: PyroModule, data: SequenceDataset, start: Sequences | tuple[Tensor, Tensor] | Encode | None
) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
    """Rows and their sites, some at a time; ``start`` is as for :class:`~pyro_vgpds.AutoExplicit`.

    :raises ValueError: if ``start`` does not fit; before the first sites are asked for.
    """
    shape = (data.num_frames, model.latent_dim)
    if start is None:
        points = model.start
        if points is None or points.times.lengths != data.lengths:
            raise ValueError(
                "the model has no initial latent points of these sequences. Give start, the sequences from which "
                "VGPDS.from_data made it."
            )
        lam = torch.full(shape, _PRECISION, dtype=torch.float64, device=data.device)
        return iter([(data.rows(range(len(data))), (lam * points.x.to(lam), lam))])
    if isinstance(start, tuple):
        return iter([(data.rows(range(len(data))), _checked(start, shape))])
    if isinstance(start, Sequences):
        if model.start is None or model.start.times.lengths != start.lengths:
            raise ValueError("start must be the sequences from which VGPDS.from_data made the model.")
        start = linear_encoder(model, start, model.start.x)
    check_callable("start", start, "sequences, a pair of tensors or a function")
    return _encoded(data, start, model.latent_dim)


def linear_encoder(model: PyroModule, sample: Sequences, x: Tensor) -> Encode:
    """The linear regression of latent points (n, Q) on the outputs of the same frame, in some sequences."""
    inputs = encoder_inputs(sample, model.output_mean, model.output_scale)
    network = _network(inputs, x, 1)
    network.regress(inputs, x)
    return AmortizedOpperArchambeau(model, network=network).encode


def regression_encoder(model: PyroModule, sample: Sequences, x: Tensor) -> Encode:
    """The regression of latent points (n, Q), as training left them, on the outputs of the same frame and on random
    functions of them, in some sequences.

    Half of the sequences tell how well the other half is predicted: whether by the outputs alone, and the precision of
    the sites, that of the predictions of each latent dimension.
    """
    if sample.num_frames < _FEW:
        return linear_encoder(model, sample, x)
    inputs, x = encoder_inputs(sample, model.output_mean, model.output_scale), x.to(model.output_mean)
    network = _network(inputs, x, _HIDDEN)
    network.draw_hidden(torch.Generator().manual_seed(_SEED))
    known = _half(sample).to(inputs.device)
    with torch.no_grad():
        errors = []
        for hidden in (False, True):
            network.regress(inputs[known], x[known], hidden)
            off = network(inputs[~known])[:, : x.shape[1]] - x[~known]
            errors.append(off.square().mean(0).clamp(_LEAST_ERROR, 1.0 / _PRECISION))
        bends = bool((errors[1] / errors[0]).log().mean() < 0.0)
        network.regress(inputs, x, bends)
        network.set_precision(1.0 / errors[bends])
    return AmortizedOpperArchambeau(model, network=network).encode


def _network(inputs: Tensor, x: Tensor, num_hidden: int) -> Encoder:
    with torch.random.fork_rng(devices=[]):  # its first weights, which are not used
        return Encoder(inputs.shape[1], num_hidden, x.shape[1]).to(inputs)


def _half(data: Sequences) -> Tensor:
    """Every other sequence, or half of the frames of a single one, as a mask (n,)."""
    if data.num_sequences == 1:
        return torch.arange(data.num_frames) < data.num_frames // 2
    return torch.cat([torch.full((n,), i % 2 == 0) for i, n in enumerate(data.lengths)])


def _checked(sites: object, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """η and λ that a user gave, or that a user's function returned."""
    pair = sites if isinstance(sites, tuple) else ()
    if len(pair) != 2 or any(not isinstance(part, Tensor) or part.shape != shape for part in pair):
        raise ValueError(
            f"start must be η and λ, tensors of shape {shape} each, or a function that returns them, but got "
            f"{sites!r:.80}."
        )
    eta, lam = pair
    if not bool(torch.isfinite(eta).all()) or not bool((torch.isfinite(lam) & (lam > 0.0)).all()):
        raise ValueError("η and λ of start must be finite and λ positive.")
    return eta, lam


def _encoded(data: SequenceDataset, encode: Encode, latent_dim: int) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
    first = 0
    while first < data.num_sequences:
        last, frames = first, 0
        while last < data.num_sequences and (last == first or frames + data.lengths[last] <= _FRAMES):
            last, frames = last + 1, frames + data.lengths[last]
        try:
            found = encode(data.sequences(range(first, last)))
        except TypeError as error:
            raise TypeError(f"start must be a function of Sequences, but calling it failed: {error}") from error
        yield data.rows(range(first, last)), _checked(found, (frames, latent_dim))
        first = last


def free_parameters(eta: Tensor, lam: Tensor, mean: Tensor, num_groups: int) -> dict[str, PyroParam]:
    """q(X), with η and λ (N, Q), and q(U), with means (M, D), as Pyro parameters with copies of these values.

    The outputs of each of ``num_groups`` groups share a covariance of U, the first of which is the identity.
    """
    eye = torch.eye(len(mean), dtype=torch.float64, device=mean.device).repeat(num_groups, 1, 1)
    return {
        "eta": PyroParam(eta.clone(), event_dim=2),
        "lam": PyroParam(lam.clone(), constraint=constraints.positive, event_dim=2),
        "u_mean": PyroParam(mean.clone(), event_dim=2),
        "u_scale_tril": PyroParam(eye, constraint=constraints.lower_cholesky, event_dim=3),
    }


def site_store(
    path: PathLike | None, num_frames: int, latent_dim: int, num_functions: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Two tensors of zeros, (N, Q), for η and λ, and one of NaN, (2, N, F), for factors of outputs, in float64.

    :param path: a new file, of 16 N (Q + F) bytes, which has the numbers as they change. Default: in memory.
    :param num_functions: F; 0 if outputs are Gaussian.
    :raises ValueError: if the file exists, its folder does not, or the device is not the CPU.
    """
    size = 2 * num_frames * (latent_dim + num_functions)
    if path is None:
        every = torch.zeros(size, dtype=torch.float64, device=device)
    else:
        check_path("store", path)
        file = Path(path).absolute()
        if file.exists() or not file.parent.is_dir():
            fault = "exists already" if file.exists() else f"is in the folder {file.parent}, which does not exist"
            raise ValueError(f"store must be the name of a new file, but {path} {fault}.")
        if device is not None and device.type != "cpu":
            raise ValueError(f"store needs data on the CPU, but they are on {device}.")
        with file.open("xb") as new:
            os.truncate(new.fileno(), 8 * size)  # zeros, which take no place before they are written
        every = torch.from_file(str(file), shared=True, size=size, dtype=torch.float64)
    both = every[: 2 * num_frames * latent_dim].view(2, num_frames, latent_dim)
    factors = every[2 * num_frames * latent_dim :].view(2, num_frames, num_functions)
    return both[0], both[1], factors.fill_(torch.nan)


class BatchFactors(OutputSites):
    """The factors of the outputs of a batch. Their updates are written to the store of all frames.

    :param store: the state of all factors, (2, N, F); NaN for frames that were not visited yet.
    :param rows: the frames of the batch, (n,). Default: all.
    :param is_held: whether ``Collapsed_ELBO`` leaves the updates to others.
    """

    def __init__(self, store: Tensor, rows: Tensor | None, is_held: bool = False) -> None:
        super().__init__()
        rows = torch.arange(store.shape[1], device=store.device) if rows is None else rows
        self._place = store, rows
        self.state, self.is_held = store[:, rows], is_held

    def set(self, state: Tensor, mark: int | None = None) -> None:
        super().set(state)
        store, rows = self._place
        store[:, rows] = self.state
