# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # VGPDS in Pyro
#
# A *variational Gaussian process dynamical system* (Damianou, Titsias and Lawrence 2011) is a model of
# high-dimensional time series that follow a low-dimensional path: joint angles of a walking body, pixels of a video,
# the sensors of a robot. It has two layers of Gaussian processes (GPs) and integrates over both, so it says how sure
# it is and how many latent dimensions it needs.
#
# In this tutorial we write the model, the guide and the ELBO ourselves, from parts of `pyro_vgpds`, beside the
# paper's equations. Then we check that the library's own `VGPDS`, `AutoOpperArchambeau` and `Collapsed_ELBO` give the
# same loss, and train, look into and forecast with them. You should know Pyro's `sample`, `SVI` and guides; a little
# of GPs helps.
#
# #### Contents
#
# - [The model](#The-model)
# - [A series to learn](#A-series-to-learn)
# - [The guide: why 2QN numbers are enough](#The-guide:-why-2QN-numbers-are-enough)
# - [The ELBO](#The-ELBO)
# - [The same with the library](#The-same-with-the-library)
# - [Training: natural gradients against Adam](#Training:-natural-gradients-against-Adam)
# - [How many dimensions?](#How-many-dimensions?)
# - [The stationary conditions](#The-stationary-conditions)
# - [Forecasting](#Forecasting)
# - [Summary](#Summary)

# %%
import copy
import math
import os

import matplotlib.pyplot as plt
import pyro
import torch
from pyro.distributions import constraints
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroParam
from pyro.optim import Adam
from pyro.poutine.messenger import Messenger

from pyro_vgpds import (
    VGPDS,
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
from pyro_vgpds.baselines import gp_interpolation, last_value
from pyro_vgpds.kernels import ARDRBF, RBF, Bias, White
from pyro_vgpds.metrics import coverage, mse
from pyro_vgpds.plotting import plot_forecast, plot_latent, plot_relevance

smoke_test = "CI" in os.environ
assert pyro.__version__.startswith("1.9")
pyro.set_rng_seed(0)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)  # several times faster than more, for small problems
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## The model
#
# There are $N$ frames $\mathbf y_n \in \mathbb R^D$ at times $t_n$. A latent path $\mathbf x(t) \in \mathbb R^Q$,
# with $Q \ll D$, runs underneath, and each output is a function of it plus noise (the paper's section 2):
#
# $$ y_{nd} = f_d(\mathbf x_n) + \epsilon_{nd}, \qquad \epsilon_{nd} \sim \mathcal N(0, \beta^{-1}), $$
#
# $$ x_q(t) \sim \mathcal{GP}(0, k_x(t, t')), \qquad f_d(\mathbf x) \sim \mathcal{GP}(0, k_f(\mathbf x, \mathbf x')). $$
#
# The *temporal* kernel $k_x$ says how the path moves: smooth, rough, periodic. The *mapping* kernel $k_f$ says how
# the outputs depend on it. The paper takes a squared exponential with one weight $w_q$ for each latent dimension,
#
# $$ k_f(\mathbf x, \mathbf x') = \sigma^2 \exp\Big(-\tfrac12 \sum_q w_q (x_q - x'_q)^2\Big), $$
#
# so that $w_q \to 0$ switches dimension $q$ off.
#
# At the frames, the path is Gaussian, $p(\mathbf x_q) = \mathcal N(0, K_t)$ with $K_t = k_x(\mathbf t, \mathbf t)$.
# That is `TemporalGP`, a Pyro distribution of event shape $(N, Q)$. Given the path, the outputs are those of a sparse
# GP with $M$ inducing inputs $\tilde X$: that is `SparseGP`, of event shape $(N, D)$. So the model has two sample
# sites.
#
# In this library a kernel is a module that owns parameters, and *calling* it gives a value, which has the algebra.
# `Sequences` holds times and outputs, here of one sequence. The mark `infer={"integrate": "x"}` does nothing by
# itself; we come to it with the ELBO.


