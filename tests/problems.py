# SPDX-License-Identifier: Apache-2.0
"""Small problems and slow, obvious twins that several tests use."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pyro.infer import SVI
from pyro.optim import Adam
from torch import Tensor

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, Sequences, fit
from pyro_vgpds.kernels import ARDRBF, Bias, Cosine, Kernel, Matern32, White
from pyro_vgpds.mapping import psi
from pyro_vgpds.mapping.group_terms import need_gradients, with_gradients
from pyro_vgpds.mapping.native_inducing import Covariance, GroupStatistics

GOLDEN = Path(__file__).parent / "golden"  # reference values
LENGTHS = (7, 4, 1, 9)


def terms_of(function):
    """Terms of groups as a function of ψ0, v, Ψ2, L and β, with a graph."""

    def compute(*arguments):
        *inputs, count, check = arguments
        psi0, v, psi2, factor, beta = (x.detach() for x in inputs)
        terms = function(
            GroupStatistics(psi0, v, psi2, beta, count), Covariance.of(factor), check, need_gradients(inputs)
        )
        return None if terms is None else with_gradients(terms, inputs, factor)

    return compute


def make_data(lengths=LENGTHS, outputs=5, missing=0.0, seed=0) -> Sequences:
    rng = np.random.default_rng(seed)
    t = [np.sort(rng.uniform(0, 3, n)) for n in lengths]
    phase = rng.uniform(0, 6, outputs)
    y = [np.sin(2 * a[:, None] + phase) + 0.1 * rng.standard_normal((len(a), outputs)) + phase for a in t]
    for part in y:
        part[rng.random(part.shape) < missing] = np.nan
    return Sequences(t, y)


def make_model(
    data: Sequences,
    latent_dim: int = 2,
    num_inducing: int = 6,
    mapping: Kernel | None = None,
    temporal: Kernel | None = None,
    noise=0.07,
    jitter: float | None = 1e-8,
) -> tuple[VGPDS, AutoOpperArchambeau]:
    """A model and guide at random parameters, away from any start or optimum."""
    generator = torch.Generator().manual_seed(1)
    model = VGPDS(
        temporal or Matern32(0.9, 0.7) + White(0.02) + Bias(0.15),
        mapping or ARDRBF(1.2, torch.linspace(0.6, 1.4, latent_dim)),
        inducing=torch.randn(num_inducing, latent_dim, generator=generator),
        noise=noise,
        output_mean=torch.nan_to_num(data.output_means),
        jitter=jitter,
    )
    shape = (data.num_frames, latent_dim)
    guide = AutoOpperArchambeau(
        model,
        mean_bar=torch.randn(shape, generator=generator),
        lam=0.5 + 3 * torch.rand(shape, generator=generator),
    )
    return model, guide


def make_problem(lengths=LENGTHS, missing=0.0, **options) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """A model and a guide at random parameters, and their data."""
    data = make_data(lengths, missing=missing)
    return *make_model(data, **options), data


def train_by_svi(model, guide, data, num_steps: int, rate: float = 0.02, elbo=None) -> list[float]:
    """The losses of a plain training loop of Pyro, with the collapsed bound unless another ELBO is given."""
    svi = SVI(model, guide, Adam({"lr": rate}), Collapsed_ELBO() if elbo is None else elbo)
    return [svi.step(data) for _ in range(num_steps)]


def fit_posterior(model: VGPDS, data: Sequences, num_steps: int, **settings) -> Posterior:
    """The posterior after a few steps of training. The settings are those of its predictions; residuals are white if
    none is given.
    """
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps, progress=False)
    return Posterior(model, guide, data, **{"residual": None, **settings})


def naive_bound(psi0, psi1, psi2, k_mm, noise, y) -> Tensor:
    """F̂ of one group of complete outputs y (N, D), written as in the paper, with explicit inverses."""
    n, d = y.shape
    beta = 1.0 / noise
    inside = beta * psi2 + k_mm
    w = beta * torch.eye(n) - beta**2 * psi1 @ torch.linalg.inv(inside) @ psi1.mT
    most = -0.5 * n * torch.as_tensor(2 * math.pi * noise).log()
    value = d * (most + 0.5 * torch.logdet(k_mm) - 0.5 * torch.logdet(inside))
    value = value - 0.5 * torch.trace(y.mT @ w @ y)
    return value - 0.5 * beta * d * (psi0 - torch.trace(torch.linalg.solve(k_mm, psi2)))


def functions_by_quadrature(gp, q, sites, k_mm: Tensor, points: int = 80):
    """The optimal q(u) given Gaussian factors of the outputs, by quadrature over x in one latent dimension.

    :returns: the weights (G,) of the nodes; and for each function its mean and variance (N, G) at the nodes, and
        KL(q(u), p(u)).
    """
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(points))
    weights = weights / weights.sum()
    x = (q.mean + q.variance.sqrt() * nodes).unsqueeze(-1)  # (N, G, 1): frame n on its own grid
    k_xm = gp.kernel.cov(x, gp.inducing)
    p = torch.linalg.solve(k_mm, k_xm.mT).mT  # (N, G, M): E[g given u] = p u
    rest = gp.kernel.cov_diag(x) - (p * k_xm).sum(-1)
    found = []
    for mean, scale, w, h in zip(gp.output_mean, gp.output_scale, sites.weight.mT, sites.linear.mT, strict=True):
        # the exponent is quadratic in u
        precision = torch.linalg.inv(k_mm) + torch.einsum("n,g,ngi,ngj->ij", scale**2 * w, weights, p, p)
        linear = torch.einsum("n,g,ngi->i", scale * (h - w * mean), weights, p)
        s, m = torch.linalg.inv(precision), torch.linalg.solve(precision, linear)
        kl = 0.5 * (torch.trace(torch.linalg.solve(k_mm, s)) + m @ torch.linalg.solve(k_mm, m) - len(m))
        kl = kl + 0.5 * (torch.logdet(k_mm) - torch.logdet(s))
        found.append((mean + scale * p @ m, scale**2 * (rest + torch.einsum("ngi,ij,ngj->ng", p, s, p)), kl))
    return weights, found


def cosines(model: VGPDS) -> list[Cosine]:
    """The leaves of the temporal kernel that oscillate."""
    return [leaf for leaf in model.temporal.leaves() if isinstance(leaf, Cosine)]


class Statistics(NamedTuple):
    psi0: Tensor
    psi1: Tensor
    psi2: Tensor


def expect(kernel, mean, variance, z, mask) -> Statistics:
    """The library's Ψ statistics, with Ψ1 itself: Ψ1ᵀ Y for Y = I."""
    result = psi.expect(kernel, mean, variance, z, mask, torch.eye(mean.shape[-2]))
    return Statistics(result.psi0, result.psi1_y.mT, result.psi2)


def observe(kernel, x, z, mask) -> Statistics:
    """The same for known x."""
    result = psi.observe(kernel, x, z, mask, torch.eye(x.shape[-2]))
    return Statistics(result.psi0, result.psi1_y.mT, result.psi2)


def hermite(mean: Tensor, variance: Tensor, points: int = 40) -> tuple[Tensor, Tensor]:
    """Nodes (points**Q, N, Q) and weights (points**Q,) of Gauss–Hermite quadrature under N(mean, diag variance)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    q = mean.shape[-1]
    grid = torch.tensor(np.stack(np.meshgrid(*[nodes] * q, indexing="ij"), -1).reshape(-1, q))
    weight = torch.tensor(np.prod(np.meshgrid(*[weights / weights.sum()] * q, indexing="ij"), 0).reshape(-1))
    return mean + variance.sqrt() * grid[:, None, :], weight
