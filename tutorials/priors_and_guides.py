# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Your own priors and guides
#
# `VGPDS` is an ordinary Pyro model, so each of its parts can be replaced. This tutorial does this on a small problem:
# priors on hyperparameters, a temporal kernel with a state-space form, two guides to compare with the default one, a
# network as a guide, other ELBOs, NUTS, and a mapping kernel. After each replacement we check the result against a slow
# but reliable method: dense algebra, Monte Carlo, or theory.
#
# [VGPDS in Pyro](vgpds_in_pyro.ipynb) explains the model, the guide and the ELBO, and should be read first.
#
# #### Contents
#
# - [A temporal kernel](#A-temporal-kernel)
# - [Priors on hyperparameters](#Priors-on-hyperparameters)
# - [NUTS](#NUTS)
# - [Guides](#Guides)
# - [An amortised guide](#An-amortised-guide)
# - [Monte Carlo ELBOs](#Monte-Carlo-ELBOs)
# - [A mapping kernel](#A-mapping-kernel)
# - [Summary](#Summary)

# %%
import copy
import os
import time

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer import MCMC, NUTS, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import init_to_value
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch.distributions import register_kl

from pyro_vgpds import (
    VGPDS,
    AmortizedOpperArchambeau,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    NaturalGradient,
    OpperArchambeau,
    Posterior,
    Sequences,
    SparseGP,
    TemporalGP,
    fit,
)
from pyro_vgpds.kernels import ARDRBF, Bias, Kernel, KernelValue, Matern32, White
from pyro_vgpds.mapping.psi import MappingValue, masked_sum

smoke_test = "CI" in os.environ
assert pyro.__version__.startswith("1.9")
pyro.set_rng_seed(0)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## A temporal kernel
#
# A damped oscillator that is driven by white noise, for example a mass on a spring with friction, follows $\ddot x +
# \tfrac{2}{\ell} \dot x + \omega_0^2 x = \text{white noise}$ with $\omega_0^2 = \omega^2 + 1/\ell^2$. Its stationary
# solution is a GP with
#
# $$ k(d) = \sigma^2 e^{-d/\ell} \Big( \cos \omega d + \frac{\sin \omega d}{\omega \ell} \Big), \qquad d = |t - t'|. $$
#
# A kernel has two parts: a *module*, which owns positive parameters, and a *value*, which has the algebra and is
# returned when the module is called. Parameters have a last axis over latent dimensions, of size 1 if they are shared,
# and `gram` appends the axes of the times. This is enough for a dense $K_t$, at cost $O(N^3)$.
#
# The equation of motion also gives a state-space form: the state $\mathbf z = (x, \dot x)$ follows $d\mathbf z = F
# \mathbf z\, dt + \text{noise}$ with
#
# $$ F = \begin{pmatrix} 0 & 1 \\ -\omega_0^2 & -2/\ell \end{pmatrix}, \qquad
# P = \sigma^2 \begin{pmatrix} 1 & 0 \\ 0 & \omega_0^2 \end{pmatrix}, \qquad \mathbf h = (1, 0), $$
#
# where $P$ is the stationary covariance and $x = \mathbf h^\top \mathbf z$. With these three methods, the library does
# all computations in $O(N)$.


# %%
class SwingValue(KernelValue):
    state_dim = 2

    def __init__(self, variance, lengthscale, omega):
        self.variance, self.lengthscale, self.omega = variance, lengthscale, omega  # (..., K)

    def gram(self, a, b=None):  # times (*batch, n) -> (..., K, *batch, n, m)
        d = (a.unsqueeze(-1) - (a if b is None else b).unsqueeze(-2)).abs()
        variance, ell, omega = (
            p.reshape(p.shape + (1,) * d.dim()) for p in (self.variance, self.lengthscale, self.omega)
        )
        return variance * torch.exp(-d / ell) * (torch.cos(omega * d) + torch.sin(omega * d) / (omega * ell))

    def diag(self, a):
        return self.variance.reshape(self.variance.shape + (1,) * a.dim()).expand(self.variance.shape + a.shape)

    # the state-space form

    def _stiffness(self):
        return self.omega**2 + 1 / self.lengthscale**2

    def design_matrix(self):  # F
        stiffness, friction = torch.broadcast_tensors(self._stiffness(), 2 / self.lengthscale)
        top = torch.stack([torch.zeros_like(stiffness), torch.ones_like(stiffness)], -1)
        return torch.stack([top, torch.stack([-stiffness, -friction], -1)], -2)

    def stationary_covariance(self):  # P
        both = torch.broadcast_tensors(self.variance, self.variance * self._stiffness())
        return torch.diag_embed(torch.stack(both, -1))

    def observation_model(self, t):  # h
        return torch.stack([torch.ones_like(t), torch.zeros_like(t)], -1)


