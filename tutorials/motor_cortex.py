# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Motor cortex
#
# A monkey reaches to a target, and electrodes in its motor cortex record the spikes of 162 neurons. Single neurons are
# noisy: in 20 milliseconds most of them fire once or not at all. But they share one computation, and a model of the
# whole population can read it from a single trial. In this tutorial we find the latent path of each reach from spike
# counts, predict neurons that were not recorded, and decode the velocity of the hand. Then we look at another kind of
# data that is not Gaussian: motion tracking with jumps.
#
# #### Summary
#
# - `likelihood=Poisson()` in `VGPDS.from_data` is all that changes for counts. Guide, `fit` and `Posterior` stay the
#   same.
# - The model is never told when the movement begins, where the targets are, or how the hand moves. It finds a clock
#   that all trials share, and a map of the directions of the reaches.
# - Hidden neurons of new trials are predicted better than by GPFA and by ridge and Poisson regression.
# - `likelihood=StudentT()` ignores outliers without any threshold.
#
# #### Contents
#
# - [Spikes](#Spikes)
# - [The model](#The-model)
# - [What the population computes](#What-the-population-computes)
# - [Neurons that were not recorded](#Neurons-that-were-not-recorded)
# - [Reading the velocity of the hand](#Reading-the-velocity-of-the-hand)
# - [Jumps in motion tracking](#Jumps-in-motion-tracking)
# - [What next](#What-next)

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, Solver, datasets, fit, metrics
from pyro_vgpds.experiments.spikes import PREDICTORS, decode, r_squared
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.likelihoods import Poisson, StudentT
from pyro_vgpds.plotting import plot_raster, plot_relevance

smoke_test = "CI" in os.environ
assert pyro.__version__.startswith("1.9")
pyro.set_rng_seed(0)
torch.set_num_threads(1)  # faster than several threads for problems of this size
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## Spikes
#
# The data are 165 reaches of half a second, in bins of 20 ms (Churchland et al. 2012; MC_Maze of the Neural Latents
# Benchmark, DANDI 000138, CC-BY-4.0). If they are not available, a population is simulated: each neuron prefers a
# direction and a moment of the reach.


# %%
def simulate(num_trials, num_neurons, seed=0):
    """Reaches in eight directions, and Poisson neurons that are tuned to the velocity of the hand and to time."""
    rng = np.random.default_rng(seed)
    t = (np.arange(25) + 0.5) / 50
    condition = rng.integers(8, size=num_trials)
    angle = 2 * np.pi * condition / 8 + 0.1 * rng.standard_normal(num_trials)
    speed = 800 * np.exp(-0.5 * ((t - 0.3) / 0.07) ** 2)  # mm/s
    velocity = speed[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)[:, None]  # (trials, 25, 2)
    preferred, moment = rng.uniform(0, 2 * np.pi, num_neurons), rng.uniform(0.0, 0.5, num_neurons)
    active = np.exp(-0.5 * ((t[:, None] - moment) / 0.08) ** 2)  # (25, neurons)
    tuned = 1.2 * np.cos(angle[:, None, None] - preferred) * active + 0.6 * active
    counts = rng.poisson(np.exp(rng.normal(-1.8, 0.6, num_neurons) + 1.5 * tuned)).astype(float)
    return datasets.Reaches(
        [t] * num_trials, list(counts), f"simulated reaches: {num_neurons} neurons, {num_trials} trials",
        columns=[f"neuron {i}" for i in range(num_neurons)], velocity=list(velocity),
        position=list(np.cumsum(velocity, 1) / 50), condition=condition, bin_ms=20,
    )  # fmt: skip


try:
    reaches = datasets.load_mc_maze()
except FileNotFoundError:
    reaches = simulate(25 if smoke_test else 165, 24 if smoke_test else 162)
    print("the recordings are not available: simulated neurons are used instead")
print(reaches.description)
counts = np.stack(reaches.y)  # (trials, bins, neurons)
print(f"{100 * (counts == 0).mean():.0f} % of the counts are 0, {100 * (counts > 1).mean():.0f} % are above 1")

