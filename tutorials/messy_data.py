# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Messy data
#
# Real series have gaps, uneven times, and recordings of unequal length. None of this needs a special tool here: a
# Gaussian process in time takes any times, sequences are independent paths with a shared mapping, and what was not
# observed is left out of the likelihood. In this tutorial we take messy series as they are, fill in what is missing,
# and check whether the uncertainty that comes with it can be believed.
#
# #### Summary
#
# - NaN is what was not observed, anywhere: single entries, sensors that fail for a while, frames that are lost.
# - Columns that were seen in the same frames share their work. Nothing is filled in before training.
# - `Posterior.impute` fills in, with intervals; we count how many hidden numbers lie in them.
# - Every error stands beside those of simple methods: the mean, lines in time, a Gaussian process for each output,
#   and probabilistic PCA.
#
# #### Contents
#
# - [A mess with a known truth](#A-mess-with-a-known-truth)
# - [What a gap does to the bound](#What-a-gap-does-to-the-bound)
# - [Training, and what was found](#Training,-and-what-was-found)
# - [A robot that hears half of its beacons](#A-robot-that-hears-half-of-its-beacons)
# - [Genes in four experiments](#Genes-in-four-experiments)
# - [Can the intervals be believed?](#Can-the-intervals-be-believed?)
# - [Dates and tables](#Dates-and-tables)
# - [What next](#What-next)

# %%
import os
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, baselines, datasets, fit, metrics
from pyro_vgpds.kernels import RBF, Bias, Matern32, White
from pyro_vgpds.plotting import plot_plane, plot_reconstruction

smoke_test = "CI" in os.environ
assert pyro.__version__.startswith("1.9")
pyro.set_rng_seed(0)
torch.set_num_threads(1)  # faster than many, for problems of this size
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## A mess with a known truth
#
# `make_sequences` makes sequences of unequal length at uneven times: a two-dimensional cycle whose speed and radius
# change from sequence to sequence, seen through twenty smooth functions, with noise. We lose a quarter of the entries
# at random. Then half of the outputs fail for a while in one sequence, and in another all is lost for a while. The
# same call without noise and gaps gives the truth.

# %%
options = {"num_sequences": 4, "num_outputs": 20, "length": (15, 25) if smoke_test else (40, 70), "seed": 1}
messy = datasets.make_sequences(noise=0.15, missing=0.25, **options)
whole = datasets.make_sequences(noise=0.15, missing=0.0, **options)  # the same numbers, nothing lost
clean = datasets.make_sequences(noise=0.0, missing=0.0, **options)