class Swing(Kernel):
    def __init__(self, variance=1.0, lengthscale=1.0, omega=1.0):
        super().__init__()
        for name, value in (("variance", variance), ("lengthscale", lengthscale), ("omega", omega)):
            self.add_parameter(name, value)

    def forward(self):
        return SwingValue(self.read("variance"), self.read("lengthscale"), self.read("omega"))


# %% [markdown]
# Every state-space form must pass this check: $q(X)$, its KL and the gradients agree with the dense form.

# %%
n = 60 if smoke_test else 600
t_long = torch.linspace(0, 60, n)
lam, mean_bar = torch.rand(n, 1) + 0.5, torch.randn(n, 1)
results = {}
for structure in ("dense", "markov"):
    kernel = Swing(1.0, 4.0, 2.0) + White(0.01)  # sums, products, priors and fix() work without further code
    for _ in range(2):  # the first run is a warm-up
        began = time.process_time()
        prior = TemporalGP(kernel(), t_long, latent_dim=1, structure=structure)
        q = OpperArchambeau(prior, mean_bar, lam)
        kl = torch.distributions.kl_divergence(q, prior)
        gradients = torch.autograd.grad(kl, list(kernel.parameters()))
    results[structure] = (q.mean, q.variance, kl, torch.stack(gradients))
    print(
        f"{structure:7s} KL {kl.item():.10f}   {1000 * (time.process_time() - began):6.0f} ms with gradients, N = {n}"
    )
for dense, markov in zip(*results.values(), strict=True):
    torch.testing.assert_close(dense, markov, rtol=1e-7, atol=1e-9)

# %% [markdown]
# Next, we sample a small oscillating series from a model with two latent dimensions and this kernel. We train two
# models on it: one with a Matérn kernel and one with our kernel. Which one has the higher bound?

# %%
num_frames, num_outputs, num_inducing = (16, 4, 6) if smoke_test else (50, 6, 15)
true_lengthscale, true_omega, true_noise = 3.0, 2.0, 0.15
t = 0.2 * torch.arange(num_frames)
with torch.no_grad():
    x_true = TemporalGP(Swing(1.0, true_lengthscale, true_omega)(), t, latent_dim=2).sample()
    curved = ARDRBF(1.0, torch.tensor([0.25, 0.15]))
    variance, mean = torch.tensor(true_noise**2), torch.zeros(num_outputs)
    y = SparseGP(x_true, curved(), inducing=torch.zeros(1, 2), noise=variance, mean=mean).sample()
data = Sequences(t, y)


def train(temporal, mapping=None, num_steps=5 if smoke_test else 300):
    pyro.clear_param_store()
    pyro.set_rng_seed(1)
    model = VGPDS.from_data(data, 2, num_inducing, temporal + White(1e-3) + Bias(0.1), mapping, jitter=1e-6)
    guide = AutoOpperArchambeau(model)
    return model, guide, fit(model, guide, data, num_steps, progress=False).bound


_, _, matern_bound = train(Matern32().fix("variance"))
model, guide, swing_bound = train(Swing(1.0, 2.0, 1.5).fix("variance"))
print(f"bound: {matern_bound:.1f} with Matern32, {swing_bound:.1f} with Swing")
print(f"learned: {model.temporal[0]}; true values: lengthscale {true_lengthscale}, omega {true_omega}")

# %%
t_ahead = torch.linspace(t[-1].item(), t[-1].item() + 6, 61)
path, ahead = guide.posterior(data), guide.posterior(data).forecast(t_ahead, sequence=0)
fig, ax = plt.subplots(figsize=(8, 3), layout="constrained")
for dim in range(2):
    for times, part, style in ((t, path, "-"), (t_ahead, ahead, "--")):
        mean, sd = part.mean[:, dim].detach(), part.variance[:, dim].detach().sqrt()
        ax.plot(times, mean, style, color=f"C{dim}", label=f"latent {dim}" if style == "-" else None)
        ax.fill_between(times, mean - 2 * sd, mean + 2 * sd, color=f"C{dim}", alpha=0.2, linewidth=0)
ax.axvline(t[-1], color="0.6", linewidth=0.8)
ax.set(xlabel="time", ylabel="latent path")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Beyond the end of the data (the vertical line) the path continues to oscillate, and the bands of two standard
# deviations widen. This is a property of the kernel.
#
# ## Priors on hyperparameters
#
# Every kernel parameter, and the noise, can be a `PyroSample` instead of a value. The model then has additional latent
# sites. `AutoOpperArchambeau` gives each of them a mean-field Normal on the unconstrained space, and keeps its form for
# `x`. `Collapsed_ELBO` integrates `x` as before and samples the rest.