# %%
travelled = np.stack([part[-1] - part[0] for part in reaches.position])
direction = np.arctan2(travelled[:, 1], travelled[:, 0])  # of each reach: the colour of all figures
colour = plt.cm.hsv((direction + np.pi) / (2 * np.pi))
by_peak = np.argsort(counts.mean(0).argmax(0))  # neurons that are active early come first

fig = plt.figure(figsize=(11, 4.2), layout="constrained")
grid = fig.add_gridspec(2, 2, width_ratios=(1, 1.7), height_ratios=(3, 1))
hand, speed, raster = (fig.add_subplot(place) for place in (grid[0, 0], grid[1, 0], grid[:, 1]))
for part, motion, c in zip(reaches.position, reaches.velocity, colour, strict=True):
    hand.plot(*(part - part[0]).T, color=c, lw=0.8)
    speed.plot(reaches.t[0], np.hypot(*motion.T), color=c, lw=0.4)
hand.set(title="the hand in all trials", xlabel="x (mm)", ylabel="y (mm)", aspect="equal")
speed.set(xlabel="time (s)", ylabel="mm/s")
plot_raster(Sequences(reaches.t[0], counts[0]), axes=[raster], outputs=by_peak.tolist(), largest=3)
raster.set_title("", loc="left")
raster.set(title="spike counts of one trial", ylabel="neuron, sorted by the time of its peak", yticks=[])
_ = raster.set_xlabel("time (s)")

# %% [markdown]
# Left: the path of the hand and its speed, one line for each trial. The colour is the direction of the reach, in all
# figures; the model never sees it. Right: all that the model sees of one trial.

# %% [markdown]
# ## The model
#
# The latent path of each trial is a Gaussian process in time, a Gaussian process maps it to the log rates of all
# neurons, and the counts are Poisson:
#
# $$x(t) \sim GP(0, k_x), \qquad f_d(x) \sim GP(0, k_f), \qquad y_{nd} \sim \mathrm{Poisson}(\exp f_d(x(t_n))).$$
#
# Factor analysis and GPFA of square roots assume Gaussian noise and a linear mapping; here neither is needed. Six of
# the twelve latent dimensions start as constants of each trial (`static_dim`), because trials differ as a whole. The
# lengthscale, 0.2 s, was chosen on held-out training trials. Every fifth trial is a test trial that the model does not
# see.

# %%
training, test = reaches.training(fold=0), reaches.fold(0)[1]
print(training)
kernel = Matern32(lengthscale=0.2) + White(1e-2) + Bias(0.3)
sizes = {"latent_dim": 5, "num_inducing": 12, "static_dim": 2} if smoke_test else {}
model = VGPDS.from_data(
    training, **{"latent_dim": 12, "num_inducing": 40, "static_dim": 6, **sizes}, temporal=kernel, likelihood=Poisson()
)
guide = AutoOpperArchambeau(model)
print(fit(model, guide, training, num_steps=3 if smoke_test else 60, progress=False))
posterior = Posterior(model, guide, training)

# %% [markdown]
# ## What the population computes
#
# A latent dimension can change within a trial, differ between trials, or both. For each dimension we compute the share
# of its variance that is common to all trials (a clock), the share that is constant within a trial, and the rest.

# %%
path = posterior.q.mean.numpy().reshape(len(training.lengths), -1, model.latent_dim)  # (trials, bins, Q)
relevance = model.relevance(guide, training)
order = relevance.value.argsort(descending=True).numpy()
total = path.var((0, 1))
clock = path.mean(0).var(0) / total
constant = path.mean(1).var(0) / total
ticking = order[np.argmax(clock[order[:4]])]  # the clock among the dimensions that matter most
standing = [q for q in order if q != ticking][:2]

fig, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", width_ratios=(1.1, 1, 1))
plot_relevance(relevance, ax=axes[0])
trained = colour[reaches.fold(0)[0]]
for line, c in zip(path, trained, strict=True):
    axes[1].plot(reaches.t[0], line[:, ticking], color=c, lw=0.6)
    axes[2].plot(line[:, standing[0]], line[:, standing[1]], color=c, lw=0.8)
    axes[2].plot(*line[-1, standing], ".", color=c, ms=5)
