# SPDX-License-Identifier: Apache-2.0
"""The guide of a model that is trained in batches: q(U), and q(X) of the sequences of each batch.

Longer than 300 lines because the methods of one class and their documentation belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions import Distribution, TorchDistribution
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.checks import check_flags, check_kind, check_path
from pyro_vgpds.data.batches import DatasetLike, as_dataset
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.inference.partial_guide import partial_guide, share_hyperparameters
from pyro_vgpds.inference.point import read_point
from pyro_vgpds.inference.site_store import (
    BatchFactors,
    Encode,
    first_sites,
    free_parameters,
    regression_encoder,
    site_store,
)
from pyro_vgpds.inference.streaming import Streamed, at_medians, stream, versions
from pyro_vgpds.inference.subsampling import Subsampled, model_of
from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.mapping.inducing_gaussian import InducingGaussian, InducingPrior
from pyro_vgpds.mapping.output_sites import OutputSites
from pyro_vgpds.pyro_state import one_at_a_time
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.types import PathLike

__all__ = ["AutoExplicit"]


class AutoExplicit(OpperArchambeauGuide):
    r"""Guide for a model on batches of sequences: a Gaussian q(U) for the inducing variables, and q(X) as in
    :class:`~pyro_vgpds.AutoOpperArchambeau`, of which each batch uses the part of its sequences.

    q(X) has the Gaussian sites η and λ (N, Q) of all frames, q(U) is Gaussian with a full covariance for each output.
    By default both move by natural gradient steps, in :func:`~pyro_vgpds.fit` with ``batch_size``, or with
    :class:`~pyro_vgpds.MinibatchNaturalGradient`. With ``free=True`` they are Pyro parameters, for any optimiser.

    Called on all sequences (:class:`~pyro_vgpds.Sequences`) and not on a batch, it is a guide of the collapsed model,
    so :class:`~pyro_vgpds.Posterior` takes it.

    :param model: a :class:`~pyro_vgpds.VGPDS`, or it as :class:`~pyro_vgpds.Subsampled`.
    :param data: all sequences: :class:`~pyro_vgpds.SequenceDataset`, :class:`~pyro_vgpds.Sequences`, or a map-style
        dataset.
    :param start: where q(X) starts. If ``model`` was made from some of the sequences only: those sequences, from which
        a linear map to latent points is learned; or the sites η and λ of all frames, (N, Q) each; or a function from
        sequences to their sites, such as :meth:`AmortizedOpperArchambeau.encode
        <pyro_vgpds.AmortizedOpperArchambeau.encode>`. Default: the initial latent points of the model.
    :param store: a new file for η and λ, which are then mapped from it; for more frames than fit in memory. Default:
        they are in memory.
    :param free: make q(X) and q(U) Pyro parameters.
    :param options: options of Pyro's ``AutoNormalMessenger``, for latent hyperparameters.
    :raises TypeError: if ``model`` is not a VGPDS.
    :raises ValueError: if its initial latent points are those of other data and there is no ``start``, or several
        processes have outputs that are not Gaussian together.

    :ivar factors: the state of the Gaussian factors of outputs that are not Gaussian, (2, N, F), NaN for frames that
        were not visited yet; F = 0 for Gaussian outputs.
    :ivar dual: the statistics of q(U), a :class:`~pyro_vgpds.mapping.Dual`; not used if it is free.

    >>> from pyro_vgpds import AutoExplicit, Collapsed_ELBO
    >>> from pyro_vgpds.data import SequenceDataset
    >>> own = AutoExplicit(model, data)
    >>> loss = Collapsed_ELBO().loss(model, own, SequenceDataset(data).batch([0]))
    >>> own.eta.shape, own.lam.shape
    (torch.Size([48, 3]), torch.Size([48, 3]))
    """

    eta: Tensor
    lam: Tensor
    factors: Tensor
    u_mean: Tensor
    u_scale_tril: Tensor

    def __init__(
        self,
        model: PyroModule | Subsampled,
        data: DatasetLike,
        *,
        start: Sequences | tuple[Tensor, Tensor] | Encode | None = None,
        store: PathLike | None = None,
        free: bool = False,
        **options: Any,
    ) -> None:
        inner: PyroModule = model.model if isinstance(model, Subsampled) else model
        if not all(hasattr(inner, name) for name in ("latent_dim", "num_inducing", "output_likelihood")):
            raise TypeError(f"model must be a VGPDS, or Subsampled(VGPDS), but got {type(model).__name__}.")
        check_flags(free=free)
        check_path("store", store, optional=True)
        if free and store is not None:
            raise ValueError(f"free=True needs q(X) in memory, but got store={store!r}.")
        own = as_dataset(data)
        super().__init__(model, **options)
        self.data, self.is_free = own, free
        self._found: tuple[Streamed, list[tuple[int, int]]] | None = None  # of the last pass over all sequences
        first = first_sites(inner, self.data, start)
        functions, gaussian = len(inner.output_mean), inner.output_likelihood is None
        sizes = self.data.num_frames, inner.latent_dim, 0 if gaussian else functions
        eta, lam, factors = site_store(store, *sizes, self.data.device)
        with torch.no_grad():
            for rows, (eta_part, lam_part) in first:
                eta[rows], lam[rows] = eta_part.double(), lam_part.double()
        self.dual = Dual.empty(inner.num_inducing, functions, inner.latent_dim, self.data.device)
        self.register_buffer("factors", factors)
        if free:
            groups = 1 if gaussian and inner.noise.dim() == 0 else functions
            for name, parameter in free_parameters(eta, lam, self.dual.v, groups).items():
                setattr(self, name, parameter)
        else:
            self.register_buffer("eta", eta)
            self.register_buffer("lam", lam)

    @classmethod
    def from_collapsed(
        cls, guide: AutoOpperArchambeau, data: DatasetLike, *, store: PathLike | None = None
    ) -> AutoExplicit:
        """The guide with the same q(X), and the same distributions of hyperparameters.

        :meth:`collect` then sets q(U) to its optimum.

        :param guide: a guide of the collapsed model.
        :param data: the sequences of that guide.
        :param store: as for the class.

        >>> AutoExplicit.from_collapsed(guide, data).lam.equal(guide.lam)
        True
        """
        check_kind("guide", guide, AutoOpperArchambeau, "an AutoOpperArchambeau")
        own = as_dataset(data)
        whole = own.source if isinstance(own.source, Sequences) else own.sequences()
        q = read_point(guide.model, guide, whole).q
        assert isinstance(q, OpperArchambeau)
        new = cls(model_of(guide), own, start=(q.eta, q.lam), store=store)
        if new.factors.shape[-1]:  # those of the data: the model has been called on them
            new.factors.copy_(model_of(guide).sites.state)
        share_hyperparameters(guide, new)
        return new

    @classmethod
    def from_sample(
        cls, guide: AutoOpperArchambeau, sample: Sequences, data: DatasetLike, *, store: PathLike | None = None
    ) -> AutoExplicit:
        """The guide for many sequences, after a model was trained on a few of them.

        The sites of all frames start at a regression of the trained latent points on the outputs, and q(U) at
        that of the sample. This is the fastest way to train on many sequences: most hyperparameters are known after
        training on some of them.

        :param guide: the guide that was trained on the sample.
        :param sample: the sequences that it was trained on.
        :param data: all sequences.
        :param store: as for the class.

        >>> wide = AutoExplicit.from_sample(guide, data, [(data.times.t[:24], data.read()[:24])] * 4)
        >>> wide.eta.shape
        torch.Size([96, 3])
        """
        check_kind("guide", guide, AutoOpperArchambeau, "an AutoOpperArchambeau")
        check_kind("sample", sample, Sequences, "Sequences(t, y)")
        model, first = model_of(guide), cls.from_collapsed(guide, sample)
        first.collect()
        x = read_point(model, guide, sample).q.mean
        new = cls(model, data, start=regression_encoder(model, sample, x), store=store)
        new.dual = first.dual.scaled(new.data.total_sequences / first.data.total_sequences)
        share_hyperparameters(guide, new)
        return new

    def collapsed(self) -> AutoOpperArchambeau:
        """A guide of the collapsed model with the same q(X) and the same distributions of hyperparameters.

        All sequences of this process are read into memory. A model with a likelihood gets the factors of their outputs.

        >>> own.collapsed().posterior(data)
        OpperArchambeau(frames=48, latent_dim=3, structure='markov')
        """
        model, whole = self.collapsed_model, self.data.of_this_process().batch(range(self.data.num_sequences))
        with torch.no_grad():
            q = self.make_posterior(at_medians(self, whole)[1])
        if self.factors.shape[-1]:
            model.sites.set(self.factors.clone())
            model.sites.belong_to(whole.sequences)
        new = AutoOpperArchambeau(model, mean_bar=q.mean_bar, lam=q.lam)
        share_hyperparameters(self, new)
        return new

    @one_at_a_time
    def collect(self, batch_size: int = 32) -> float:
        """Set q(U) to its optimum for all sequences, and return the bound, which is then the collapsed one.

        The sequences are read once, in batches; memory does not grow with their number. Hyperparameters with priors are
        at their medians. A free q(U) stays as it is.

        :param batch_size: sequences that are in memory at a time.
        :raises NumericalError: if rounding error dominates.

        >>> abs(AutoExplicit.from_collapsed(guide, data).collect() - post.bound) < 1e-5 * abs(post.bound)
        True
        """
        with self.data.communicator.sharing_errors():
            streamed = stream(self, self.data, batch_size)
            self.dual, bound = streamed.optimum()
        streamed = streamed.estimated(self, self.data, batch_size)
        self._found = streamed, versions(self)
        return bound + streamed.estimate

    def batch_factors(self, prior: InducingPrior, is_held: bool = False) -> OutputSites | None:
        """The Gaussian factors of the outputs of a batch; None if outputs are Gaussian.

        :param prior: p(U) of the model on the batch.
        :param is_held: whether ``Collapsed_ELBO`` leaves their updates to others.
        """
        return BatchFactors(self.factors, prior.rows, is_held) if self.factors.shape[-1] else None

    @one_at_a_time
    def part(self, sequences: Sequence[int] | Tensor = ()) -> tuple[AutoOpperArchambeau, Sequences]:
        """What predictions need, with only some of the sequences in memory, or none: ``Posterior(model, *own.part())``.

        Of the other sequences the sums over frames are kept, 8 (M² + M D) bytes if nothing is missing; they determine
        q(U). So new sequences are reconstructed, scored and generated as if all were in memory, and the chosen ones
        can also be continued and imputed. :func:`~pyro_vgpds.save` writes both to a file.

        :param sequences: indices of the sequences that are read into memory. Default: none. After
            :func:`~pyro_vgpds.fit` or :meth:`collect` no data are then read, and the result has one frame in which
            nothing was observed.
        :returns: a guide with their q(X) and the sums over all others, and the sequences, in the given order. Names are
            those that the data have, or else the indices.
        :raises ValueError: if an index does not exist, the guide is free, or several processes have the sequences.

        >>> some = Posterior(model, *AutoExplicit.from_collapsed(guide, data).part([1]))
        >>> off = some.forecast([2.6], "1").mean - post.forecast([2.6], 1).mean
        >>> bool(off.abs().max() < 1e-4)
        True
        """
        if self.data.communicator.size > 1:
            raise ValueError(
                f"part needs all sequences in one process, but data is shared by {self.data.communicator.size}. "
                "Predict with the guide and data that distributed.gather(guide.collapsed(), data) returns."
            )
        if self.is_free:
            raise ValueError("part needs the sums over all frames, which give the optimal q(U), but the guide is free.")
        chosen = self.data.check_indices(sequences, empty=True, name="sequences")
        if self._found is None or self._found[1] != versions(self):
            self.collect()
            assert self._found is not None
        return partial_guide(self, self.data, self._found[0], chosen, self.lam.detach().mean(0))

    @property
    def frame_parameters(self) -> list[Tensor]:
        """η, λ and the state of the factors of outputs, which several processes that train together do not share.

        >>> from pyro_vgpds import AutoExplicit
        >>> [tuple(value.shape) for value in AutoExplicit(model, data).frame_parameters]
        [(48, 3), (48, 3), (2, 48, 0)]
        """
        suffix = "_unconstrained" if self.is_free else ""
        return [*(getattr(self, f"{name}{suffix}") for name in ("eta", "lam")), self.factors]

    @property
    def collapsed_model(self) -> PyroModule:
        """The model itself, without subsampling."""
        return model_of(self)

    def get_posterior(self, name: str, prior: Distribution) -> TorchDistribution | Tensor:
        if isinstance(prior, InducingPrior):
            q = self.inducing_posterior(prior)
            return q.mean if self._computing_median else q
        found: TorchDistribution | Tensor = super().get_posterior(name, prior)
        return found

    def can_skip_trace(self, model: object) -> bool:
        own = type(self).get_posterior is AutoExplicit.get_posterior
        return own and self.model is model and not self.is_free and self.is_unmodified()

    def inducing_posterior(self, prior: InducingPrior) -> InducingGaussian:
        """q(U). :class:`~pyro_vgpds.MinibatchNaturalGradient` swaps this method.

        :param prior: p(U) of the model at the current hyperparameters.
        """
        if not self.is_free:
            found = self.dual.carried(prior).posterior(prior.noise)
            found.outputs = self.batch_factors(prior)
            return found
        groups, (_, d) = len(self.u_scale_tril), prior.event_shape
        which = torch.arange(d, device=prior.factor.device) if groups > 1 else prior.factor.new_zeros(d).long()
        ones = prior.factor.new_ones(prior.event_shape)
        q = InducingGaussian(self.u_mean, self.u_scale_tril, ones, which, orthogonal=False)
        q.outputs = self.batch_factors(prior)
        return q

    def make_posterior(self, prior: TemporalGP) -> OpperArchambeau:
        """q(X) of a batch, or of all sequences. :class:`~pyro_vgpds.MinibatchNaturalGradient` swaps this method.

        :param prior: the :class:`~pyro_vgpds.TemporalGP` of the model at the current hyperparameters.
        """
        return OpperArchambeau.from_natural(prior, *self.sites(prior))

    def sites(self, prior: TemporalGP) -> tuple[Tensor, Tensor]:
        """η and λ of the frames of a prior, (n, Q) each.

        :param prior: of a batch, or of all sequences.
        :raises ValueError: if it is of other sequences.
        """
        if prior.rows is not None:
            return self.eta[prior.rows], self.lam[prior.rows]
        if prior.times.lengths != self.data.lengths:
            raise ValueError(
                f"this guide is for {self.data.num_frames} frames of {self.data.num_sequences} sequences, but the "
                f"model was called on {len(prior.times)} frames of {len(prior.times.lengths)}. Call it on a batch, "
                "SequenceDataset(data).batch(indices), or on all sequences."
            )
        return self.eta, self.lam

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AutoExplicit:
        """Moves to another device; sites stay float64, and stay in their file."""
        kept = [(self._buffers, name, value) for name, value in self._buffers.items()]
        super()._apply(fn, recurse)
        for owner, name, value in kept:
            moved = owner[name]
            if value is not None and moved is not None:
                owner[name] = value.to(moved.device)
        self.dual = self.dual.to(self.dual.v.device if self.is_free else self.eta.device)
        return self