# %%
prior_lengthscale, prior_omega = dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 1.0)
prior_noise = dist.LogNormal(-4.0, 1.5)  # of the variance

pyro.clear_param_store()
pyro.set_rng_seed(2)
random_model = copy.deepcopy(model)  # starts at the trained values
random_model.temporal[0].set("lengthscale", PyroSample(prior_lengthscale)).set("omega", PyroSample(prior_omega))
random_model.noise = PyroSample(prior_noise)
random_guide = AutoOpperArchambeau(random_model, mean_bar=guide.mean_bar.detach(), lam=guide.lam.detach())
fit(random_model, random_guide, data, 5 if smoke_test else 600, learning_rate=0.03, progress=False, warmup=0)

with torch.no_grad():
    draws = [random_guide(data) for _ in range(10 if smoke_test else 1000)]
names = {"lengthscale": "temporal.parts.0.lengthscale", "omega": "temporal.parts.0.omega", "noise": "noise"}
by_guide = {name: torch.stack([draw[site] for draw in draws]) for name, site in names.items()}
for name, value in by_guide.items():
    print(f"{name:12s} {value.mean():.4f} ± {value.std():.4f}")

# %% [markdown]
# ## NUTS
#
# How accurate is this? For such a small problem we can use NUTS, which accepts `random_model` unchanged, with the same
# priors. But the values of `x` are strongly correlated, which makes NUTS slow. So we sample in coordinates in which
# $q(X)$ is a standard normal, $X = \boldsymbol\mu + L \mathbf z$ with $L L^\top = S$. `pyro.condition` inserts the $x$
# computed from $\mathbf z$ into the model, and the mask removes the prior of $\mathbf z$, which only defines the site.

# %%
with torch.no_grad():
    q = guide.posterior(data)
    mu, root = q.mean, torch.linalg.cholesky(q.covariance_matrix + 1e-10 * torch.eye(num_frames))


def to_path(z):
    return mu + torch.einsum("qnm,...mq->...nq", root, z)


def whitened(data):
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand(mu.shape).to_event(2).mask(False))
    pyro.condition(random_model, data={"x": to_path(z)})(data)


pyro.clear_param_store()
pyro.set_rng_seed(3)
start = {site: by_guide[name].median() for name, site in names.items()} | {"z": torch.zeros_like(mu)}
num_samples, num_warmup = (4, 4) if smoke_test else (400, 200)
nuts = NUTS(whitened, init_strategy=init_to_value(values=start), max_tree_depth=2 if smoke_test else 6)
mcmc = MCMC(nuts, num_samples, warmup_steps=num_warmup, disable_progbar=True)
mcmc.run(data)
samples = mcmc.get_samples()
if not smoke_test:
    for site, facts in mcmc.diagnostics().items():
        if site in names.values():
            print(f"{site:30s} {facts['n_eff'].item():6.0f} effective samples, r_hat {facts['r_hat'].item():.3f}")

# %%
truths = {"lengthscale": true_lengthscale, "omega": true_omega, "noise": true_noise**2}
priors = {"lengthscale": prior_lengthscale, "omega": prior_omega, "noise": prior_noise}
fig, axes = plt.subplots(1, 4, figsize=(12, 3), layout="constrained")
for ax, name in zip(axes, names, strict=False):
    by_nuts = samples[names[name]]
    both = torch.cat([by_nuts, by_guide[name]])
    low, high = both.min().item(), both.max().item()
    bins = torch.linspace(low, high, 40).numpy()
    ax.hist(by_nuts.numpy(), bins, density=True, alpha=0.5, label="NUTS")
    ax.hist(by_guide[name].numpy(), bins, density=True, histtype="step", linewidth=1.5, label="guide")
    grid = torch.linspace(low, high, 200)
    ax.plot(grid, priors[name].log_prob(grid).exp(), color="0.5", label="prior")
    ax.axvline(truths[name], color="k", linestyle=":", label="true value")
    ax.set(xlabel=name if name != "noise" else "noise variance", ylabel="density", yticks=[])
axes[0].legend(frameon=False)

paths = to_path(samples["z"])  # (samples, N, Q)
away, middle = paths - paths.mean(-2, keepdim=True), mu - mu.mean(0)
u, _, v = torch.linalg.svd(away.mT @ middle)
turned = away @ (u @ v)  # each path rotated to be as close as possible to the guide's
spread = q.variance.sqrt().flatten()
axes[3].plot(spread, paths.std(0).flatten(), ".", color="0.7", label="original samples")
axes[3].plot(spread, turned.std(0).flatten(), ".", label="rotated back")
axes[3].axline((0.1, 0.1), slope=1, color="k", linewidth=0.8)
axes[3].set(xlabel="standard deviation of $x$: guide", ylabel="NUTS")
axes[3].legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(-0.1, 1), columnspacing=1)
plt.show()