axes[1].set(title=f"dimension {ticking}: a clock", xlabel="time (s)", ylabel=f"$x_{{{ticking}}}$")
axes[2].set(
    title=f"dimensions {standing[0]} and {standing[1]}: a map of the reaches",
    xlabel=f"$x_{{{standing[0]}}}$",
    ylabel=f"$x_{{{standing[1]}}}$",
)
print(f"dimension {ticking}: {100 * clock[ticking]:.0f} % of the variance is the same in all trials")
for q in standing:
    print(f"dimension {q}: {100 * constant[q]:.0f} % is constant within a trial, {100 * clock[q]:.0f} % is common")

# %% [markdown]
# Left: how much each latent dimension contributes to the log rates. Training switched off most of the twelve. Middle:
# the most relevant one is a clock. All trials run through it alike, whatever their direction. Right: the next two. One
# is constant within each trial and sorts the reaches from right to left, the other moves within the trial. So the model
# explains 162 neurons mainly by *when* and *where to*, from spikes alone.
#
# The mapping from these coordinates to the rates is curved, so the rates themselves move on loops. The next figure
# shows the principal components of the log rates: the usual picture of rotations in motor cortex.

# %%
rates = posterior.impute(fill=False).mean.numpy()  # (trials * bins, neurons), expected counts

# %%
log_rates = np.log(rates) - np.log(rates).mean(0)
left, size, _ = np.linalg.svd(log_rates, full_matrices=False)
loops = (left * size)[:, :3].reshape(*path.shape[:2], 3)

fig = plt.figure(figsize=(11, 3.9), layout="constrained")
axes = [fig.add_subplot(1, 3, 1), fig.add_subplot(1, 3, 2), fig.add_subplot(1, 3, 3, projection="3d")]
for ax, shown in zip(axes, ([0, 1], [1, 2], [0, 1, 2]), strict=True):
    for line, c in zip(loops, trained, strict=True):
        ax.plot(*line[:, shown].T, color=c, lw=0.6)
        ax.plot(*line[:1, shown].T, "o", color=c, ms=2)
    ax.set(xlabel=f"component {shown[0] + 1}", ylabel=f"component {shown[1] + 1}", xticks=[], yticks=[])
axes[2].set(zlabel="component 3", zticks=[])
axes[2].view_init(elev=20, azim=-60)

# %% [markdown]
# One line for each training trial, with a dot where it begins.

# %% [markdown]
# ## Neurons that were not recorded
#
# In the test trials every fourth neuron is hidden. `reconstruct` finds the latent path of each new trial from the other
# neurons and predicts the hidden ones: their rates and intervals of their counts.

# %%
hidden = reaches.hidden
seen = [np.where(hidden, np.nan, reaches.y[i]) for i in test]
solver = Solver(num_starts=1, num_steps=5 if smoke_test else 100, tolerance=1e-6)
new = posterior.reconstruct([reaches.t[i] for i in test], seen, solver=solver)
truth = reaches.truth(fold=0)
print(f"{hidden.sum()} hidden neurons in {len(test)} trials: {int(np.nansum(truth))} spikes to predict")

# %% [markdown]
# The usual score is *bits per spike*: the Poisson log-likelihood of the predicted rates, relative to that of the mean
# rate of each neuron. The baselines are the mean over trials at each time, ridge and Poisson regression on smoothed
# counts of the seen neurons, and GPFA with a Poisson regression on its factors. Their penalties and widths are chosen
# on training trials.

# %%
base = np.concatenate([reaches.y[i] for i in reaches.fold(0)[0]]).mean(0)
bits = {"this model": metrics.bits_per_spike(truth, new.mean, base)}
for name in ("time-bin mean", "ridge", "Poisson GLM", "GPFA, Poisson read-out"):
    answer = PREDICTORS[name](reaches, 0)(training, reaches.partial(fold=0))
    bits[name] = metrics.bits_per_spike(truth, answer.mean, base)
for name, value in bits.items():
    print(f"{name:24s}{value:.3f} bits per spike")
score = metrics.log_score(truth, new.log_probs(truth))
print(f"log score of the predictive distribution: {score:.4f} nats per count")


# %%
def smooth(y, width=2.0):
    """Counts (n, D), smoothed over time."""
    place = np.arange(len(y))
    weight = np.exp(-0.5 * ((place[:, None] - place) / width) ** 2)
    return (weight / weight.sum(1, keepdims=True)) @ y


