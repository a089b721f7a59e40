# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Messy data
#
# Real series have gaps, irregular times, and recordings of different lengths. None of this needs special tools here: a
# Gaussian process in time accepts any times, sequences are independent paths with a shared mapping, and missing values
# are excluded from the likelihood. In this tutorial we use messy series as they are, fill in missing values, and check
# whether the uncertainty is calibrated.
#
# #### Summary
#
# - NaN marks missing values anywhere: single entries, sensors that fail for some time, frames that are lost.
# - Columns that were observed in the same frames share computations. Nothing is filled in before training.
# - `Posterior.impute` fills in missing values, with intervals. We count how many hidden values lie in the intervals.
# - Every error is compared with those of simple methods: the mean, linear interpolation in time, a Gaussian process per
#   output, and probabilistic PCA.
#
# #### Contents
#
# - [Synthetic data with gaps](#Synthetic-data-with-gaps)
# - [The bound with missing values](#The-bound-with-missing-values)
# - [Training and imputation](#Training-and-imputation)
# - [Wireless signals of a robot](#Wireless-signals-of-a-robot)
# - [Genes in four experiments](#Genes-in-four-experiments)
# - [Are the intervals calibrated?](#Are-the-intervals-calibrated?)
# - [Dates and tables](#Dates-and-tables)
# - [What next](#What-next)

# %%
import os

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
torch.set_num_threads(1)  # faster than several threads for problems of this size
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## Synthetic data with gaps
#
# `make_sequences` generates sequences of different lengths at irregular times: a two-dimensional cycle whose speed and
# radius differ between sequences, mapped by twenty smooth functions, with noise. A quarter of the entries is missing at
# random. In addition, half of the outputs fail for some time in one sequence, and all of them in another. The same call
# without noise and gaps gives the truth.

# %%
options = {"num_sequences": 4, "num_outputs": 20, "length": (15, 25) if smoke_test else (40, 70), "seed": 1}
messy = datasets.make_sequences(noise=0.15, missing=0.25, **options)
whole = datasets.make_sequences(noise=0.15, missing=0.0, **options)  # the same values without gaps
clean = datasets.make_sequences(noise=0.0, missing=0.0, **options)