# %% [markdown]
# The first three panels show the hyperparameters: the guide finds the right location. A mean-field guide cannot
# represent the dependence between hyperparameters and path, so its widths can differ from those of NUTS.
#
# The last panel has one dot for each latent coordinate $x_{nq}$. In the original samples (grey), NUTS has more
# uncertainty about the path than $q(X)$: the outputs hardly determine the rotation and the origin of the latent space,
# because the mapping can rotate with it. In the guide, $q(X)$ and $q(U)$ are independent, and it selects one of these
# rotations. After each path is shifted and rotated back (blue), the paths vary less. The remaining distance above the
# line is the cost of the guide's independence assumption.
#
# ## Guides
#
# From here on the hyperparameters stay at the values of `model`, and only guides are trained, so that their bounds can
# be compared. `Collapsed_ELBO` needs only a mean and a variance from the guide's distribution at `x`. If the KL to
# `TemporalGP` is registered as well, as it is for independent Normals, the loss is deterministic.


# %%
class MeanField(PyroModule):
    def __init__(self, loc, scale):
        super().__init__()
        self.loc = PyroParam(loc, event_dim=2)
        self.scale = PyroParam(scale, constraints.positive, event_dim=2)

    def forward(self, data):
        pyro.sample("x", dist.Normal(self.loc, self.scale).to_event(2))


# %% [markdown]
# A chain lies between this guide and a full covariance: each frame depends on the previous one,
#
# $$ x_1 \sim \mathcal N(m_1, s_1^2), \qquad
# x_n \mid x_{n-1} \sim \mathcal N\big(m_n + a_n (x_{n-1} - m_{n-1}),\; s_n^2\big), $$
#
# for each latent dimension. Its marginal means are $m_n$ and its variances follow $v_n = a_n^2 v_{n-1} + s_n^2$. As a
# distribution it needs `rsample`, `log_prob`, `mean` and `variance`. Pyro can then already estimate its KL from
# samples; we register it in closed form. For each dimension
#
# $$ \mathrm{KL} = \tfrac12 \operatorname{tr} K_t^{-1} S + \tfrac12 \mathbf m^\top K_t^{-1} \mathbf m +
# \tfrac12 \log|K_t| - \sum_n \log s_n - \tfrac N2. $$


# %%
class Chain(dist.TorchDistribution):
    arg_constraints = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, loc, carry, scale):  # (N, Q) each; the first carry is not used
        self.loc, self.carry, self.scale = loc, carry, scale
        super().__init__(torch.Size(), loc.shape, validate_args=False)

    def root(self):
        """R with S = R Rᵀ, (Q, N, N): x − m = (I − A)⁻¹ diag(s) ε with the carries on the subdiagonal of A."""
        steps = torch.eye(len(self.loc)) - torch.diag_embed(self.carry[1:].T, offset=-1)
        return torch.linalg.solve_triangular(steps, torch.diag_embed(self.scale.T), upper=False)

    @property
    def mean(self):
        return self.loc

    @property
    def variance(self):
        return self.root().square().sum(-1).T

    @property
    def covariance_matrix(self):
        return self.root() @ self.root().mT

    def rsample(self, sample_shape=()):
        noise = torch.randn((*sample_shape, *self.loc.T.shape, 1))
        return self.loc + (self.root() @ noise).squeeze(-1).mT

    def log_prob(self, x):
        away = x - self.loc
        expected = torch.cat([torch.zeros_like(away[..., :1, :]), self.carry[1:] * away[..., :-1, :]], -2)
        return dist.Normal(expected, self.scale).log_prob(away).sum((-2, -1))


@register_kl(Chain, TemporalGP)
def _kl_chain(q, p):
    k = p.covariance_matrix + 1e-8 * torch.eye(p.event_shape[0])  # (Q, N, N)
    factor = torch.linalg.cholesky(k)
    trace = torch.linalg.solve_triangular(factor, q.root(), upper=False).square().sum()
    square = torch.linalg.solve_triangular(factor, q.loc.T.unsqueeze(-1), upper=False).square().sum()
    logdet = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum()
    return 0.5 * (trace + square + logdet - q.loc.numel()) - q.scale.log().sum()