# %%
class ByHand(PyroModule):
    def __init__(self, temporal, mapping, inducing, noise, output_mean, jitter=1e-6):
        super().__init__()
        self.temporal, self.mapping = temporal, mapping  # k_x and k_f
        self.inducing = PyroParam(inducing, event_dim=2)  # X̃, (M, Q)
        self.noise = PyroParam(noise, constraints.positive)  # 1/β
        self.output_mean, self.jitter = output_mean, jitter

    def forward(self, data):
        q = self.inducing.shape[1]
        x = pyro.sample("x", TemporalGP(self.temporal(), data.times, q))
        likelihood = SparseGP(
            x,
            self.mapping(),
            inducing=self.inducing,
            noise=self.noise,
            mean=self.output_mean,
            data=data,
            jitter=self.jitter,
        )
        return pyro.sample("y", likelihood, obs=data.y, infer={"integrate": "x"})


# %% [markdown]
# ## A series to learn
#
# Since it is an ordinary Pyro model, we can draw from it. We make a series of $D = 20$ outputs that truly has $Q = 2$
# latent dimensions, and keep both. `Sequences(t)` has times and no outputs, so the site `y` is drawn from its prior,
# the exact GP. The last part of the series is put aside, to see how well it can be forecast.

# %%
num_frames, num_ahead, num_outputs = (30, 8, 6) if smoke_test else (150, 16, 20)
t_all = 0.1 * torch.arange(num_frames + num_ahead)

truth = ByHand(
    temporal=RBF(1.0, 0.5),
    mapping=ARDRBF(1.0, torch.tensor([0.15, 0.1])),
    inducing=torch.zeros(1, 2),  # not used when drawing
    noise=torch.tensor(0.05**2),
    output_mean=torch.zeros(num_outputs),
)
draw = Predictive(truth, num_samples=1)(Sequences(t_all))
x_true, y_all = draw["x"][0], draw["y"][0]
print("x", tuple(x_true.shape), " y", tuple(y_all.shape))

t, y = t_all[:num_frames], y_all[:num_frames]
t_ahead, y_ahead = t_all[num_frames:], y_all[num_frames:]
data = Sequences(t, y)
print(data)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
left.plot(t_all, x_true)
left.set(xlabel="time", ylabel="latent path", title="what we shall not see")
right.plot(t, y[:, :6], linewidth=1)
right.set(xlabel="time", ylabel="outputs", title=f"what we see: 6 of {num_outputs} outputs")
plt.show()

# %% [markdown]
# Two smooth curves on the left make all the outputs on the right.
#
# ## The guide: why 2QN numbers are enough
#
# We want an approximate posterior $q(X) = \prod_q \mathcal N(\mathbf x_q; \boldsymbol\mu_q, S_q)$ that keeps the
# correlations over time. A full covariance $S_q$ has $N(N+1)/2$ numbers for each $q$. But the bound that we shall
# maximise (section 2.1 of the paper),
#
# $$ \mathcal F = \hat{\mathcal F}(\boldsymbol\mu, \operatorname{diag} S) - \mathrm{KL}(q(X) \,\|\, p(X)), $$
#
# has a data term that sees only the *marginal* means and variances of each $\mathbf x_n$. Set the derivatives to
# zero. Those of the KL are $\tfrac12 (K_t^{-1} - S_q^{-1})$ in $S_q$ and $K_t^{-1} \boldsymbol\mu_q$ in
# $\boldsymbol\mu_q$, and that of $\hat{\mathcal F}$ in $S_q$ is diagonal. So wherever the optimum is, it has the form
# (Opper and Archambeau 2009; section 2.2 of the paper)
#
# $$ S_q = (K_t^{-1} + \operatorname{diag} \boldsymbol\lambda_q)^{-1}, \qquad
# \boldsymbol\mu_q = K_t \bar{\boldsymbol\mu}_q, \qquad
# \boldsymbol\lambda_q = -2 \frac{\partial \hat{\mathcal F}}{\partial \mathbf s_q},
# \qquad \bar{\boldsymbol\mu}_q = \frac{\partial \hat{\mathcal F}}{\partial \boldsymbol\mu_q}, $$
#
# with $\mathbf s_q$ the diagonal of $S_q$. Nothing is lost by searching among these only, and they have $2QN$
# parameters, $\bar{\boldsymbol\mu}$ and $\boldsymbol\lambda$. That is the distribution `OpperArchambeau`; it is made
# from a prior, since it is the prior times one Gaussian factor for each $x_{nq}$.

