# SPDX-License-Identifier: Apache-2.0
"""A predictive distribution of outputs at some times, and what people ask of one."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_vgpds.checks import check_count
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted
from pyro_vgpds.linalg import cholesky
from pyro_vgpds.mapping.inducing import InducingPosterior, PosteriorGP
from pyro_vgpds.prediction.residuals import Residuals

if TYPE_CHECKING:
    import pandas

__all__ = ["Latent", "Outputs", "Prediction", "Reconstruction"]


class Latent:
    """The latent path at the times of a prediction, Gaussian.

    :param path: its distribution, event shape (T, Q).
    :ivar mean: (T, Q).
    :ivar variance: (T, Q).

    >>> latent = post.forecast([2.6, 2.7], sequence=0).latent
    >>> latent
    Latent(2 times, 3 dimensions)
    >>> latent.covariance.shape
    torch.Size([3, 2, 2])
    """

    def __init__(self, path: TorchDistribution) -> None:
        self.path = path
        self.mean: Tensor = path.mean
        self.variance: Tensor = path.variance

    @property
    def covariance(self) -> Tensor:
        """Over the times, (Q, T, T). Large: made only when asked for."""
        return self.path.covariance_matrix

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.mean, self.variance))

    def __repr__(self) -> str:
        frames, latent = self.mean.shape
        return f"Latent({counted(frames, 'time')}, {counted(latent, 'dimension')})"


class Outputs:
    """Moments of outputs at T times, (T, D), and the forms in which people want them.

    >>> ahead = post.forecast([2.6, 2.7], sequence=0)
    >>> ahead.shape, ahead.stddev.shape, ahead.columns
    ((2, 5), torch.Size([2, 5]), None)
    """

    t: Tensor  #: the times, (T,)
    noise: bool  #: whether it is of the outputs, or else of the function without their noise
    _data: Sequences
    _moments: tuple[Tensor, Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(T, D)."""
        return len(self.t), self._data.num_outputs

    @property
    def columns(self) -> list[str] | None:
        """Names of the outputs, where the data had names."""
        return self._data.columns

    @property
    def dates(self) -> np.ndarray | None:
        """The times as dates, where the data had dates."""
        origin = self._data.time_origin
        if origin is None:
            return None
        steps = np.round(self.t.cpu().numpy() * 1e9).astype("timedelta64[ns]")
        dates: np.ndarray = np.datetime64(origin, "ns") + steps
        return dates

    def __repr__(self) -> str:
        times, outputs = self.shape
        ends = (
            [f"{t:.6g}" for t in self.t[[0, -1]]] if self.dates is None else [_in_words(d) for d in self.dates[[0, -1]]]
        )
        of = counted(outputs, "output") + ("" if self.noise else " without noise")
        return f"{type(self).__name__}({counted(times, 'time')} from {ends[0]} to {ends[1]}, {of})"

    @property
    def mean(self) -> Tensor:
        """(T, D)."""
        return self._kept()[0]

    @property
    def variance(self) -> Tensor:
        """(T, D)."""
        return self._kept()[1]

    def _kept(self) -> tuple[Tensor, Tensor]:
        if self._moments is None:
            self._moments = self._make_moments()
        return self._moments

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """(T, D)."""
        return self.variance.sqrt()

    def _checked(self, y: Any) -> Tensor:
        y = torch.as_tensor(np.asarray(y) if not isinstance(y, Tensor) else y).to(self.t)
        if tuple(y.shape) != self.shape:
            raise ValueError(f"y must have the shape {self.shape}, but its shape is {tuple(y.shape)}.")
        return y

    def to_numpy(self) -> dict[str, np.ndarray]:
        """Arrays ``t`` (or dates), ``mean`` and ``variance``.

        >>> sorted(ahead.to_numpy())
        ['latent_mean', 'latent_variance', 'mean', 't', 'variance']
        """
        times = self.t.cpu().numpy() if self.dates is None else self.dates
        return {"t": times, "mean": self.mean.cpu().numpy(), "variance": self.variance.cpu().numpy()}

    def to_pandas(self, what: str = "mean") -> pandas.DataFrame:
        """A DataFrame of times (or dates) by outputs.

        :param what: ``"mean"``, ``"variance"`` or ``"stddev"``.
        :raises ValueError: where it is none of them.
        :raises ImportError: where pandas is not installed.

        >>> ahead.to_pandas("stddev").index.tolist()
        [2.6, 2.7]
        """
        if what not in ("mean", "variance", "stddev"):
            raise ValueError(f"what must be 'mean', 'variance' or 'stddev', but got {what!r}.")
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pyro_vgpds[data].") from None
        times = self.t.cpu().numpy() if self.dates is None else self.dates
        index = pandas.Index(times, name="time")
        return pandas.DataFrame(getattr(self, what).cpu().numpy(), index=index, columns=self.columns)