class Autoregressive(PyroModule):
    def __init__(self, loc, scale):
        super().__init__()
        self.loc = PyroParam(loc, event_dim=2)
        self.carry = PyroParam(torch.full_like(loc, 0.5), event_dim=2)
        self.scale = PyroParam(scale, constraints.positive, event_dim=2)

    def forward(self, data):
        pyro.sample("x", Chain(self.loc, self.carry, self.scale))


# %% [markdown]
# All guides start at the same means. The two new guides are trained by Adam with a decreasing learning rate; only their
# parameters are passed to the optimiser. The Opper–Archambeau guide converges by natural gradient steps.


# %%
def train_guide(guide, num_steps=5 if smoke_test else 1000):
    pyro.clear_param_store()
    elbo = Collapsed_ELBO()
    optimiser = torch.optim.Adam(guide.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, num_steps)
    bounds = []
    for _ in range(num_steps):
        optimiser.zero_grad()
        loss = elbo.differentiable_loss(model, guide, data)
        loss.backward()
        optimiser.step()
        schedule.step()
        bounds.append(-loss.item())
    return bounds


pyro.set_rng_seed(4)
with torch.no_grad():
    q = guide.posterior(data)
    loc, scale = q.mean.clone(), q.variance.sqrt().clone()
mean_field, chain = MeanField(loc.clone(), scale.clone()), Autoregressive(loc.clone(), scale.clone())
curves = {"mean field": train_guide(mean_field), "autoregressive chain": train_guide(chain)}

pyro.clear_param_store()
elbo, settled = Collapsed_ELBO(), []
with NaturalGradient(guide, data) as natural:
    for _ in range(5 if smoke_test else 200):
        settled.append(-elbo.loss_and_grads(model, guide, data))
        natural.step(0.7)
curves["Opper–Archambeau"] = settled
sizes = {"mean field": 2, "autoregressive chain": 3, "Opper–Archambeau": 2}
for name, bounds in curves.items():
    print(f"{name:22s} {sizes[name]} QN parameters, bound {bounds[-1]:9.2f}")

# %%
with torch.no_grad():
    covariances = {
        "mean field": torch.diag_embed(mean_field.scale.square().T)[0],
        "autoregressive chain": Chain(chain.loc, chain.carry, chain.scale).covariance_matrix[0],
        "Opper–Archambeau": guide.posterior(data).covariance_matrix[0],
    }
fig, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for ax, (name, matrix) in zip(axes, covariances.items(), strict=True):
    sd = matrix.diagonal().sqrt()
    image = ax.imshow((matrix / sd / sd[:, None]).numpy(), vmin=-1, vmax=1, cmap="RdBu_r")
    ax.set(title=f"{name}\nbound {curves[name][-1]:.1f}", xlabel="frame", ylabel="frame")
fig.colorbar(image, ax=axes, label="correlation")
plt.show()

# %% [markdown]
# The figures show the correlations over time of one latent dimension. Mean field has only a diagonal. In the chain each
# frame depends on the previous one, and correlations decay from frame to frame. The third guide has the correlations of
# the prior, for which a path is smooth over several frames and oscillates. The bounds have the expected order:
# Opper–Archambeau is the optimal Gaussian $q(X)$ with independent dimensions, and mean field is a chain with $a_n = 0$.

# %%
if not smoke_test:
    assert curves["mean field"][-1] < curves["autoregressive chain"][-1] < curves["Opper–Archambeau"][-1]

# %% [markdown]
# `Posterior` predicts with each of these guides. It reads the mean $\mathbf m$ and the covariance $S$ of `x`, and
# integrates the prior's conditional over it:
#
# $$ \mu_* = A \mathbf m, \qquad \Sigma_* = K_{**} - A K_{N*} + A S A^\top, \qquad A = K_{*N} K_t^{-1}. $$
#
# Pyro's autoguides work as well. A distribution without `covariance_matrix` counts as independent over the frames.

# %%
pyro.clear_param_store()
for name, any_guide in (("mean field", mean_field), ("autoregressive chain", chain), ("Opper–Archambeau", guide)):
    post = Posterior(model, any_guide, data)
    ahead = post.forecast(t[-1] + torch.tensor([0.2, 1.0]))
    print(f"{name:22s} bound {post.bound:9.2f}, standard deviation of output 0 ahead:", ahead.stddev[:, 0].numpy())