predicted = new.mean.numpy().reshape(len(test), -1, len(hidden)) / 0.02  # spikes per second
observed = np.stack([smooth(reaches.y[i]) for i in test]) / 0.02
sector = np.round(4 * direction[test] / np.pi).astype(int) % 8  # eight groups of directions
neurons = np.flatnonzero(hidden)[np.argsort(-rates[:, hidden].var(0))[:3]]  # those that vary most in training trials

fig, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained", width_ratios=(1, 1, 1, 0.8))
for ax, neuron in zip(axes, neurons, strict=False):
    for some in (sector == k for k in np.unique(sector) if (sector == k).sum() > (1 if smoke_test else 2)):
        c = colour[test[some]].mean(0)
        ax.plot(reaches.t[0], predicted[some, :, neuron].mean(0), color=c, lw=2)
        ax.plot(reaches.t[0], observed[some, :, neuron].mean(0), ":", color=c, lw=1.5)
    ax.set(title=f"hidden neuron {neuron}", xlabel="time (s)")
axes[0].set_ylabel("spikes per second")
names = sorted(bits, key=bits.get)
axes[3].barh(names, [bits[name] for name in names], color=["#D55E00" if n == "this model" else "0.7" for n in names])
axes[3].set(xlabel="bits per spike", title="all hidden neurons")
axes[3].spines[["top", "right"]].set_visible(False)

# %% [markdown]
# Three hidden neurons, averaged over the test trials of similar direction: predicted rates (lines) and smoothed spikes
# (dotted). Right: bits per spike of all hidden neurons. One fold of five is shown here; `pyro-vgpds experiment spikes`
# runs all of them, with more baselines.

# %% [markdown]
# ## Reading the velocity of the hand
#
# Ridge regression from the predicted rates of all neurons to the velocity of the hand is trained on the training trials
# and applied to the test trials, whose latent paths were found without the hidden neurons. For comparison, the same
# regression reads the velocity from the smoothed counts of the seen neurons, and from the latent paths themselves. (The
# test trials have updated the mapping, so the rates of the training trials are computed with the same mapping,
# `new.inducing`.)

# %%
velocity, true_velocity = (np.concatenate([reaches.velocity[i] for i in some]) for some in reaches.fold(0))
rates = posterior.predict(training.times.t, posterior.q, new.inducing, include_noise=True).mean.numpy()
smoothed, new_smoothed = (np.concatenate([smooth(reaches.y[i][:, ~hidden]) for i in some]) for some in reaches.fold(0))
inputs = {
    "predicted rates": (rates, new.mean.numpy()),
    "smoothed counts": (smoothed, new_smoothed),
    "latent paths": (posterior.q.mean.numpy(), new.latent.mean.numpy()),
}
decoded = {name: decode(old, velocity, now, training.lengths) for name, (old, now) in inputs.items()}
for name, guess in decoded.items():
    print(f"{name:18s}R² = {r_squared(true_velocity, guess):.3f}")