# %%
example = TemporalGP(RBF(1.0, 0.8)(), t, latent_dim=1)
sure = (t > 0.3 * t[-1]) & (t < 0.6 * t[-1])
lam = torch.where(sure, 3.0, 0.02).unsqueeze(-1)  # much is known in the middle, little elsewhere
q = OpperArchambeau(example, mean_bar=torch.zeros_like(lam), lam=lam)
K_t, S = example.covariance_matrix[0].detach(), q.covariance_matrix[0].detach()

slowly = torch.linalg.inv(torch.linalg.inv(K_t + 1e-8 * torch.eye(len(t))) + torch.diag(lam[:, 0]))
print(f"largest difference to (K_t⁻¹ + diag λ)⁻¹: {(S - slowly).abs().max():.0e}")

fig, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", width_ratios=(1, 1.1, 1.2))
extent = (t[0].item(), t[-1].item(), t[-1].item(), t[0].item())
axes[0].imshow(K_t.numpy(), vmin=0, vmax=1, extent=extent)
axes[1].plot(t, lam)
image = axes[2].imshow(S.numpy(), vmin=0, vmax=1, extent=extent)
axes[0].set(title="prior covariance $K_t$", xlabel="time", ylabel="time")
axes[1].set(title=r"$\lambda$, $N$ numbers", xlabel="time", ylabel="precision")
axes[2].set(title="posterior covariance $S$", xlabel="time", ylabel="time")
fig.colorbar(image, ax=axes[2])
plt.show()

# %% [markdown]
# Where $\lambda$ is large the posterior is narrow; elsewhere it stays the prior, with all its correlations. The
# library never inverts $K_t$, which is nearly singular for smooth kernels (here it takes some jitter to do so). With
# $R = \operatorname{diag} \boldsymbol\lambda^{1/2}$ and $B = I + R K_t R$, whose eigenvalues are at least 1,
#
# $$ S = K_t - K_t R B^{-1} R K_t, \qquad
# \mathrm{KL} = \tfrac12 \big( \log|B| + \bar{\boldsymbol\mu}^\top \boldsymbol\mu -
# \boldsymbol\lambda^\top \mathbf s \big). $$
#
# The guide is then a few lines. It makes the prior at the *current* hyperparameters and puts $q(X)$ on it. So when
# training changes a lengthscale, $q(X)$ moves along.


# %%
class GuideByHand(PyroModule):
    def __init__(self, model, mean_bar, lam):
        super().__init__()
        self._model = [model]  # in a list, so that its parameters stay its own
        self.mean_bar = PyroParam(mean_bar, event_dim=2)  # (N, Q)
        self.lam = PyroParam(lam, constraints.positive, event_dim=2)  # (N, Q)

    def forward(self, data):
        prior = TemporalGP(self._model[0].temporal(), data.times, self.lam.shape[1])
        return pyro.sample("x", OpperArchambeau(prior, self.mean_bar, self.lam))


# %% [markdown]
# ## The ELBO
#
# What is left is the data term. Given the path, the mapping is a GP regression with inducing variables
# $U = f(\tilde X)$, for which Titsias (2009) has a bound with the best $q(U)$ already in it. Averaging its
# ingredients over $q(X)$ *first*, and taking the best $q(U)$ afterwards, gives a closed form (the paper's section 2.1
# and its appendix). For each output $d$
#
# $$ \hat{\mathcal F}_d = \log \frac{\beta^{N/2}\, |K_{MM}|^{1/2}}{(2\pi)^{N/2}\, |\beta \Psi_2 + K_{MM}|^{1/2}} -
# \tfrac12 \mathbf y_d^\top W \mathbf y_d - \tfrac\beta2 \psi_0 +
# \tfrac\beta2 \operatorname{tr}(K_{MM}^{-1} \Psi_2), $$
#
# $$ W = \beta I - \beta^2 \Psi_1 (\beta \Psi_2 + K_{MM})^{-1} \Psi_1^\top, $$
#
# in which $q(X)$ enters through three averages of the mapping kernel only,
#
# $$ \psi_0 = \langle \operatorname{tr} K_{NN} \rangle, \qquad \Psi_1 = \langle K_{NM} \rangle, \qquad
# \Psi_2 = \langle K_{MN} K_{NM} \rangle. $$
#
# For the squared exponential kernel they are known in closed form, and the kernel's value has them as methods. Here
# is the bound as the paper writes it, with determinants and inverses:


# %%
def data_term(q, kernel, inducing, noise, y, jitter=1e-6):
    """The sum over d of the paper's F̂_d."""
    (n, d), beta = y.shape, 1 / noise
    psi0 = kernel.psi0(q.mean, q.variance, None)[0]
    psi1 = kernel.psi1(q.mean, q.variance, inducing)  # (N, M)
    psi2 = kernel.psi2(q.mean, q.variance, inducing, None)[0]  # (M, M)
    k_mm = kernel.inducing_cov(inducing) + jitter * torch.eye(len(inducing))
    inside = beta * psi2 + k_mm
    w = beta * torch.eye(n) - beta**2 * psi1 @ torch.linalg.inv(inside) @ psi1.T
    logs = 0.5 * n * torch.log(beta / (2 * math.pi)) + 0.5 * torch.logdet(k_mm) - 0.5 * torch.logdet(inside)
    slack = 0.5 * beta * (psi0 - torch.trace(torch.linalg.inv(k_mm) @ psi2))
    return d * (logs - slack) - 0.5 * torch.trace(y.T @ w @ y)


def kl_term(q):
    """KL(q(X), p(X)), summed over latent dimensions, with inverses as well."""
    total = 0.0
    for k, s, mu in zip(q.prior.covariance_matrix, q.covariance_matrix, q.mean.T, strict=True):
        k_inverse = torch.linalg.inv(k)
        total += 0.5 * (torch.logdet(k) - torch.logdet(s) + torch.trace(k_inverse @ s) + mu @ k_inverse @ mu - len(mu))
    return total


# %% [markdown]
# ### As a Pyro loss
#
# `TraceMeanField_ELBO` is nearly what we want. It runs the guide and the model, takes the analytic KL for each latent
# site (the library registers the one of `OpperArchambeau` and `TemporalGP`), and adds the observed sites'
# log-densities *at a sample of* $X$. Only this last is to be replaced. `SparseGP` has a method `integrate(q)`, which
# returns the same distribution with $X$ integrated over $q$; its `log_prob` is $\hat{\mathcal F}$. So while the ELBO
# traces model and guide, a short messenger remembers what the guide put at each site, and swaps the distribution of
# observed sites that are marked:


# %%
class Integrate(Messenger):
    def __init__(self):
        super().__init__()
        self.posteriors = {}

    def _pyro_post_sample(self, msg):
        if not msg["is_observed"]:  # the guide runs first, so the first distribution of a name is the guide's
            self.posteriors.setdefault(msg["name"], msg["fn"])

    def _pyro_sample(self, msg):
        if msg["is_observed"] and msg["infer"].get("integrate") in self.posteriors:
            msg["fn"] = msg["fn"].integrate(self.posteriors[msg["infer"]["integrate"]])


class ELBOByHand(TraceMeanField_ELBO):
    def _get_trace(self, model, guide, args, kwargs):
        with Integrate():
            return super()._get_trace(model, guide, args, kwargs)


# %% [markdown]
# No other part of Pyro knows of this. Under `Trace_ELBO`, NUTS or `Predictive` the mark is ignored and the model is
# an ordinary one, with `x` sampled and `y` given `x`.
#
# ## The same with the library
#
# `VGPDS.from_data` makes a model with a good start: principal components for the path, their k-means centres for
# $\tilde X$, scales from the data. We give it $Q = 6$ latent dimensions, more than there are, and it is to find out.
# The white noise in $k_x$ lets frames leave the smooth path a little, and the bias lets the path have a mean. The
# variance of the RBF is held at 1, as it could be traded for the weights $w_q$.

# %%
latent_dim, num_inducing = (3, 10) if smoke_test else (6, 30)