# %% [markdown]
# ## An amortised guide
#
# All guides so far have parameters for each frame. A new sequence has no such parameters, so its $q(X)$ must be found
# by an optimisation. An *amortised* guide learns a network instead that maps the outputs of a frame to its site,
#
# $$ \lambda_n = \exp b(\mathbf y_n), \qquad \eta_n = \lambda_n \circ a(\mathbf y_n), $$
#
# as if the network had observed $\mathbf x_n$ at $a(\mathbf y_n)$ with precision $\lambda_n$. The rest is the same as
# in the Opper–Archambeau guide: $q(X)$ is the prior times these sites, so the path is still smooth, and frames without
# outputs follow their neighbours. `AmortizedOpperArchambeau` has a small default network; `network=` takes any
# `torch.nn.Module`.
#
# A network needs more than one short series, so we sample several sequences with one common mapping, and keep two of
# them for later.

# %%
pyro.clear_param_store()
pyro.set_rng_seed(7)
num_sequences, length = (3, 8) if smoke_test else (42, 30)
many_t = [0.2 * torch.arange(length)] * num_sequences
with torch.no_grad():
    swing = Swing(1.0, true_lengthscale, true_omega)()
    many_x = torch.cat([TemporalGP(swing, part, latent_dim=2).sample() for part in many_t])
    noise, centre = torch.tensor(true_noise**2), torch.zeros(num_outputs)
    many_y = SparseGP(many_x, curved(), inducing=torch.zeros(1, 2), noise=noise, mean=centre).sample().split(length)
train_data = Sequences(many_t[:-2], many_y[:-2])
t_new, y_new = many_t[-2:], list(many_y[-2:])

temporal = Swing(1.0, 2.0, 1.5).fix("variance") + White(1e-3) + Bias(0.1)
shared = VGPDS.from_data(train_data, 2, 6 if smoke_test else 20, temporal, jitter=1e-6)
encoder = AmortizedOpperArchambeau(shared, train_data, num_hidden=32)

# %% [markdown]
# `fit` trains network and hyperparameters together by Adam; Pyro's `SVI` with `Collapsed_ELBO` does it as well.
#
# What does the amortisation cost? `encoder.refine` copies the sites of the network into an `AutoOpperArchambeau` and
# takes natural steps from there, with the hyperparameters fixed. `encoder.gap` is what the bound gains by this, never
# negative. For sequences that were not in training, `Posterior.reconstruct` finds $q(X_*)$ given the training data.
# `encode=True` takes it from the network instead, without an optimisation. The difference of the two bounds is the gap
# of the new sequences.

# %%
steps, gaps = [], {"training sequences": [], "new sequences": []}
part = 2 if smoke_test else 50
for k in range(2 if smoke_test else 8):
    fit(shared, encoder, train_data, part, progress=False)
    post = Posterior(shared, encoder, train_data)
    quick, slow = post.reconstruct(t_new, y_new, encode=True), post.reconstruct(t_new, y_new)
    steps.append((k + 1) * part)
    gaps["training sequences"].append(encoder.gap(train_data) / train_data.num_frames)
    gaps["new sequences"].append((slow.bound - quick.bound) / (2 * length))
for name, values in gaps.items():
    print(f"{name:18s} gap {values[0]:.2f} nats per frame after {part} steps, {values[-1]:.3f} after {steps[-1]}")

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
for name, values in gaps.items():
    left.plot(steps, values, "o-", markersize=3, label=name)
left.set(xlabel="steps of Adam", ylabel="gap (nats per frame)", yscale="log")
left.legend(frameon=False)
for dim in range(2):
    middle, wide = quick.latent.mean[:length, dim], 2 * quick.latent.variance[:length, dim].sqrt()
    right.fill_between(t_new[0], middle - wide, middle + wide, color=f"C{dim}", alpha=0.3, linewidth=0)
    right.plot(t_new[0], middle, color=f"C{dim}", label="network" if dim == 0 else None)
    right.plot(t_new[0], slow.latent.mean[:length, dim], "k--", label="natural steps" if dim == 0 else None)
right.set(xlabel="time", ylabel="latent path of a new sequence")
right.legend(frameon=False)
plt.show()

# %% [markdown]
# Left: the gap becomes small, also on the sequences that the network has never seen. Right: the path of a new sequence
# by the network, with two standard deviations, and by natural steps (dashed).
#
# A network knows only patterns of missing outputs that occurred in training. Here nothing was missing, so it should not
# be used for sequences with hidden outputs. If it is good but not good enough, continue with the refined guide:

# %%
for name, options in (("network", {"encode": True}), ("natural steps", {})):
    began = time.process_time()
    result = post.reconstruct(t_new, y_new, **options)
    print(f"{name:14s} bound {result.bound:9.2f}, {1000 * (time.process_time() - began):5.0f} ms for two new sequences")

fine = encoder.refine(train_data)
before, after = post.bound, Posterior(shared, fine, train_data).bound
print(f"training data: bound {before:.2f} by the network, {after:.2f} refined; gap {encoder.gap(train_data):.2f} nats")