# %%
drawn = np.argsort(direction[test])[:: max(1, len(test) // 6)][:6]
fig, axes = plt.subplots(2, len(drawn), figsize=(11, 3.6), layout="constrained", sharex=True, sharey=True)
rows = Sequences([reaches.t[i] for i in test]).times.slices()
for column, i in enumerate(drawn):
    for row, ax in enumerate(axes[:, column]):
        ax.plot(reaches.t[0], true_velocity[rows[i], row], color="0.6", lw=3, label="hand")
        ax.plot(reaches.t[0], decoded["predicted rates"][rows[i], row], color=colour[test[i]], lw=1.5, label="decoded")
        ax.axhline(0, color="0.85", lw=0.8, zorder=0)
    axes[0, column].set_title(f"trial {test[i]}")
    axes[1, column].set_xlabel("time (s)")
axes[0, 0].set_ylabel("x velocity (mm/s)")
axes[1, 0].set_ylabel("y velocity (mm/s)")
_ = axes[0, -1].legend(frameon=False, fontsize=8)

# %% [markdown]
# The velocity of the hand in six test trials (grey), and what the seen neurons say about it, in the colour of the
# direction. A linear map of the latent paths alone cannot do this: the velocity is a product of the clock and the
# direction, which the mapping to the rates has learned.

# %% [markdown]
# ## Jumps in motion tracking
#
# Behaviour is tracked, too, and trackers make mistakes: a marker is lost or swapped, and an angle jumps for a frame.
# Gaussian noise must then be large enough for the jumps. A Student-t distribution has heavy tails: a value far from all
# others has little weight, without a threshold and without removing anything. Here one in twenty angles of a walking
# figure jumps by 20 to 60 degrees, and a fifth of all angles is missing. We compute the error of the predicted means of
# missing angles, and how many of the missing tracked values, jumps included, are in the intervals.

# %%
walks = datasets.make_gait(num_sequences=3, length=(30, 35) if smoke_test else (60, 80), styles=("walk",), seed=1)
angles = np.concatenate(walks.y)
rng = np.random.default_rng(0)
jumps = rng.random(angles.shape) < 0.05
jumped = angles + np.where(jumps, rng.choice([-1, 1], angles.shape) * rng.uniform(20, 60, angles.shape), 0.0)
missing = rng.random(angles.shape) < 0.2
tracked = np.where(missing, np.nan, jumped)
track = Sequences(walks.t, np.split(tracked, np.cumsum([len(part) for part in walks.t])[:-1]), columns=walks.columns)
print(track)

here = slice(0, len(walks.t[0]))  # the first walk, which we look at
found = {}
for name, likelihood in (("Gaussian", None), ("Student-t", StudentT())):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    tracker = VGPDS.from_data(track, latent_dim=6, num_inducing=30, likelihood=likelihood)
    its_guide = AutoOpperArchambeau(tracker)
    fit(tracker, its_guide, track, num_steps=3 if smoke_test else 80, progress=False)
    found[name] = Posterior(tracker, its_guide, track).impute(fill=False).select(here)
    error = metrics.mse(np.where(missing, angles, np.nan)[here], found[name].mean) ** 0.5
    inside = metrics.coverage(np.where(missing, jumped, np.nan)[here], *found[name].interval(0.95))
    print(f"{name:10s} error of missing angles {error:.2f} degrees, {100 * inside:.0f} % in the 95 % intervals")
print(f"degrees of freedom: {tracker.output_likelihood.df.item():.1f}")

# %%
large = [d for d in range(angles.shape[1]) if angles[:, d].std() > 10]  # knees, ankles and elbows
joint = max(large, key=lambda d: (jumps & ~missing)[here, d].sum())  # the one with most jumps
fig, axes = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained", sharey=True)
for ax, (name, prediction) in zip(axes, found.items(), strict=True):
    t, mean = walks.t[0], prediction.mean[:, joint]
    lower, upper = (end[:, joint] for end in prediction.interval(0.8))
    ax.fill_between(t, lower, upper, color="#CCE3F0", label="80 %")
    ax.plot(t, mean, color="#0072B2", lw=1.5, label=name)
    ax.plot(t, np.where(jumps, np.nan, tracked)[here, joint], ".", color="0.2", ms=4, label="tracked")
    ax.plot(t, np.where(jumps, tracked, np.nan)[here, joint], "x", color="#D55E00", ms=7, label="jumps")
    ax.set(title=f"{name} outputs", xlabel="time (s)")
    ax.legend(frameon=False, fontsize=8, ncols=2)
_ = axes[0].set_ylabel(f"{walks.columns[joint]} (degrees)")

# %% [markdown]
# With Gaussian outputs, the jumps make the noise large, and the path follows some of them. With Student-t outputs the
# same model follows the tracked angles closely. Jumps stay in the data: they are simply improbable enough to be
# ignored.

# %% [markdown]
# ## What next
#
# - The page *Likelihoods* of the documentation (`docs/likelihoods.md`): yes/no, negative binomial counts, exposures,
#   columns of different kinds, and how to write a likelihood of your own.
# - [Your own priors and guides](priors_and_guides.ipynb): hyperpriors, guides, NUTS.
# - [Messy data](messy_data.ipynb): gaps, irregular times, and calibration.
# - [Motion capture](motion_capture.ipynb): a body instead of a brain.
# - [From a csv to a forecast](from_csv_to_forecast.ipynb): `pyro-vgpds fit counts.csv --likelihood negative-binomial`
#   does the same from the command line.
