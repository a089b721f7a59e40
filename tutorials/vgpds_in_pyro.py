# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # VGPDS in Pyro
#
# A *variational Gaussian process dynamical system* (Damianou, Titsias and Lawrence 2011) is a model of high-dimensional
# time series that follow a low-dimensional path: the joint angles of a walking person, the pixels of a video, the
# sensors of a robot. It has two layers of Gaussian processes (GPs) and integrates over both. So its predictions have
# uncertainty, and it learns how many latent dimensions it needs.
#
# In this tutorial we write the model, the guide and the ELBO ourselves, from parts of `pyro_vgpds`, next to the paper's
# equations. Then we check that the library's `VGPDS`, `AutoOpperArchambeau` and `Collapsed_ELBO` give the same loss. We
# train them, look at the result and make a forecast. You should know Pyro's `sample`, `SVI` and guides; some knowledge
# of GPs helps.
#
# #### Contents
#
# - [The model](#The-model)
# - [Synthetic data](#Synthetic-data)
# - [The guide: why 2QN parameters are enough](#The-guide:-why-2QN-parameters-are-enough)
# - [The ELBO](#The-ELBO)
# - [The same with the library](#The-same-with-the-library)
# - [Training: natural gradients and Adam](#Training:-natural-gradients-and-Adam)
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
from pyro.infer.inspect import get_model_relations
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
torch.set_num_threads(1)  # several times faster than the default for small problems
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## The model
#
# There are $N$ frames $\mathbf y_n \in \mathbb R^D$ at times $t_n$. Each output is a function of a latent path $\mathbf
# x(t) \in \mathbb R^Q$, with $Q \ll D$, plus noise (the paper's section 2):
#
# $$ y_{nd} = f_d(\mathbf x_n) + \epsilon_{nd}, \qquad \epsilon_{nd} \sim \mathcal N(0, \beta^{-1}), $$
#
# $$ x_q(t) \sim \mathcal{GP}(0, k_x(t, t')), \qquad f_d(\mathbf x) \sim \mathcal{GP}(0, k_f(\mathbf x, \mathbf x')). $$
#
# The *temporal* kernel $k_x$ determines how the path moves: smooth, rough, periodic. The *mapping* kernel $k_f$
# determines how the outputs depend on the path. The paper uses a squared exponential with one weight $w_q$ per latent
# dimension,
#
# $$ k_f(\mathbf x, \mathbf x') = \sigma^2 \exp\Big(-\tfrac12 \sum_q w_q (x_q - x'_q)^2\Big), $$
#
# so that $w_q \to 0$ switches dimension $q$ off.
#
# At the frames, the path is Gaussian, $p(\mathbf x_q) = \mathcal N(0, K_t)$ with $K_t = k_x(\mathbf t, \mathbf t)$.
# This is `TemporalGP`, a Pyro distribution with event shape $(N, Q)$. Given the path, the outputs follow a sparse GP
# with $M$ inducing inputs $\tilde X$. This is `SparseGP`, with event shape $(N, D)$. So the model has two sample sites.
#
# In this library a kernel is a module that owns parameters. *Calling* it returns a kernel value, which has the algebra.
# `Sequences` holds times and outputs, here of one sequence. The mark `infer={"integrate": "x"}` has no effect on its
# own; the ELBO will use it.


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
# ## Synthetic data
#
# The model is an ordinary Pyro model, so we can sample from it. We make a series of $D = 20$ outputs with $Q = 2$ true
# latent dimensions, and keep both. `Sequences(t)` has times and no outputs, so the site `y` is sampled from its prior,
# the exact GP. We hold out the last part of the series to evaluate the forecast.

# %%
num_frames, num_ahead, num_outputs = (30, 8, 6) if smoke_test else (150, 16, 20)
t_all = 0.1 * torch.arange(num_frames + num_ahead)

