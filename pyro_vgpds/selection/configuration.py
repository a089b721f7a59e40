# SPDX-License-Identifier: Apache-2.0
"""A model with all choices made: kernels, sizes, lags, training."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Any

import pyro

from pyro_vgpds.checks import check_choice, check_count, check_flags, check_kind, check_seed
from pyro_vgpds.data.lags import check_lags
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.data_checks import check_time_scales
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import ARDRBF, ARDLinear, Bias, Kernel, parse_kernel
from pyro_vgpds.model import VGPDS
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.pyro_state import one_at_a_time, own_store
from pyro_vgpds.selection.likelihoods import LikelihoodLike, check_likelihood, pack_outputs, unpack_outputs
from pyro_vgpds.training.api import fit

__all__ = ["Configuration", "read_settings"]


@dataclass(frozen=True)
class Configuration:
    """All choices about a model and its training, as plain values.

    :raises ValueError: if a choice is out of its range.
    :raises TypeError: if one is of another kind.

    >>> from pyro_vgpds.selection import Configuration
    >>> Configuration("small", latent_dim=2, num_inducing=10, num_steps=20).fit(data).q.mean.shape
    torch.Size([48, 2])
    """

    name: str  #: in reports
    mapping: str = "rbf"  #: "rbf", "linear" or "sum" of both
    temporal: str | None = None  #: as in ``kernels.parse_kernel``. Default: that of ``VGPDS.from_data``
    latent_dim: int | None = None  #: as in ``VGPDS.from_data``
    num_inducing: int | None = None  #: as in ``VGPDS.from_data``
    static_dim: int | None = None  #: as in ``VGPDS.from_data``
    noise_per_output: bool = True  #: as in ``VGPDS.from_data``
    scale_outputs: bool = True  #: as in ``VGPDS.from_data``
    lags: tuple[int, ...] = ()  #: as in ``Sequences.lagged``
    num_steps: int = 60  #: of training
    likelihood: LikelihoodLike = None  #: as in ``VGPDS.from_data``; training changes a copy. Default: Gaussian outputs

    def __post_init__(self) -> None:
        check_kind("name", self.name, str, "a string")
        check_choice("mapping", self.mapping, ("rbf", "linear", "sum"))
        check_kind("temporal", self.temporal, str, "a kernel written as a string", optional=True)
        if self.temporal is not None:
            parse_kernel(self.temporal)
        for name, least in (("latent_dim", 1), ("num_inducing", 1), ("static_dim", 0)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), least)
        check_flags(noise_per_output=self.noise_per_output, scale_outputs=self.scale_outputs)
        check_lags(self.lags)
        check_count("num_steps", self.num_steps)
        check_likelihood(self.likelihood)

    def check(self, data: Sequences) -> None:
        """Compare the temporal kernel with the times of data, before anything is trained.

        :param data: the training sequences.
        :raises ValueError: if the kernel cannot be parsed, or has a duration although the data have no dates.

        >>> Configuration("wave", temporal="rbf(lengthscale=1)").check(data)
        """
        check_data(data)
        check_time_scales(None if self.temporal is None else parse_kernel(self.temporal), data)

    @one_at_a_time
    def fit(self, data: Sequences, seed: int = 0) -> Posterior:
        """Train on sequences.

        :param data: the training sequences, without lags.
        :param seed: of the initial values.
        """
        check_data(data)
        check_seed(seed)
        data = data.lagged(self.lags) if self.lags else data
        state = pyro.util.get_rng_state()
        try:
            return self._fit(data, seed)
        finally:  # the caller's random numbers do not depend on this one's
            pyro.util.set_rng_state(state)

    def _fit(self, data: Sequences, seed: int) -> Posterior:
        with own_store():
            pyro.set_rng_seed(seed)
            temporal = None if self.temporal is None else parse_kernel(self.temporal)
            model = VGPDS.from_data(
                data, self.latent_dim, self.num_inducing, temporal, self.kernel(), static_dim=self.static_dim,
                noise_per_output=self.noise_per_output, scale_outputs=self.scale_outputs,
                likelihood=copy.deepcopy(self.likelihood),
            )  # fmt: skip
            if temporal is not None:
                temporal.per_dimension(model.latent_dim)
            guide = AutoOpperArchambeau(model)
            if fit(model, guide, data, self.num_steps, progress=False).stopped == "interrupted":
                raise KeyboardInterrupt  # fit keeps what it has; a comparison must not continue with the next model
            if check_likelihood(self.likelihood) is None:
                return Posterior(model, guide, data, residual=None)  # auto compares settings of the noise itself
            return Posterior(model, guide, data)

    def kernel(self) -> Kernel | None:
        """The mapping kernel; None for the default."""
        if self.mapping == "linear":
            return ARDLinear() if self.likelihood is None else ARDLinear() + Bias(0.1)
        return ARDRBF() + ARDLinear() if self.mapping == "sum" else None

    def settings(self) -> dict[str, object]:
        """The choices as a dictionary of plain values, which JSON can have.

        :raises TypeError: if the likelihood is of a class that is not registered.
        """
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "likelihood": pack_outputs(self.likelihood)}


def read_settings(content: dict[str, Any]) -> Configuration:
    """The configuration with these choices, the inverse of :meth:`Configuration.settings`, also after JSON."""
    lags, likelihood = tuple(content["lags"]), unpack_outputs(content["likelihood"])
    return Configuration(**{**content, "lags": lags, "likelihood": likelihood})