def make():
    pyro.clear_param_store()
    pyro.set_rng_seed(1)  # the same k-means centres each time
    temporal = RBF().fix("variance") + White(1e-3) + Bias(0.1)
    model = VGPDS.from_data(data, latent_dim, num_inducing, temporal, jitter=1e-6)
    return model, AutoOpperArchambeau(model)


model, guide = make()
print(model)

# %% [markdown]
# We build the hand-made model and guide from the same numbers, and compare four losses.

# %%
by_hand = ByHand(
    copy.deepcopy(model.temporal),
    copy.deepcopy(model.mapping),
    model.inducing.detach().clone(),
    model.noise.detach().clone(),
    model.output_mean,
)
guide_by_hand = GuideByHand(by_hand, guide.mean_bar.detach().clone(), guide.lam.detach().clone())
q = guide.posterior(data)

with torch.no_grad():
    centred = y - model.output_mean
    formula = data_term(q, model.mapping(), model.inducing, model.noise, centred) - kl_term(q)
losses = {"the formula, with inverses": -formula.item()}
losses["VGPDS, AutoOpperArchambeau, Collapsed_ELBO"] = Collapsed_ELBO().loss(model, guide, data)
losses["library's model and guide, ELBO by hand"] = ELBOByHand().loss(model, guide, data)
pyro.clear_param_store()  # the two models use the same parameter names
losses["model, guide and ELBO by hand"] = ELBOByHand().loss(by_hand, guide_by_hand, data)
for name, loss in losses.items():
    print(f"{loss:18.8f}  {name}")
reference = losses["VGPDS, AutoOpperArchambeau, Collapsed_ELBO"]
assert all(math.isclose(loss, reference, rel_tol=1e-6) for loss in losses.values())

# %% [markdown]
# They agree, and they are deterministic: no sample of $X$ enters. The library's `Collapsed_ELBO` does not even draw
# one, its messenger puts the mean of $q(X)$ in its place.
#
# ## Training: natural gradients against Adam
#
# The Pyro way is `SVI` with Adam over everything. But the derivatives of one backward pass also give the fixed point
# of the stationary conditions above, and going there, damped, in the parameters
# $\boldsymbol\eta = S^{-1} \boldsymbol\mu$ and $\boldsymbol\lambda$ is a *natural gradient* step of length $\rho$:
#
# $$ \boldsymbol\lambda \leftarrow (1-\rho) \boldsymbol\lambda + \rho \boldsymbol\lambda^*, \qquad
# \boldsymbol\eta \leftarrow (1-\rho) \boldsymbol\eta +
# \rho \Big( \frac{\partial \hat{\mathcal F}}{\partial \boldsymbol\mu} +
# \boldsymbol\lambda^* \circ \boldsymbol\mu \Big), \qquad
# \boldsymbol\lambda^* = -2 \frac{\partial \hat{\mathcal F}}{\partial \mathbf s}. $$
#
# `NaturalGradient` takes $q(X)$ out of the optimiser's hands and does that, at no cost beyond the step of Adam that
# the hyperparameters get anyway.

# %%
num_steps = 5 if smoke_test else 400


def train(learning_rate, natural_rate=None):
    model, guide = make()
    svi = SVI(model, guide, Adam({"lr": learning_rate}), Collapsed_ELBO())
    if natural_rate is None:
        return [-svi.step(data) for _ in range(num_steps)]
    bounds = []
    with NaturalGradient(guide, data) as natural:
        for _ in range(num_steps):
            bounds.append(-svi.step(data))
            natural.step(natural_rate)
    return bounds


curves = {f"Adam, rate {rate}": train(rate) for rate in (0.01, 0.03, 0.1)}
curves |= {f"natural, Adam at {rate} for the rest": train(rate, natural_rate=0.5) for rate in (0.01, 0.03, 0.1)}

# %%
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for i, (name, bounds) in enumerate(curves.items()):
    ax.plot(bounds, color=f"C{i % 3}", linestyle=":" if name.startswith("Adam") else "-", label=name)
    print(f"{bounds[-1]:9.1f} nats at the end: {name}")