# %% [markdown]
# ## Monte Carlo ELBOs
#
# Without the messenger of `Collapsed_ELBO`, model and guide run with Pyro's other ELBOs. These sample `x` and score `y`
# by `SparseGP.log_prob`, which is the bound of Titsias for that `x`; we call it $\mathrm{VFE}(X)$. It has the optimal
# $q(U)$ *for each sample*. The collapsed bound has one $q(U)$ for all of $q(X)$, so
#
# $$ \hat{\mathcal F} \le \langle \mathrm{VFE}(X) \rangle_{q(X)}, $$
#
# with equality if $q(X)$ is a point mass. The Monte Carlo ELBOs are tighter, but noisy.

# %%
pyro.clear_param_store()
pyro.set_rng_seed(5)
num_draws = 5 if smoke_test else 400
with torch.no_grad():
    collapsed = -Collapsed_ELBO().loss(model, guide, data)
    estimates = {
        kind.__name__: torch.tensor([-kind().loss(model, guide, data) for _ in range(num_draws)])
        for kind in (TraceMeanField_ELBO, Trace_ELBO)
    }
print(f"{'Collapsed_ELBO':22s} {collapsed:9.2f}, deterministic")
for name, value in estimates.items():
    error = value.std() / num_draws**0.5
    print(
        f"{name:22s} {value.mean():9.2f} ± {error:.2f}; a single sample has a standard deviation of {value.std():.2f}"
    )
    assert smoke_test or value.mean() + 4 * error > collapsed  # the order that theory predicts

# %% [markdown]
# To see the gap close, we make $q(X)$ narrower: the same mean, and $\boldsymbol\lambda$ multiplied by increasing
# factors.


# %%
def likelihood(x):
    return model.likelihood(x, data, k_f)


with torch.no_grad():
    k_x, k_f = model.temporal(), model.mapping()
    prior = TemporalGP(k_x, data.times, 2)
    factors, gaps, errors = [1.0, 3.0, 10.0, 30.0, 100.0, 1000.0], [], []
    for factor in factors:
        q = OpperArchambeau(prior, guide.mean_bar, factor * guide.lam)
        one = likelihood(q.mean).integrate(q).log_prob(data.y)
        each = torch.stack([likelihood(q.sample()).log_prob(data.y) for _ in range(num_draws)])
        gaps.append((each.mean() - one).item())
        errors.append((each.std() / num_draws**0.5).item())

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
for name, value in estimates.items():
    left.hist(value.numpy(), 30, alpha=0.5, label=f"{name}, one sample")
left.axvline(collapsed, color="k", label="Collapsed_ELBO")
left.set(xlabel="estimate of the bound (nats)", ylabel="count")
left.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0, 1))
right.errorbar(factors, gaps, [2 * e for e in errors], fmt="o-", capsize=3)
right.axhline(0, color="0.6", linewidth=0.8)
right.set(xscale="log", xlabel=r"$\lambda$ multiplied by", ylabel=r"$\langle$VFE(X)$\rangle - \hat F$ (nats)")
plt.show()

# %% [markdown]
# Left: the single-sample estimates have means above the line. `Trace_ELBO` samples the KL as well. Whether this adds or
# removes noise depends on how close the guide is to the posterior; for the exact posterior, the noise would cancel.
# Right: the gap goes to zero as $q(X)$ approaches a point mass (bars are two standard errors).
#
# ## A mapping kernel
#
# The collapsed bound needs three expectations of the mapping kernel under a Gaussian, $\psi_0$, $\Psi_1$ and $\Psi_2$.
# A kernel with closed forms of these expectations can replace `ARDRBF`. Here is one for a latent space in which each
# dimension is an angle, $k(\mathbf x, \mathbf z) = \sigma^2 \prod_q \cos \omega_q (x_q - z_q)$. With $x_q \sim \mathcal
# N(\mu_q, s_q)$,
#
# $$ \langle k(\mathbf x, \mathbf z) \rangle = \sigma^2 \prod_q e^{-\omega_q^2 s_q / 2} \cos \omega_q (\mu_q - z_q), $$
#
# $$ \langle k(\mathbf z, \mathbf x) k(\mathbf x, \mathbf z') \rangle =
# \sigma^4 \prod_q \tfrac12 \big[ \cos \omega_q (z_q - z'_q) +
# e^{-2 \omega_q^2 s_q} \cos \omega_q (2 \mu_q - z_q - z'_q) \big]. $$
#
# `mask` contains the rows in which each group of outputs was observed, so that missing data work. `masked_sum` computes
# the sums over $n$.