class Prediction(Outputs):
    """Outputs at T times, (T, D), in the units of the data; ``Posterior`` makes them.

    Nothing of size D is made before it is asked for. Mean and variance are exact moments of the predictive
    distribution, which is not Gaussian: the latent path is uncertain and goes through a nonlinear mapping. ``sample``
    draws from that distribution, and ``interval`` and ``log_prob`` take it for a Gaussian of the same moments.

    :param t: the times, (T,).
    :param path: the latent path there, a distribution of event shape (T, Q).
    :param inducing: q(U).
    :param noise: of the outputs, or of the function without their noise.
    :param observed: (T, D), what is known and is returned as it is, NaN where it is not.
    :param full_cov: make the covariance (T, D, D) at once, and have ``log_prob`` use it.
    :param residuals: what is carried of residuals to these times; left out, the noise is white.
    :ivar latent: the :class:`~pyro_vgpds.prediction.Latent` path.

    >>> ahead = post.forecast([2.6, 2.7], sequence=0)
    >>> ahead.mean.shape, ahead.variance.shape, ahead.latent.mean.shape
    (torch.Size([2, 5]), torch.Size([2, 5]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        t: Tensor,
        path: TorchDistribution,
        inducing: InducingPosterior,
        *,
        noise: bool = True,
        observed: Tensor | None = None,
        full_cov: bool = False,
        residuals: Residuals | None = None,
    ) -> None:
        self.t, self.noise, self.full_cov, self._data = t, noise, full_cov, inducing.data
        self.latent = Latent(path)
        self._path, self._inducing, self._observed, self._residuals = path, inducing, observed, residuals
        self._covariance: Tensor | None = None
        if full_cov:
            self._covariance = self._make_covariance()

    def with_noise(self, noise: bool) -> Prediction:
        """The same with or without the outputs' noise.

        :param noise: with it or not.

        >>> difference = ahead.variance - ahead.with_noise(False).variance
        >>> bool((difference - model.noise).abs().max() < 1e-10)
        True
        """
        if noise == self.noise:
            return self
        new = copy.copy(self)
        new.noise, new._moments, new._covariance = noise, None, None
        if self.full_cov:
            new._covariance = new._make_covariance()
        return new

    # moments

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        arrays = self.t.new_empty(self.shape), self.t.new_empty(self.shape)
        self.write(*arrays)
        return arrays

    def write(self, mean: Any = None, variance: Any = None) -> None:
        """Write the moments into arrays (T, D) block by block, for D that is huge.

        :param mean: an array for the means: a tensor, a numpy array or a memmap; left out, they are not written.
        :param variance: likewise.
        :raises ValueError: where an array has another shape.

        >>> import numpy as np
        >>> array = np.empty((2, 5), dtype=np.float32)
        >>> ahead.write(mean=array)
        """
        for name, array in (("mean", mean), ("variance", variance)):
            if array is not None and tuple(array.shape) != self.shape:
                raise ValueError(
                    f"{name} must be an array of shape {self.shape}, but its shape is {tuple(array.shape)}."
                )
        for rows, index, *moments in self.blocks():
            for array, block in zip((mean, variance), moments, strict=True):
                if array is not None:
                    _put(array, rows, index, block)

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Rows, outputs' indices (d,), and mean and variance (rows, d), block by block until all are done."""
        with torch.no_grad():
            for rows, frames in self._inducing.frames(*self.latent):
                for index, v, mean, variance in self._inducing.moments(frames):
                    if self.noise:
                        shift, noise = self._noise(index, v)
                        mean, variance = mean + shift[rows], variance + noise[rows]
                    if self._observed is not None:
                        seen = self._observed[rows, index]
                        known = torch.isfinite(seen)
                        mean, variance = torch.where(known, seen, mean), variance.masked_fill(known, 0.0)
                    yield rows, index, mean, variance

    def _noise(self, index: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the noise of some outputs, (T, d) each; its mean is zero where nothing is carried."""
        variance = self._inducing.noise_of(index).expand(len(self.t), -1)
        if self._residuals is None:
            return torch.zeros_like(variance), variance
        mean, share = self._residuals.moments(index, v)
        return mean, variance * share

    @property
    def covariance(self) -> Tensor:
        """Covariance of the outputs within each time, (T, D, D). Large: made only when asked for."""
        if self._covariance is None:
            self._covariance = self._make_covariance()
        return self._covariance

    def _make_covariance(self) -> Tensor:
        with torch.no_grad():
            parts = [self._inducing.covariances(f) for _, f in self._inducing.frames(*self.latent)]
            full = torch.cat(parts)
            if self.noise:
                for part in self._inducing.columns():
                    _, noise = self._noise(part.outputs, part.mean)
                    full.diagonal(dim1=-2, dim2=-1)[:, part.outputs] += noise
            if self._observed is not None:
                hidden = torch.isnan(self._observed).to(full.dtype)
                full *= hidden.unsqueeze(-1) * hidden.unsqueeze(-2)
        return full

    # the distribution

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (T, D) of central intervals, each output by itself.

        :param probability: of each interval.
        :raises ValueError: where ``probability`` is not between 0 and 1.

        >>> lower, upper = ahead.interval(0.95)
        >>> bool((lower < ahead.mean).all() and (ahead.mean < upper).all())
        True
        """
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must be between 0 and 1, but got {probability!r}.")
        width = math.sqrt(2.0) * torch.erfinv(self.mean.new_tensor(probability)) * self.stddev
        return self.mean - width, self.mean + width

    def sample(self, num_samples: int = 1) -> Tensor:
        """Joint draws (num_samples, T, D): one latent path and one function each, so that times are coherent.

        :param num_samples: how many.
        :raises ValueError: where it is not a positive whole number.

        >>> ahead.sample(7).shape
        torch.Size([7, 2, 5])
        """
        check_count("num_samples", num_samples)
        with torch.no_grad():
            x = self._path.sample((num_samples,))
            carried = self._residuals if self.noise else None
            y = PosteriorGP(x, self._inducing, self.noise and carried is None).sample()
            if carried is not None:
                y += carried.sample(num_samples)
            if self._observed is not None:
                y = torch.where(torch.isfinite(self._observed), self._observed, y)
        return y

    def log_prob(self, y: Any) -> Tensor:
        """Log-density of outputs under Gaussians of these moments, summed; NaN is left out.

        Outputs count as independent, or with ``full_cov`` by their covariance within each time. What :meth:`reconstruct
        <pyro_vgpds.Posterior.reconstruct>` filled in as observed is left out as well.

        :param y: (T, D).
        :returns: one number.
        :raises ValueError: where ``y`` has another shape.

        >>> bool(ahead.log_prob(ahead.mean) > ahead.log_prob(ahead.mean + 1.0))
        True
        """
        y = self._checked(y)
        known = torch.isfinite(y)
        if self._observed is not None:
            known &= torch.isnan(self._observed)
        residual = torch.where(known, y - self.mean, 0.0)
        if not self.full_cov:
            terms = residual.square() / self.variance + self.variance.log() + math.log(2.0 * math.pi)
            return -0.5 * terms[known].sum()
        # the identity in place of what is left out: it adds nothing
        full = self.covariance * (known.unsqueeze(-1) & known.unsqueeze(-2)) + torch.diag_embed((~known).to(y.dtype))
        factor = cholesky(full, "the covariance of the outputs")
        white = torch.linalg.solve_triangular(factor, residual.unsqueeze(-1), upper=False)
        logdet = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum()
        return -0.5 * (white.square().sum() + logdet + int(known.sum()) * math.log(2.0 * math.pi))

    def to_numpy(self) -> dict[str, np.ndarray]:
        """Arrays ``t`` (or dates), ``mean``, ``variance``, ``latent_mean`` and ``latent_variance``."""
        latent = {"latent_mean": self.latent.mean, "latent_variance": self.latent.variance}
        return super().to_numpy() | {name: value.cpu().numpy() for name, value in latent.items()}


class Reconstruction(Prediction):
    """A :class:`~pyro_vgpds.Prediction` that used what was seen of the outputs.

    :ivar bound: the lower bound on log p(training outputs, seen outputs) that was reached.
    :ivar bounds: that of each start, best first.
    :ivar num_steps: natural steps that the best start took.

    >>> seen = data.read()[:10].clone()
    >>> seen[5:, 0] = float("nan")
    >>> whole = post.reconstruct(data.times.t[:10], seen, num_starts=2)
    >>> whole.bound == max(whole.bounds), len(whole.bounds)
    (True, 2)
    """

    bound: float
    bounds: list[float]
    num_steps: int


def _in_words(date: np.datetime64) -> str:
    """The day, and the time of the day where there is one."""
    day = date.astype("datetime64[D]")
    return str(day) if day == date else str(date.astype("datetime64[s]"))


def _put(array: Any, rows: slice, index: Tensor, block: Tensor) -> None:
    if isinstance(array, Tensor):
        array[rows, index] = block.to(array)
    else:
        array[rows, index.cpu().numpy()] = block.cpu().numpy()