t, y = messy.t, [part.copy() for part in messy.y]
outage = {s: slice(len(y[s]) // 3, len(y[s]) // 2) for s in (1, 2)}
y[1][outage[1], :10] = np.nan  # ten of the twenty outputs
y[2][outage[2]] = np.nan  # all of them

made_up = Sequences(t, y)
print(made_up, "of lengths", made_up.lengths)

# %%
fig, axes = plt.subplots(1, 4, figsize=(10.5, 2.7), layout="constrained", sharey=True)
for s, ax in enumerate(axes):
    edges = np.concatenate([[t[s][0]], (t[s][1:] + t[s][:-1]) / 2, [t[s][-1]]])
    ax.pcolormesh(edges, np.arange(21) - 0.5, np.isfinite(y[s]).T, cmap="Blues", vmin=0, vmax=1.4)
    ax.set(title=f"sequence {s}, {len(t[s])} frames", xlabel="time")
_ = axes[0].set_ylabel("output")

# %% [markdown]
# What was observed (blue) of each sequence. Frames are broad where times are far apart.

# %% [markdown]
# ## What a gap does to the bound
#
# Let $O_d$ be the frames in which output $d$ was observed. Given the latent path the outputs are independent, so the
# likelihood is a product over $d$ of Gaussians of the $|O_d|$ numbers that are there, and the rest is not in it. The
# bound of Damianou, Titsias and Lawrence stays what it is,
#
# $$\mathcal{F} = \sum_{d=1}^{D} \hat{\mathcal{F}}_d(O_d) - \mathrm{KL}\big(q(X) \,\|\, p(X \mid \mathbf{t})\big),$$
#
# but the expectations in $\hat{\mathcal{F}}_d$ run over the observed frames,
#
# $$\Psi_1^{(d)} = \big\langle k_f(X_{O_d}, \tilde X) \big\rangle_{q(X)}, \qquad
# \Psi_2^{(d)} = \sum_{n \in O_d} \big\langle k_f(\tilde X, \mathbf{x}_n)\, k_f(\mathbf{x}_n, \tilde X)
# \big\rangle_{q(X)},$$
#
# and columns with the same $O_d$ share them. In the worst case every column has a pattern of its own, and there are
# $D$ Cholesky decompositions of size $M$ where complete data need one. A frame in which nothing was seen is still a
# time of the prior $p(X \mid \mathbf{t})$, so the path runs through it.

# %%
print(f"{made_up.groups(made_up.output_means).num_groups} patterns in {made_up.num_outputs} columns")

# %% [markdown]
# ## Training, and what was found
#
# The same steps three times in this tutorial, so they are a function. It does nothing that is special to gaps.


# %%
def train(data, latent_dim, num_inducing, kernel, num_steps):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, latent_dim, min(num_inducing, data.num_frames), kernel)
    guide = AutoOpperArchambeau(model)
    print(fit(model, guide, data, 5 if smoke_test else num_steps, progress=False))
    return model, guide, Posterior(model, guide, data)


model, guide, posterior = train(made_up, 5, 40, RBF().fix("variance") + White(1e-2) + Bias(0.1), 150)
relevance = model.relevance(guide, made_up)
print(f"{int(relevance.active.sum())} of {model.latent_dim} latent dimensions are on")

# %% [markdown]
# `impute` predicts at the training frames, all sequences one after the other. With `fill=False` it also says what it
# makes of entries that were observed; by default those are kept as they are.

# %%
imputed = posterior.impute(fill=False)
rows = made_up.times.slices()


def some_rows(prediction, rows):
    """One sequence of a prediction of all frames."""
    return SimpleNamespace(t=prediction.t[rows], mean=prediction.mean[rows], stddev=prediction.stddev[rows])


lines = baselines.linear_interpolation(t, y)
fig, axes = plt.subplots(2, 1, figsize=(9, 5.4), layout="constrained")
for ax, s in zip(axes, (1, 2), strict=True):
    plot_reconstruction(some_rows(imputed, rows[s]), 0, ax, truth=whole.y[s], baseline=lines[s], seen=y[s])
    ax.set(ylabel=f"output 0, sequence {s}", xlabel="time" if s == 2 else "")

# %% [markdown]
# One output in the two sequences with an outage. Shaded is what was not seen, the dots are what would have been seen,
# and the dashed baseline is a straight line between neighbours in time. Above, half of the outputs went on and tell
# where the path was. Below, nothing was seen for a while: the band widens in the middle of the gap and closes again.

# %% [markdown]
# *The path.* Latent coordinates are free up to turns, stretches and a little bending, so before we compare we look
# for the affine map of the active dimensions that comes nearest to the true path.


# %%
def onto(found, true):
    """The affine image of points (N, Q) that is nearest to the true ones (N, 2), and the share of variance it has."""
    design = np.column_stack([found, np.ones(len(found))])
    image = design @ np.linalg.lstsq(design, true, rcond=None)[0]
    return image, 1 - ((image - true) ** 2).sum() / ((true - true.mean(0)) ** 2).sum()


true_path = np.concatenate(messy.latent)
active = relevance.active.numpy()
image, share = onto(posterior.q.mean.numpy()[:, active], true_path)
fig, axes = plt.subplots(1, 2, figsize=(8.4, 4), layout="constrained", sharex=True, sharey=True)
for s in range(4):
    axes[0].plot(*true_path[rows[s]].T, ".-", lw=0.8, ms=4)
    axes[1].plot(*image[rows[s]].T, ".-", lw=0.8, ms=4)
axes[0].set(title="the true paths", xlabel="x", ylabel="y", aspect="equal")
axes[1].set(title=f"found, after an affine map: {100 * share:.1f} % of the variance", xlabel="x", aspect="equal")
plt.setp(axes[1].get_xticklabels(), visible=True)
print(f"{100 * share:.1f} % of the variance of the true path is an affine function of the latent path")

# %% [markdown]
# The four paths, one colour each. The circles of different size come back from the twenty outputs with their holes,
# and sequences that share no clock lie in one space.
#
# *The numbers.* The truth here is what was lost, noise included, for that is what the intervals are about.


# %%
def compare(t, y, truth, prediction, gp=True):
    """Print errors of the hidden entries, and return how many of them central intervals hold."""
    errors = {"VGPDS": metrics.mse(truth, prediction.mean) ** 0.5}
    methods = {
        "column mean": baselines.column_mean,
        "linear in time": baselines.linear_interpolation,
        "one GP for each output": baselines.gp_interpolation,
        "probabilistic PCA": baselines.ppca,
    }
    for label, method in methods.items():
        if gp or method is not baselines.gp_interpolation:
            errors[label] = metrics.mse(truth, torch.cat(method(t, y))) ** 0.5
    print(f"{np.isfinite(truth).sum()} hidden entries; root mean squared errors:")
    for label, error in errors.items():
        print(f"  {label:24s}{error:.3f}")
    levels = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    held = np.array([metrics.coverage(truth, *prediction.interval(level)) for level in levels])
    for level in (0.5, 0.8, 0.95):
        print(f"  {100 * held[levels == level][0]:.1f} % of them lie in their {100 * level:.0f} % intervals")
    return levels, held


lost = [np.where(np.isnan(part), full, np.nan) for part, full in zip(y, whole.y, strict=True)]
calibration = {"made up": compare(t, y, np.concatenate(lost), imputed)}

# %% [markdown]
# ## A robot that hears half of its beacons
#
# A robot drives through a building and measures, every second and a half, how strongly it hears thirty wireless
# access points (Ferris, Fox and Lawrence 2007). More than half of the entries are missing, since most access points
# are out of range at any time. Where the robot was is known, and the model is not told. Where the data are not at
# hand, a made-up path with as many gaps takes their place.

# %%
try:
    robot = datasets.load_robot_wireless()
except (FileNotFoundError, ImportError):
    robot = datasets.make_sequences(1, 30, (150, 150), noise=0.2, missing=0.53)
    print("the wireless data are not at hand: made-up data take their place")
print(f"{robot.description}; {100 * np.isnan(robot.y[0]).mean():.0f} % missing")

# %% [markdown]
# To score imputation we hide a further fifth of what was observed, at random, before anything is trained.


# %%
def hide(y, share=0.2, seed=0):
    """Lists of outputs with more NaN, and what was hidden; outputs that are left with fewer than two are dropped."""
    rng = np.random.default_rng(seed)
    hidden = [np.isfinite(part) & (rng.random(part.shape) < share) for part in y]
    left = [np.where(where, np.nan, part) for where, part in zip(hidden, y, strict=True)]
    keep = np.isfinite(np.concatenate(left)).sum(0) > 1
    truth = np.where(np.concatenate(hidden), np.concatenate(y), np.nan)
    return [part[:, keep] for part in left], truth[:, keep], keep


robot_t, (robot_y, robot_truth, _) = robot.t, hide(robot.y)
if smoke_test:
    robot_t, robot_y, robot_truth = [robot_t[0][:60]], [robot_y[0][:60]], robot_truth[:60]
    heard = np.isfinite(robot_y[0]).sum(0) > 1
    robot_y, robot_truth = [robot_y[0][:, heard]], robot_truth[:, heard]
robot_data = Sequences(robot_t, robot_y)
print(robot_data)
model, guide, robot_posterior = train(robot_data, 6, 60, Matern32().fix("variance") + White(1e-2) + Bias(0.1), 200)
calibration["robot"] = compare(robot_t, robot_y, robot_truth, robot_posterior.impute(fill=False))

# %% [markdown]
# For a sensor that is seen again a moment later, a curve through its own neighbours in time is a strong rival. What
# no such curve has is a path. Below are the two leading latent dimensions as they are, and an affine image of all
# active ones beside the floor. As a rival we draw straight lines through the gaps and take as many principal
# components.

# %%
relevance = model.relevance(guide, robot_data)
leading = relevance.value.argsort(descending=True)[:2].tolist()
walked = robot.latent[0][: len(robot_t[0])]
filled = baselines.linear_interpolation(robot_t, robot_y)[0].numpy()
components = np.linalg.svd(filled - filled.mean(0), full_matrices=False)[0][:, : int(relevance.active.sum())]
image, share = onto(robot_posterior.q.mean.numpy()[:, relevance.active.numpy()], walked)
linear_image, linear_share = onto(components, walked)

fig, axes = plt.subplots(1, 4, figsize=(12, 4), layout="constrained", width_ratios=(1.6, 1, 1, 1))
plot_plane(robot_posterior, leading, axes[0])
axes[0].set_title("the latent path")
pictures = {"the true path": walked, "image of the latent path": image, "image of components": linear_image}
for ax, (title, points) in zip(axes[1:], pictures.items(), strict=True):
    dots = ax.scatter(*points.T, c=robot_t[0], s=8)
    ax.set(title=title, xlabel="x", ylabel="y" if points is walked else "", aspect="equal")
fig.colorbar(dots, ax=axes[-1], label="time")
print(f"share of the variance of the true path: latent path {share:.3f}, principal components {linear_share:.3f}")

# %% [markdown]
# Left: the latent path, with an ellipse of one standard deviation behind every frame. Then the true path and the
# affine images of what was found, coloured by time. Both bring back the loop, and where the robot comes to a place
# again, they know it. As a map of the floor the
# components are a strong rival: nothing in the model asks that metres be an affine function of latent coordinates,
# which may bend. What the model adds is that it takes the gaps as they are, and says how sure it is.

# %% [markdown]
# ## Genes in four experiments
#
# Spellman et al. (1998) measured the expression of all genes of yeast over the cell cycle, in four experiments that
# differ in how the cells were made to start together. Each is a sequence with times of its own, in minutes: every 7,
# 10 or 30, and in one of them uneven. There are thousands of outputs, 73 frames, and gaps all over. We keep the 600
# genes that vary most, to be quick.

# %%
try:
    yeast = datasets.load_spellman(None, complete=False)
except (FileNotFoundError, ImportError):
    yeast = datasets.make_sequences(4, 60, (14, 24), noise=0.4, missing=0.06)
    print("the yeast data are not at hand: made-up data take their place")

together = np.concatenate(yeast.y)
seen_half = np.isfinite(together).mean(0) > 0.5
variance = np.where(seen_half, np.nanvar(np.where(seen_half, together, 0.0), 0), 0.0)
chosen = np.sort(np.argsort(-variance)[: 60 if smoke_test else 600])
genes_t, (genes_y, genes_truth, kept) = yeast.t, hide([part[:, chosen] for part in yeast.y])
genes = Sequences(genes_t, genes_y)
print(f"{yeast.description}\n{genes}, lengths {genes.lengths}")
model, guide, genes_posterior = train(genes, 8, 40, Matern32().fix("variance") + White(1e-2) + Bias(0.1), 150)
genes_imputed = genes_posterior.impute(fill=False)
calibration["genes"] = compare(genes_t, genes_y, genes_truth, genes_imputed, gp=False)

# %% [markdown]
# Here every sequence has few frames, so curves in time alone do badly, and what genes have in common is what helps.
# (One Gaussian process for each output is left out: with a pattern for each gene it takes minutes.) Three genes of
# the cell cycle in the experiment with uneven times, where the data are those of yeast:

# %%
known = {"YPL256C": "CLN2, before division starts", "YBL003C": "HTA2, a histone", "YPR119W": "CLB2, late"}
columns = (
    [name for name, keep in zip((yeast.columns[i] for i in chosen), kept, strict=True) if keep] if yeast.columns else []
)
drawn = {columns.index(gene): text for gene, text in known.items() if gene in columns} or {0: "output 0", 1: "output 1"}
s = 1
rows = genes.times.slices()[s]
truth = np.where(np.isnan(genes_truth), np.concatenate(genes_y), genes_truth)  # hidden and seen together
fig, axes = plt.subplots(
    len(drawn), 1, figsize=(9, 1 + 2 * len(drawn)), layout="constrained", sharex=True, squeeze=False
)
for ax, (column, text) in zip(axes[:, 0], drawn.items(), strict=True):
    plot_reconstruction(some_rows(genes_imputed, rows), column, ax, truth=truth[rows], seen=genes_y[s])
    ax.set(ylabel=text.split(",")[0], xlabel="")
axes[-1, 0].set_xlabel("time" if not yeast.columns else f"minutes, experiment {yeast.names[s]}")
for ax in axes[1:, 0]:
    ax.get_legend().remove()

# %% [markdown]
# Dots are all that was measured, and the shaded ones were hidden from the model. The cells divide twice or so while
# they are watched.

# %% [markdown]
# ## Can the intervals be believed?
#
# Of the hidden entries, count how many lie in their central 10 %, 20 %, …, 95 % intervals. Below the diagonal
# intervals are too narrow, above it too wide.

# %%
fig, ax = plt.subplots(figsize=(4.8, 4.4), layout="constrained")
ax.plot([0, 1], [0, 1], color="0.7", lw=1)
for name, (levels, held) in calibration.items():
    ax.plot(levels, held, ".-", label=name)
ax.set(
    xlabel="probability of the interval",
    ylabel="share of hidden entries in it",
    xlim=(0, 1),
    ylim=(0, 1),
    aspect="equal",
)
_ = ax.legend(frameon=False)

# %% [markdown]
# Data that are made as the model says should lie on the diagonal. Real data tend to bulge above it in the middle and
# come back to it at the end: their noise has heavier tails than a Gaussian and differs from output to output, so
# that one $\beta$ for all is too wide for most entries and just right, or a little too narrow, for the odd ones.
# `VGPDS.from_data(..., noise_per_output=True)` gives each output a noise of its own; whether that is better should be
# decided on entries hidden for the purpose, as it was for the tables in the README.

# %% [markdown]
# ## Dates and tables
#
# Times may be dates. They become seconds since the earliest, and predictions have them as `dates` again. A pandas
# table with a column of times, and perhaps one that names the sequence of each row, goes in by
# `Sequences.from_frame`. A csv file needs no Python: `pyro-vgpds fit table.csv -o table.safetensors`, where empty
# cells are what is missing.

# %%
days = np.array(["2024-01-01", "2024-01-02", "2024-01-05", "2024-02-01"], dtype="datetime64[D]")
dated = Sequences(days, np.array([[1.0, 2.0], [np.nan, 2.5], [1.5, np.nan], [2.0, 3.0]]), columns=["a", "b"])
print(dated, dated.time_origin, (dated.times.t / 86400).tolist())

# %% [markdown]
# ## What next
#
# - [VGPDS in Pyro](vgpds_in_pyro.ipynb): the model, the guide and the bound, step by step.
# - [Motion capture](motion_capture.ipynb): many sequences, and half a body reconstructed.
# - [Video](video.ipynb): gaps that are half of a picture.
# - [Your own priors and guides](priors_and_guides.ipynb): what to change when the noise is not what the model thinks.
# - [The original's eight scenarios](eight_scenarios.ipynb): which dynamics and which mapping for which series.
#
# The same comparisons over several seeds are `pyro-vgpds experiment robot` and `pyro-vgpds experiment yeast`.