# %%
class AnglesValue(MappingValue):
    def __init__(self, variance, omega):
        self.variance, self.omega = variance[..., 0], omega

    def cov(self, x, z):
        return self.psi1(x, torch.zeros_like(x), z)

    def cov_diag(self, x):
        return self.variance * torch.ones_like(x[..., 0])

    def psi0(self, mean, variance, mask):
        return masked_sum(self.variance * torch.ones_like(mean[..., :1]), mask)[..., 0]

    def psi1(self, mean, variance, z):
        shrink = torch.exp(-0.5 * (self.omega**2 * variance).sum(-1))[:, None]
        return self.variance * shrink * torch.cos(self.omega * (mean[:, None, :] - z)).prod(-1)

    def psi2(self, mean, variance, z, mask):
        apart = torch.cos(self.omega * (z[:, None, :] - z))  # (M, M, Q)
        middle = 2 * mean[:, None, None, :] - z[:, None, :] - z  # (N, M, M, Q)
        shrink = torch.exp(-2 * self.omega**2 * variance)[:, None, None, :]
        terms = (0.5 * (apart + shrink * torch.cos(self.omega * middle))).prod(-1)
        return masked_sum((self.variance**2 * terms).flatten(-2), mask).unflatten(-1, (len(z), len(z)))


class Angles(Kernel):
    def __init__(self, variance=1.0, omega=1.0):
        super().__init__()
        self.add_parameter("variance", variance)
        self.add_parameter("omega", omega)

    def forward(self):
        return AnglesValue(self.read("variance"), self.read("omega"))


# %% [markdown]
# The check against Monte Carlo: sample $X$, compute the kernel matrices, and average. In units of standard errors, the
# differences should be approximately standard normal.

# %%
pyro.set_rng_seed(6)
kernel = Angles(1.3, torch.tensor([0.8, 1.4]))()
mean, variance, z = torch.randn(4, 2), torch.rand(4, 2), torch.randn(3, 2)
x = mean + variance.sqrt() * torch.randn(1000 if smoke_test else 100_000, 4, 2)
with torch.no_grad():
    k_nm = kernel.variance * torch.cos(kernel.omega * (x[:, :, None, :] - z)).prod(-1)  # (samples, N, M)
    checks = {
        "Ψ1": (kernel.psi1(mean, variance, z), k_nm),
        "Ψ2": (kernel.psi2(mean, variance, z, None)[0], k_nm.mT @ k_nm),
    }
    for name, (formula, draws) in checks.items():
        away = (draws.mean(0) - formula) / (draws.std(0) / len(draws) ** 0.5)
        print(f"{name}: largest difference {away.abs().max():.1f} standard errors, of {away.numel()} entries")
        assert away.abs().max() < 5

# %% [markdown]
# The kernel can now be used. It has a finite number of features ($2^Q$), so $K_{MM}$ would be singular. A small white
# noise, which in the mapping is added only to the diagonal of $K_{MM}$, prevents this. `Bias` and `White` can be added
# to every kernel; for other sums, `register_psi2` registers the cross terms.

# %%
angles = Angles(1.0, torch.tensor([0.5, 0.5])) + Bias(0.1) + White(1e-3).fix()
_, _, angles_bound = train(Swing(1.0, 2.0, 1.5).fix("variance"), angles)
print(f"bound: {swing_bound:.1f} with ARDRBF, {angles_bound:.1f} with Angles")

# %% [markdown]
# ## Summary
#
# - A temporal kernel needs `gram` and `diag`. Three more methods give it a state-space form with cost $O(N)$.
# - Parameters become random as `PyroSample`s; guide, ELBOs and NUTS work unchanged.
# - Every guide whose `x` has a mean and a variance works with `Collapsed_ELBO`. If its KL is registered, the loss is
#   deterministic. Opper–Archambeau is the optimal Gaussian with independent latent dimensions. `Posterior` predicts
#   with each of them.
# - An amortised guide encodes new sequences without an optimisation; its gap tells what that costs.
# - Monte Carlo ELBOs run with the same model and guide. They are tighter, but noisy.
# - A mapping kernel is defined by its $\Psi$ statistics. Test them against Monte Carlo.
#
# The [page on extending the library](../docs/extending.md) describes the same interfaces as a reference.
#
# ## What next
#
# - [VGPDS in Pyro](vgpds_in_pyro.ipynb): the parts that were replaced here, written out.
# - [Motion capture](motion_capture.ipynb) and [Video](video.ipynb): the model on real data.
# - [Messy data](messy_data.ipynb): gaps, irregular times and files.
# - [The eight scenarios of the original code](eight_scenarios.ipynb): which of the existing kernels for which data.