best = max(max(bounds) for bounds in curves.values())
low = min(bounds[num_steps // 20] for bounds in curves.values())
ax.set(xlabel="evaluations of the bound", ylabel="bound (nats)", ylim=(low, best + 0.05 * (best - low)))
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Solid lines are natural steps, dotted ones Adam alone, colours the learning rate. All runs of a colour share the
# start and everything but the way $q(X)$ moves. `fit` is this loop with what a careful user would add: steps that go
# wrong are undone and damped, the noise is held for some steps, and training ends when the bound stands still.

# %%
model, guide = make()
before = model.relevance(guide, data)
result = fit(model, guide, data, num_steps=5 if smoke_test else 600, progress=False)
print(f"bound {result.bound:.1f} after {result.num_steps} steps, stopped: {result.stopped}")
print(f"noise: {model.noise.item() ** 0.5:.3f} (standard deviation; the truth is 0.05)")
print(f"lengthscale of the path: {model.temporal[0].lengthscale.item():.2f} (the truth is 0.5)")

# %% [markdown]
# ## How many dimensions?
#
# `model.relevance` is the weight $w_q$ of a dimension times the variance of the path along it: the weight alone means
# little, since a dimension can be stretched and its weight shrunk. Grey bars are the start, at the principal
# components.

# %%
after = model.relevance(guide, data)
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
plot_relevance(after, before, ax=ax)
plt.show()

# %% [markdown]
# The bound has switched off what is not needed. No penalty and no threshold is behind this, it is what integrating
# over $X$ does: a dimension that is not needed costs KL where it deviates from the prior, so it is left at the prior
# and its weight goes to zero.
#
# It is not sure to work. Training starts at the principal components, and a surface that is bent more takes more of
# them to hold: with weights of 0.8 and 0.4 in the truth above, some draws end with three or four dimensions.
#
# Is it the path that we drew? The latent space has no preferred axes, so we ask how well the true coordinates are
# *linear* functions of the learned ones.

# %%
posterior = Posterior(model, guide, data)
active = after.active.nonzero().flatten()
x_seen = x_true[:num_frames]
design = torch.cat([posterior.q.mean[:, active], torch.ones(num_frames, 1)], 1)
aligned = design @ torch.linalg.lstsq(design, x_seen).solution
r2 = 1 - (x_seen - aligned).square().sum(0) / (x_seen - x_seen.mean(0)).square().sum(0)
print("R² of the two true dimensions:", [f"{v:.3f}" for v in r2])

fig, axes = plt.subplot_mosaic([["first", "path"], ["second", "path"]], figsize=(10, 3.6), layout="constrained")
leading = after.value.argsort(descending=True)[:2]
plot_latent(posterior, leading, [axes["first"], axes["second"]])
axes["first"].set(title="learned, with ± 2 standard deviations")
ax = axes["path"]
ax.plot(t, x_seen, "k", linewidth=4, alpha=0.25, label=["truth", None])
ax.plot(t, aligned, linewidth=1.2, label=["learned, turned to fit", None])
ax.set(xlabel="time", ylabel="latent path")
ax.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
plt.show()

# %% [markdown]
# On the left the two leading dimensions as they were learned; their uncertainty is too small to be seen, since twenty
# outputs with little noise leave no doubt. On the right the same path, after a linear map, lies on the true one.

# %% [markdown]
# ## The stationary conditions
#
# At an optimum, $\boldsymbol\lambda$ is $-2\, \partial \hat{\mathcal F} / \partial \mathbf s$ and
# $\bar{\boldsymbol\mu}$ is $\partial \hat{\mathcal F} / \partial \boldsymbol\mu$. With the hyperparameters held where
# training left them, we let $q(X)$ settle by natural steps alone. Then we put the derivatives, which each backward
# pass leaves with `NaturalGradient`, beside the parameters of the guide. (The formula with inverses would not do
# here: its derivatives lose most of their digits, where those of the library's Cholesky factors keep them.)

# %%
elbo = Collapsed_ELBO()
with NaturalGradient(guide, data) as natural:
    for _ in range(3 if smoke_test else 100):
        elbo.loss_and_grads(model, guide, data)  # no optimiser: only q(X) moves
        natural.step(0.7)
    elbo.loss_and_grads(model, guide, data)
    d_mean, d_variance = natural.derivatives()

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for dim in leading.tolist():
    left.plot(guide.lam[:, dim].detach(), -2 * d_variance[:, dim], ".", label=f"dimension {dim}")
    right.plot(guide.mean_bar[:, dim].detach(), d_mean[:, dim], ".")
for ax in (left, right):
    ax.plot(ax.get_xlim(), ax.get_xlim(), color="0.7", zorder=0)
left.set(xlabel=r"$\lambda$ of the guide", ylabel=r"$-2\, \partial \hat F / \partial s$")
right.set(xlabel=r"$\bar\mu$ of the guide", ylabel=r"$\partial \hat F / \partial \mu$")
left.legend(frameon=False)
plt.show()

# %% [markdown]
# Each dot is one frame, and they lie on the line. A guide with full covariances could not settle at any other form.
#
# ## Forecasting
#
# A forecast needs the new times only. The path goes on as in GP regression (the paper's section 3.1),
#
# $$ \boldsymbol\mu_* = K_{*N} \bar{\boldsymbol\mu}, \qquad
# \Sigma_* = K_{**} - K_{*N} (K_t + \Lambda^{-1})^{-1} K_{N*}, $$
#
# and the moments of the outputs follow from $\Psi$ statistics at the new points. `Posterior` does this, in units of
# the data.

# %%
ahead = posterior.forecast(t_ahead)
fig, axes = plt.subplots(2, 1, figsize=(8, 5.5), sharex=True, layout="constrained")
for ax, output in zip(axes, (0, 3), strict=True):
    plot_forecast(ahead, output, ax, history=(t, y), truth=(t_ahead, y_ahead))
axes[0].set_xlabel("")
plt.show()

# %% [markdown]
# The fan opens as fast as the path forgets. Soon after the end the forecast is sharp; about two lengthscales later it
# is what the model knows of any frame, a broad average over the whole latent space. Two simple forecasts stand beside
# it: the last value, and one GP over time for each output on its own.

# %%
lower, upper = ahead.interval(0.95)
hidden = torch.cat([y, torch.full_like(y_ahead, math.nan)])
others = {
    "last value": last_value(t_all, hidden)[num_frames:],
    "a GP for each output": gp_interpolation(t_all, hidden, RBF)[num_frames:],
}
near = slice(0, num_ahead // 4)
print("root mean squared error          first quarter   all of it")
for name, value in {"VGPDS": ahead.mean, **others}.items():
    errors = [mse(y_ahead[rows], value[rows]) ** 0.5 for rows in (near, slice(None))]
    print(f"{name:32s} {errors[0]:13.3f} {errors[1]:11.3f}")
print(f"within the band of 95 %: {100 * coverage(y_ahead, lower, upper):.0f} %")

# %% [markdown]
# This is one short piece of one series: it shows what to look at, not which method is best.
#
# ## Summary
#
# - A VGPDS is an ordinary Pyro model with two sites: `x` from a `TemporalGP` and `y` from a `SparseGP`.
# - The best Gaussian $q(X)$ has $2QN$ parameters, since the data term sees only marginal means and variances; that is
#   `OpperArchambeau`, and `AutoOpperArchambeau` is the guide that uses it.
# - `Collapsed_ELBO` is `TraceMeanField_ELBO` with one distribution swapped while it traces. The loss draws no sample.
# - Natural gradients for $q(X)$ come for free with each backward pass, and needed far fewer steps than Adam here.
# - The weights of the mapping switch off latent dimensions that are not needed.
# - `Posterior` forecasts, with uncertainty, from the times alone.
#
# ## What next
#
# - [Motion capture](motion_capture.ipynb): many sequences, and a body that is partly hidden.
# - [Video](video.ipynb): thousands of pixels as outputs.
# - [Your own priors and guides](priors_and_guides.ipynb): change the parts that were written out here.
# - [Messy data](messy_data.ipynb): gaps, uneven times and files.
# - [The original's eight scenarios](eight_scenarios.ipynb): which kernels for which series.