t, y = messy.t, [part.copy() for part in messy.y]
outage = {s: slice(len(y[s]) // 3, len(y[s]) // 2) for s in (1, 2)}
y[1][outage[1], :10] = np.nan  # ten of the twenty outputs
y[2][outage[2]] = np.nan  # all of them

synthetic = Sequences(t, y)
print(synthetic, "lengths", synthetic.lengths)

# %%
fig, axes = plt.subplots(1, 4, figsize=(10.5, 2.7), layout="constrained", sharey=True)
for s, ax in enumerate(axes):
    edges = np.concatenate([[t[s][0]], (t[s][1:] + t[s][:-1]) / 2, [t[s][-1]]])
    ax.pcolormesh(edges, np.arange(21) - 0.5, np.isfinite(y[s]).T, cmap="Blues", vmin=0, vmax=1.4)
    ax.set(title=f"sequence {s}, {len(t[s])} frames", xlabel="time")
_ = axes[0].set_ylabel("output")

# %% [markdown]
# Observed entries (blue) of each sequence. A frame is wide if its neighbours are far away in time.

# %% [markdown]
# ## The bound with missing values
#
# Let $O_d$ be the frames in which output $d$ was observed. Given the latent path the outputs are independent, so the
# likelihood is a product over $d$ of Gaussians of the $|O_d|$ observed values. Missing values do not appear in it. The
# bound of Damianou, Titsias and Lawrence keeps its form,
#
# $$\mathcal{F} = \sum_{d=1}^{D} \hat{\mathcal{F}}_d(O_d) - \mathrm{KL}\big(q(X) \,\|\, p(X \mid \mathbf{t})\big),$$
#
# but the expectations in $\hat{\mathcal{F}}_d$ are over the observed frames,
#
# $$\Psi_1^{(d)} = \big\langle k_f(X_{O_d}, \tilde X) \big\rangle_{q(X)}, \qquad
# \Psi_2^{(d)} = \sum_{n \in O_d} \big\langle k_f(\tilde X, \mathbf{x}_n)\, k_f(\mathbf{x}_n, \tilde X)
# \big\rangle_{q(X)},$$
#
# and columns with the same $O_d$ share them. In the worst case every column has its own pattern, and there are $D$
# Cholesky decompositions of size $M$ instead of one for complete data. A frame without any observed output is still a
# time of the prior $p(X \mid \mathbf{t})$, so the path is defined there.

# %%
print(f"{synthetic.groups(synthetic.output_means).num_groups} patterns in {synthetic.num_outputs} columns")

# %% [markdown]
# ## Training and imputation
#
# This tutorial uses the same steps three times, so they are a function. Nothing in it is specific to gaps.


# %%
def train(data, latent_dim, num_inducing, kernel, num_steps):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    sizes = latent_dim, min(num_inducing, data.num_frames)
    model = VGPDS.from_data(data, *sizes, kernel, noise_per_output=False, scale_outputs=False)  # outputs of one unit
    guide = AutoOpperArchambeau(model)
    print(fit(model, guide, data, 5 if smoke_test else num_steps, progress=False))
    return model, guide, Posterior(model, guide, data)


model, guide, posterior = train(synthetic, 5, 40, RBF().fix("variance") + White(1e-2) + Bias(0.1), 150)
relevance = model.relevance(guide, synthetic)
print(f"{int(relevance.active.sum())} of {model.latent_dim} latent dimensions are active")

# %% [markdown]
# `impute` predicts at the training frames, all sequences one after the other. By default, observed entries are returned
# as they are. With `fill=False` they are predicted as well.

# %%
imputed = posterior.impute(fill=False)
rows = synthetic.times.slices()
lines = baselines.linear_interpolation(t, y)
fig, axes = plt.subplots(2, 1, figsize=(9, 5.4), layout="constrained")
for ax, s in zip(axes, (1, 2), strict=True):
    plot_reconstruction(imputed.select(rows[s]), 0, ax, truth=whole.y[s], baseline=lines[s], seen=y[s])
    ax.set(ylabel=f"output 0, sequence {s}", xlabel="time" if s == 2 else "")

# %% [markdown]
# One output in the two sequences with an outage. It was not observed in the shaded regions; the dots there are the true
# values. The dashed baseline is linear interpolation in time. Above, half of the outputs were still observed and
# determine the path. Below, no output was observed for some time: the band is widest in the middle of the gap.

# %% [markdown]
# *The path.* The latent coordinates are determined only up to rotation, scale and a little bending. So before we
# compare, we compute the affine map of the active dimensions that is closest to the true path.


# %%
def onto(found, true):
    """The affine image of points (N, Q) that is closest to the true ones (N, 2), and its share of their variance."""
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
axes[0].set(title="true paths", xlabel="x", ylabel="y", aspect="equal")
axes[1].set(title=f"learned, after an affine map: {100 * share:.1f} % of the variance", xlabel="x", aspect="equal")
plt.setp(axes[1].get_xticklabels(), visible=True)
print(f"{100 * share:.1f} % of the variance of the true path is an affine function of the latent path")

# %% [markdown]
# The four paths, one colour each. The circles of different radius are recovered from the twenty outputs with gaps, and
# sequences with unrelated times lie in one space.
#
# *The errors.* The truth here is the lost values with their noise, because the intervals are for noisy values.


# %%
def compare(t, y, truth, prediction):
    """Print errors of the hidden entries, and return the coverage of central intervals."""
    errors = {"VGPDS": metrics.mse(truth, prediction.mean) ** 0.5}
    methods = {
        "column mean": baselines.column_mean,
        "linear in time": baselines.linear_interpolation,
        "one GP per output": baselines.gp_interpolation,
        "probabilistic PCA": baselines.ppca,
    }
    for label, method in methods.items():
        errors[label] = metrics.mse(truth, torch.cat(method(t, y))) ** 0.5
    print(f"{np.isfinite(truth).sum()} hidden entries; root mean squared errors:")
    for label, error in errors.items():
        print(f"  {label:24s}{error:.3f}")
    levels = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    covered = np.array([metrics.coverage(truth, *prediction.interval(level)) for level in levels])
    for level in (0.5, 0.8, 0.95):
        print(f"  {100 * covered[levels == level][0]:.1f} % of them lie in their {100 * level:.0f} % intervals")
    return levels, covered


lost = [np.where(np.isnan(part), full, np.nan) for part, full in zip(y, whole.y, strict=True)]
calibration = {"synthetic": compare(t, y, np.concatenate(lost), imputed)}

# %% [markdown]
# ## Wireless signals of a robot
#
# A robot drives through a building and measures, every second and a half, the signal strength of thirty wireless access
# points (Ferris, Fox and Lawrence 2007). More than half of the entries are missing, because most access points are out
# of range at any time. The position of the robot is known, but it is not given to the model. If the data are not
# available, a synthetic path with the same share of gaps is used instead.

# %%
try:
    robot = datasets.load_robot_wireless()
except (FileNotFoundError, ImportError):
    robot = datasets.make_sequences(1, 30, (150, 150), noise=0.2, missing=0.53)
    print("the wireless data are not available: synthetic data are used instead")
print(f"{robot.description}; {100 * np.isnan(robot.y[0]).mean():.0f} % missing")

# %% [markdown]
# To evaluate imputation we hide a random fifth of the observed values before training.


# %%
def hide(y, share=0.2, seed=0):
    """Lists of outputs with more NaN, and the hidden values. Outputs with fewer than two values are removed."""
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
# If a sensor is observed again shortly afterwards, interpolation of its own values over time is a strong baseline. But
# it does not give a path. Below are the two leading latent dimensions, and an affine image of all active dimensions
# next to the true path. For comparison we interpolate the gaps linearly and take the same number of principal
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
axes[0].set_title("latent path")
panels = {"true path": walked, "image of the latent path": image, "image of components": linear_image}
for ax, (title, points) in zip(axes[1:], panels.items(), strict=True):
    dots = ax.scatter(*points.T, c=robot_t[0], s=8)
    ax.set(title=title, xlabel="x", ylabel="y" if points is walked else "", aspect="equal")
fig.colorbar(dots, ax=axes[-1], label="time")
print(f"share of the variance of the true path: latent path {share:.3f}, principal components {linear_share:.3f}")

# %% [markdown]
# Left: the latent path, with an ellipse of one standard deviation for every frame. The other panels show the true path
# and the affine images of the two results, coloured by time. Both recover the loop, and both return to the same
# position when the robot returns to a place. As a map of the floor, the principal components are a strong baseline: the
# model does not assume that positions in metres are an affine function of the latent coordinates, which may be curved.
# The advantages of the model are that it needs no interpolation of the gaps and that it has uncertainty.

# %% [markdown]
# ## Genes in four experiments
#
# Spellman et al. (1998) measured the expression of all genes of yeast over the cell cycle, in four experiments that
# differ in the method of synchronising the cells. Each is a sequence with its own times, in minutes: every 7, 10 or 30,
# and irregular in one of them. There are thousands of outputs, 73 frames, and many gaps. We keep the 600 genes with the
# largest variance, to save time.

# %%
try:
    yeast = datasets.load_spellman(None, complete=False)
except (FileNotFoundError, ImportError):
    yeast = datasets.make_sequences(4, 60, (14, 24), noise=0.4, missing=0.06)
    print("the yeast data are not available: synthetic data are used instead")

together = np.concatenate(yeast.y)
seen_half = np.isfinite(together).mean(0) > 0.5
variance = np.where(seen_half, np.nanvar(np.where(seen_half, together, 0.0), 0), 0.0)
chosen = np.sort(np.argsort(-variance)[: 60 if smoke_test else 600])
genes_t, (genes_y, genes_truth, kept) = yeast.t, hide([part[:, chosen] for part in yeast.y])
genes = Sequences(genes_t, genes_y)
print(f"{yeast.description}\n{genes}, lengths {genes.lengths}")
model, guide, genes_posterior = train(genes, 8, 40, Matern32().fix("variance") + White(1e-2) + Bias(0.1), 150)
genes_imputed = genes_posterior.impute(fill=False)
calibration["genes"] = compare(genes_t, genes_y, genes_truth, genes_imputed)

# %% [markdown]
# Here every sequence has few frames, so interpolation in time performs poorly, and the common structure of the genes
# helps. If the yeast data are available, the next figure shows three genes of the cell cycle in the experiment with
# irregular times:

# %%
known = {"YPL256C": "CLN2, before division", "YBL003C": "HTA2, a histone", "YPR119W": "CLB2, late"}
columns = (
    [name for name, keep in zip((yeast.columns[i] for i in chosen), kept, strict=True) if keep] if yeast.columns else []
)
drawn = {columns.index(gene): text for gene, text in known.items() if gene in columns} or {0: "output 0", 1: "output 1"}
s = 1
rows = genes.times.slices()[s]
truth = np.where(np.isnan(genes_truth), np.concatenate(genes_y), genes_truth)  # hidden and observed together
fig, axes = plt.subplots(
    len(drawn), 1, figsize=(9, 1 + 2 * len(drawn)), layout="constrained", sharex=True, squeeze=False
)
for ax, (column, text) in zip(axes[:, 0], drawn.items(), strict=True):
    plot_reconstruction(genes_imputed.select(rows), column, ax, truth=truth[rows], seen=genes_y[s])
    ax.set(ylabel=text.split(",")[0], xlabel="")
axes[-1, 0].set_xlabel("time" if not yeast.columns else f"minutes, experiment {yeast.names[s]}")
for ax in axes[1:, 0]:
    ax.get_legend().remove()

# %% [markdown]
# Dots are all measured values; those in shaded regions were hidden from the model. The cells divide about twice during
# the experiment.

# %% [markdown]
# ## Are the intervals calibrated?
#
# We count how many of the hidden entries lie in their central 10 %, 20 %, …, 95 % intervals. Below the diagonal, the
# intervals are too narrow; above it, they are too wide.

# %%
fig, ax = plt.subplots(figsize=(4.8, 4.4), layout="constrained")
ax.plot([0, 1], [0, 1], color="0.7", lw=1)
for name, (levels, covered) in calibration.items():
    ax.plot(levels, covered, ".-", label=name)
ax.set(
    xlabel="probability of the interval",
    ylabel="share of hidden entries inside",
    xlim=(0, 1),
    ylim=(0, 1),
    aspect="equal",
)
_ = ax.legend(frameon=False)

# %% [markdown]
# Data that follow the model's assumptions should lie on the diagonal. For real data the curve tends to lie above the
# diagonal in the middle and to return to it at the end: the noise has heavier tails than a Gaussian and differs between
# outputs. So one $\beta$ for all outputs gives intervals that are too wide for most entries, and correct or slightly
# too narrow for outliers. By default, `VGPDS.from_data` gives each output its own noise variance. Whether this is
# better should be decided on entries hidden for this purpose, as it was for the tables in the README. What outputs have
# of their own is unknown in long gaps, so `impute` makes the intervals of gaps wider where other outputs of the frame
# were observed; `Posterior(widening=False)` has those of the model.

# %% [markdown]
# ## Dates and tables
#
# Times may be dates. They are converted to seconds since the earliest date, and predictions have them as `dates` again.
# A pandas table with a column of times, and optionally a column with the name of the sequence, can be read by
# `Sequences.from_frame`. A csv file needs no Python: `pyro-vgpds fit table.csv -o table.safetensors`; empty cells are
# missing values.

# %%
days = np.array(["2024-01-01", "2024-01-02", "2024-01-05", "2024-02-01"], dtype="datetime64[D]")
dated = Sequences(days, np.array([[1.0, 2.0], [np.nan, 2.5], [1.5, np.nan], [2.0, 3.0]]), columns=["a", "b"])
print(dated, np.datetime64(dated.time_origin, "D"), (dated.times.t / 86400).tolist())

# %% [markdown]
# ## What next
#
# - [VGPDS in Pyro](vgpds_in_pyro.ipynb): the model, the guide and the bound, step by step.
# - [Motion capture](motion_capture.ipynb): several sequences, and the reconstruction of half a body.
# - [Video](video.ipynb): frames of which half is hidden.
# - [Your own priors and guides](priors_and_guides.ipynb): what to change if the model's assumptions about the noise do
#   not hold.
# - [The eight scenarios of the original code](eight_scenarios.ipynb): which temporal kernel and mapping for which data.
#
# The same comparisons over several seeds are `pyro-vgpds experiment robot` and `pyro-vgpds experiment yeast`.