truth = ByHand(
    temporal=RBF(1.0, 0.5),
    mapping=ARDRBF(1.0, torch.tensor([0.15, 0.1])),
    inducing=torch.zeros(1, 2),  # not used for sampling
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
left.set(xlabel="time", ylabel="latent path", title="true latent path (hidden)")
right.plot(t, y[:, :6], linewidth=1)
right.set(xlabel="time", ylabel="outputs", title=f"observed: 6 of {num_outputs} outputs")
plt.show()

# %% [markdown]
# The two smooth curves on the left determine all the outputs on the right, except for the noise.
#
# ## The guide: why 2QN parameters are enough
#
# We want an approximate posterior $q(X) = \prod_q \mathcal N(\mathbf x_q; \boldsymbol\mu_q, S_q)$ that keeps the
# correlations over time. A full covariance $S_q$ has $N(N+1)/2$ parameters for each $q$. The bound that we will
# maximise (section 2.1 of the paper) is
#
# $$ \mathcal F = \hat{\mathcal F}(\boldsymbol\mu, \operatorname{diag} S) - \mathrm{KL}(q(X) \,\|\, p(X)). $$
#
# Its data term depends only on the *marginal* means and variances of each $\mathbf x_n$. Set the derivatives to zero.
# The derivatives of the KL are $\tfrac12 (K_t^{-1} - S_q^{-1})$ with respect to $S_q$ and $K_t^{-1} \boldsymbol\mu_q$
# with respect to $\boldsymbol\mu_q$. The derivative of $\hat{\mathcal F}$ with respect to $S_q$ is diagonal. So every
# optimum has the form (Opper and Archambeau 2009; section 2.2 of the paper)
#
# $$ S_q = (K_t^{-1} + \operatorname{diag} \boldsymbol\lambda_q)^{-1}, \qquad
# \boldsymbol\mu_q = K_t \bar{\boldsymbol\mu}_q, \qquad
# \boldsymbol\lambda_q = -2 \frac{\partial \hat{\mathcal F}}{\partial \mathbf s_q},
# \qquad \bar{\boldsymbol\mu}_q = \frac{\partial \hat{\mathcal F}}{\partial \boldsymbol\mu_q}, $$
#
# with $\mathbf s_q$ the diagonal of $S_q$. Nothing is lost if we search only among these distributions. They have $2QN$
# parameters, $\bar{\boldsymbol\mu}$ and $\boldsymbol\lambda$. This is the distribution `OpperArchambeau`. It is
# constructed from a prior, because it is the prior times one Gaussian factor for each $x_{nq}$.

# %%
example = TemporalGP(RBF(1.0, 0.8)(), t, latent_dim=1)
sure = (t > 0.3 * t[-1]) & (t < 0.6 * t[-1])
lam = torch.where(sure, 3.0, 0.02).unsqueeze(-1)  # high precision in the middle, low elsewhere
q = OpperArchambeau(example, mean_bar=torch.zeros_like(lam), lam=lam)
K_t, S = example.covariance_matrix[0].detach(), q.covariance_matrix[0].detach()

slowly = torch.linalg.inv(torch.linalg.inv(K_t + 1e-8 * torch.eye(len(t))) + torch.diag(lam[:, 0]))
print(f"largest difference from (K_t⁻¹ + diag λ)⁻¹: {(S - slowly).abs().max():.0e}")

fig, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", width_ratios=(1, 1.1, 1.2))
extent = (t[0].item(), t[-1].item(), t[-1].item(), t[0].item())
axes[0].imshow(K_t.numpy(), vmin=0, vmax=1, extent=extent)
axes[1].plot(t, lam)
image = axes[2].imshow(S.numpy(), vmin=0, vmax=1, extent=extent)
axes[0].set(title="prior covariance $K_t$", xlabel="time", ylabel="time")
axes[1].set(title=r"$\lambda$, $N$ parameters", xlabel="time", ylabel="precision")
axes[2].set(title="posterior covariance $S$", xlabel="time", ylabel="time")
fig.colorbar(image, ax=axes[2])
plt.show()

# %% [markdown]
# In the region with large $\lambda$ the posterior is narrow. Elsewhere it is close to the prior, with its correlations.
# The library never inverts $K_t$, which is nearly singular for smooth kernels (the inversion above needs some jitter).
# With $R = \operatorname{diag} \boldsymbol\lambda^{1/2}$ and $B = I + R K_t R$, whose eigenvalues are at least 1,
#
# $$ S = K_t - K_t R B^{-1} R K_t, \qquad
# \mathrm{KL} = \tfrac12 \big( \log|B| + \bar{\boldsymbol\mu}^\top \boldsymbol\mu -
# \boldsymbol\lambda^\top \mathbf s \big). $$
#
# The guide is then a few lines. It computes the prior at the *current* hyperparameters and constructs $q(X)$ from it.
# So when training changes a lengthscale, $q(X)$ changes with it.


# %%
class GuideByHand(PyroModule):
    def __init__(self, model, mean_bar, lam):
        super().__init__()
        self._model = [model]  # in a list, so that its parameters are not registered here
        self.mean_bar = PyroParam(mean_bar, event_dim=2)  # (N, Q)
        self.lam = PyroParam(lam, constraints.positive, event_dim=2)  # (N, Q)

    def forward(self, data):
        prior = TemporalGP(self._model[0].temporal(), data.times, self.lam.shape[1])
        return pyro.sample("x", OpperArchambeau(prior, self.mean_bar, self.lam))


# %% [markdown]
# ## The ELBO
#
# The remaining part is the data term. Given the path, the mapping is a GP regression with inducing variables $U =
# f(\tilde X)$, for which Titsias (2009) derived a bound that contains the optimal $q(U)$. We first average the terms of
# this bound over $q(X)$, and then insert the optimal $q(U)$. This gives a closed form (the paper's section 2.1 and its
# appendix). For each output $d$
#
# $$ \hat{\mathcal F}_d = \log \frac{\beta^{N/2}\, |K_{MM}|^{1/2}}{(2\pi)^{N/2}\, |\beta \Psi_2 + K_{MM}|^{1/2}} -
# \tfrac12 \mathbf y_d^\top W \mathbf y_d - \tfrac\beta2 \psi_0 +
# \tfrac\beta2 \operatorname{tr}(K_{MM}^{-1} \Psi_2), $$
#
# $$ W = \beta I - \beta^2 \Psi_1 (\beta \Psi_2 + K_{MM})^{-1} \Psi_1^\top, $$
#
# where $q(X)$ enters only through three expectations of the mapping kernel,
#
# $$ \psi_0 = \langle \operatorname{tr} K_{NN} \rangle, \qquad \Psi_1 = \langle K_{NM} \rangle, \qquad
# \Psi_2 = \langle K_{MN} K_{NM} \rangle. $$
#
# For the squared exponential kernel they have closed forms, which are methods of the kernel value. Here is the bound as
# the paper writes it, with determinants and inverses. `solve(A, B)` computes $A^{-1} B$ with smaller rounding errors:


# %%
def data_term(q, kernel, inducing, noise, y, jitter=1e-6):
    """The sum over d of the paper's F̂_d."""
    (n, d), beta = y.shape, 1 / noise
    psi0 = kernel.psi0(q.mean, q.variance, None)[0]
    psi1 = kernel.psi1(q.mean, q.variance, inducing)  # (N, M)
    psi2 = kernel.psi2(q.mean, q.variance, inducing, None)[0]  # (M, M)
    k_mm = kernel.inducing_cov(inducing) + jitter * torch.eye(len(inducing))
    inside = beta * psi2 + k_mm
    w = beta * torch.eye(n) - beta**2 * psi1 @ torch.linalg.solve(inside, psi1.T)
    logs = 0.5 * n * torch.log(beta / (2 * math.pi)) + 0.5 * torch.logdet(k_mm) - 0.5 * torch.logdet(inside)
    slack = 0.5 * beta * (psi0 - torch.trace(torch.linalg.solve(k_mm, psi2)))
    return d * (logs - slack) - 0.5 * torch.trace(y.T @ w @ y)


def kl_term(q):
    """KL(q(X), p(X)), summed over latent dimensions, also with inverses."""
    total = 0.0
    for k, s, mu in zip(q.prior.covariance_matrix, q.covariance_matrix, q.mean.T, strict=True):
        k_inverse = torch.linalg.inv(k)
        total += 0.5 * (torch.logdet(k) - torch.logdet(s) + torch.trace(k_inverse @ s) + mu @ k_inverse @ mu - len(mu))
    return total


# %% [markdown]
# ### As a Pyro loss
#
# `TraceMeanField_ELBO` is nearly what we need. It runs the guide and the model, uses the analytic KL for each latent
# site (the library registers the KL of `OpperArchambeau` and `TemporalGP`), and adds the log-densities of the observed
# sites *at a sample of* $X$. Only this last part has to be replaced. `SparseGP` has a method `integrate(q)`, which
# returns the same distribution with $X$ integrated over $q$; its `log_prob` is $\hat{\mathcal F}$. While the ELBO
# traces model and guide, a short messenger remembers the guide's distribution at each site, and replaces the
# distribution of observed sites that have the mark:


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
# The rest of Pyro is unchanged. With `Trace_ELBO`, NUTS or `Predictive` the mark is ignored and the model is an
# ordinary one: `x` is sampled, and `y` is scored given `x`.
#
# ## The same with the library
#
# `VGPDS.from_data` makes a model with good initial values: principal components for the path, their k-means centres for
# $\tilde X$, and scales from the data. We use $Q = 6$ latent dimensions, more than the true number, to see whether
# training finds the right number. The white noise in $k_x$ lets frames deviate slightly from the smooth path, and the
# bias lets the path have a mean. The variance of the RBF is fixed at 1, because it is redundant with the weights $w_q$.

# %%
latent_dim, num_inducing = (3, 10) if smoke_test else (6, 30)


def make():
    pyro.clear_param_store()
    pyro.set_rng_seed(1)  # the same k-means centres each time
    temporal = RBF().fix("variance") + White(1e-3) + Bias(0.1)
    paper = {"noise_per_output": False, "scale_outputs": False}  # one noise for all, as in the formula
    model = VGPDS.from_data(data, latent_dim, num_inducing, temporal, jitter=1e-6, **paper)
    return model, AutoOpperArchambeau(model)


model, guide = make()
print(model)

# %% [markdown]
# We construct the hand-written model and guide from the same values, and compare four losses.

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
losses = {"the formula with inverses": -formula.item()}
losses["VGPDS, AutoOpperArchambeau, Collapsed_ELBO"] = Collapsed_ELBO().loss(model, guide, data)
losses["library's model and guide, ELBO by hand"] = ELBOByHand().loss(model, guide, data)
pyro.clear_param_store()  # the two models use the same parameter names
losses["model, guide and ELBO by hand"] = ELBOByHand().loss(by_hand, guide_by_hand, data)
for name, loss in losses.items():
    print(f"{loss:18.8f}  {name}")
reference = losses["VGPDS, AutoOpperArchambeau, Collapsed_ELBO"]
assert all(math.isclose(loss, reference, rel_tol=1e-6) for loss in losses.values())

# %% [markdown]
# They agree, and they are deterministic: no sample of $X$ is used. The library's `Collapsed_ELBO` does not even draw a
# sample; its messenger uses the mean of $q(X)$ instead.
#
# Pyro reads the graph of a model from a run of it. `get_model_relations` shows which site depends on which sites and
# parameters, and the constraints of the parameters. If the program `dot` and the extra `graph` of this library are
# installed, `pyro.render_model(model, (data,), render_params=True, render_distributions=True)` draws the graph. Here we
# draw it with matplotlib, which needs neither.

# %%
pyro.clear_param_store()
relations = get_model_relations(model, (data,))
parents = {site: relations["sample_param"][site] for site in ("x", "y")}

fig, ax = plt.subplots(figsize=(10, 3.2), layout="constrained")
arrow = {"arrowstyle": "-|>", "color": "k", "shrinkA": 4, "shrinkB": 16}
for (site, names), across in zip(parents.items(), (0.0, 1.2), strict=True):
    observed = site in relations["observed"]
    circle = {"boxstyle": "circle,pad=0.5", "facecolor": "0.8" if observed else "white"}
    ax.text(across, 0, site, ha="center", va="center", bbox=circle, zorder=2)
    ax.text(across + 0.06, -0.25, relations["sample_dist"][site], va="center", color="0.4")
    for i, name in enumerate(names):
        place = across + (i - (len(names) - 1) / 2) * 0.29, 1.0
        label = f"{name.replace('.', '.' + chr(10), 1)}\n{relations['param_constraint'][name].split('(')[0]}"
        ax.text(*place, label, ha="center", va="bottom", fontsize="small")
        ax.annotate("", (across, 0), place, arrowprops=arrow)
ax.annotate("", (1.2, 0), (0, 0), arrowprops=arrow | {"shrinkA": 16})
ax.set(xlim=(-0.5, 1.75), ylim=(-0.5, 1.6))
ax.axis("off")
plt.show()

# %% [markdown]
# The latent path depends on the parameters of the temporal kernel; those with the constraint `GreaterThan` are
# positive. The outputs, observed and therefore grey, depend on the path, the mapping kernel, the inducing inputs and
# the noise. The variance of the RBF is fixed, so it is no parameter.
#
# ## Training: natural gradients and Adam
#
# The usual Pyro training is `SVI` with Adam over all parameters. But the derivatives of one backward pass also give the
# fixed point of the stationary conditions above. A damped step towards it in the parameters $\boldsymbol\eta = S^{-1}
# \boldsymbol\mu$ and $\boldsymbol\lambda$ is a *natural gradient* step of length $\rho$:
#
# $$ \boldsymbol\lambda \leftarrow (1-\rho) \boldsymbol\lambda + \rho \boldsymbol\lambda^*, \qquad
# \boldsymbol\eta \leftarrow (1-\rho) \boldsymbol\eta +
# \rho \Big( \frac{\partial \hat{\mathcal F}}{\partial \boldsymbol\mu} +
# \boldsymbol\lambda^* \circ \boldsymbol\mu \Big), \qquad
# \boldsymbol\lambda^* = -2 \frac{\partial \hat{\mathcal F}}{\partial \mathbf s}. $$
#
# `NaturalGradient` removes the parameters of $q(X)$ from the optimiser and takes these steps. They need no evaluations
# of the bound beyond those for Adam's steps in the hyperparameters.

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
curves |= {f"natural gradients and Adam, rate {rate}": train(rate, natural_rate=0.5) for rate in (0.01, 0.03, 0.1)}

# %%
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for i, (name, bounds) in enumerate(curves.items()):
    ax.plot(bounds, color=f"C{i % 3}", linestyle=":" if name.startswith("Adam") else "-", label=name)
    print(f"{bounds[-1]:9.1f} nats after training: {name}")
best = max(max(bounds) for bounds in curves.values())
low = min(bounds[num_steps // 20] for bounds in curves.values())
ax.set(xlabel="evaluations of the bound", ylabel="bound (nats)", ylim=(low, best + 0.05 * (best - low)))
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Solid lines are natural gradient steps, dotted lines are Adam only, and colours show the learning rate. All runs of a
# colour have the same initial values and differ only in how $q(X)$ is updated. `fit` is this loop with additional
# safeguards: failed steps are undone and damped, the noise is fixed for the first steps, and training stops when the
# bound no longer changes.

# %%
model, guide = make()
before = model.relevance(guide, data)
result = fit(model, guide, data, num_steps=5 if smoke_test else 600, progress=False)
print(f"bound {result.bound:.1f} after {result.num_steps} steps, stopped: {result.stopped}")
print(f"noise: {model.noise.item() ** 0.5:.3f} (standard deviation; true value: 0.05)")
lengthscale = model.temporal[0].lengthscale[model.relevance().value.argmax()]  # of the most relevant dimension
print(f"lengthscale of the path: {lengthscale:.2f} (true value: 0.5)")

# %% [markdown]
# ## How many dimensions?
#
# `model.relevance` is the weight $w_q$ of a dimension times the variance of the path along it. The weight alone has no
# meaning, because a dimension can be stretched while its weight shrinks. Grey bars are the initial values, from the
# principal components.

# %%
after = model.relevance(guide, data)
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
plot_relevance(after, before, ax=ax)
plt.show()

# %% [markdown]
# The bound has switched off the dimensions that are not needed. There is no penalty and no threshold behind this. It
# follows from integrating over $X$: a dimension that is not needed increases the KL if it deviates from the prior, so
# it stays at the prior and its weight goes to zero.
#
# This is not guaranteed. Training starts at the principal components, and a more strongly curved surface needs more of
# them: with true weights of 0.8 and 0.4 instead of those above, some samples end with three or four dimensions.
#
# Is this the true path? The latent space has no preferred axes, so we compute how well the true coordinates are
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
axes["first"].set(title="learned, ± 2 standard deviations")
ax = axes["path"]
ax.plot(t, x_seen, "k", linewidth=4, alpha=0.25, label=["truth", None])
ax.plot(t, aligned, linewidth=1.2, label=["learned, after a linear map", None])
ax.set(xlabel="time", ylabel="latent path")
ax.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
plt.show()

# %% [markdown]
# Left: the two leading dimensions as they were learned. Their uncertainty is too small to be visible, because twenty
# outputs with little noise determine the path well. Right: the same path, after a linear map, agrees with the true one.

# %% [markdown]
# ## The stationary conditions
#
# At an optimum, $\boldsymbol\lambda$ is $-2\, \partial \hat{\mathcal F} / \partial \mathbf s$ and
# $\bar{\boldsymbol\mu}$ is $\partial \hat{\mathcal F} / \partial \boldsymbol\mu$. We fix the hyperparameters at their
# trained values and let $q(X)$ converge by natural gradient steps. Then we compare the derivatives, which
# `NaturalGradient` keeps from each backward pass, with the parameters of the guide. (The formula with inverses cannot
# be used here: its derivatives lose most of their digits, while those of the library's Cholesky factors keep them.)

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
# Each dot is one frame. The dots lie on the line. A guide with full covariances would converge to the same form.
#
# ## Forecasting
#
# A forecast needs only the new times. The path is predicted as in GP regression (the paper's section 3.1),
#
# $$ \boldsymbol\mu_* = K_{*N} \bar{\boldsymbol\mu}, \qquad
# \Sigma_* = K_{**} - K_{*N} (K_t + \Lambda^{-1})^{-1} K_{N*}, $$
#
# and the moments of the outputs follow from $\Psi$ statistics at the new points. `Posterior` does this, in the units of
# the data.

# %%
ahead = posterior.forecast(t_ahead)
fig, axes = plt.subplots(2, 1, figsize=(8, 5.5), sharex=True, layout="constrained")
for ax, output in zip(axes, (0, 3), strict=True):
    plot_forecast(ahead, output, ax, history=(t, y), truth=(t_ahead, y_ahead))
axes[0].set_xlabel("")
plt.show()

# %% [markdown]
# The intervals widen as the path's memory fades. Soon after the end the forecast is precise. About two lengthscales
# later it is what the model predicts for any frame, a broad average over the whole latent space. We compare with two
# simple forecasts: the last value, and a separate GP over time for each output.

# %%
lower, upper = ahead.interval(0.95)
hidden = torch.cat([y, torch.full_like(y_ahead, math.nan)])
others = {
    "last value": last_value(t_all, hidden)[num_frames:],
    "one GP per output": gp_interpolation(t_all, hidden, RBF)[num_frames:],
}
near = slice(0, num_ahead // 4)
print("root mean squared error          first quarter       total")
for name, value in {"VGPDS": ahead.mean, **others}.items():
    errors = [mse(y_ahead[rows], value[rows]) ** 0.5 for rows in (near, slice(None))]
    print(f"{name:32s} {errors[0]:13.3f} {errors[1]:11.3f}")
print(f"inside the 95 % intervals: {100 * coverage(y_ahead, lower, upper):.0f} %")

# %% [markdown]
# This is one short part of one series: it shows what to look at, not which method is best.
#
# ## Summary
#
# - A VGPDS is an ordinary Pyro model with two sites: `x` from a `TemporalGP` and `y` from a `SparseGP`.
# - The optimal Gaussian $q(X)$ has $2QN$ parameters, because the data term depends only on marginal means and
#   variances. This is `OpperArchambeau`, and `AutoOpperArchambeau` is the guide that uses it.
# - `Collapsed_ELBO` is `TraceMeanField_ELBO` with one distribution replaced while it traces. The loss draws no samples.
# - Natural gradients for $q(X)$ come at no extra cost with each backward pass, and needed far fewer steps than Adam
#   here.
# - The weights of the mapping switch off latent dimensions that are not needed.
# - `Posterior` makes forecasts, with uncertainty, from the times only.
#
# ## What next
#
# - [Motion capture](motion_capture.ipynb): several sequences, and a body that is partly hidden.
# - [Video](video.ipynb): thousands of pixels as outputs.
# - [Your own priors and guides](priors_and_guides.ipynb): change the parts that were written out here.
# - [Messy data](messy_data.ipynb): gaps, irregular times and files.
# - [The eight scenarios of the original code](eight_scenarios.ipynb): which kernels for which data.
