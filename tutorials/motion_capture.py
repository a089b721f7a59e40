# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Motion capture: walks and runs
#
# A motion capture studio records the angles of a person's joints, thirty times a second. There are about sixty angles,
# and they move together: the phase of the step and the style of the gait (walk or run) determine nearly all of them. In
# this tutorial a *variational Gaussian process dynamical system* (VGPDS) finds these few numbers, reconstructs a walk
# in which a leg was not measured, and generates new motion.
#
# #### Summary
#
# - Recordings of different lengths are stored in one `Sequences` object. Each has its own latent path, and all share
#   one mapping from latent space to poses.
# - Temporal kernels are compared by the lower bound on the evidence, without a test set.
# - `static_dim` initialises some latent dimensions to one constant per sequence. Here they separate walks from runs.
# - `Posterior.reconstruct` fills in the hidden part of a new sequence, with uncertainty.
# - Lagged outputs and a `residual` kernel improve reconstructions if single frames are ambiguous and sequences
#   differ.
# - `Posterior.generate` continues a recording, and `pyro.condition` moves the model along a path that we choose.
#
# #### Contents
#
# - [The data](#The-data)
# - [Many sequences, one mapping](#Many-sequences,-one-mapping)
# - [Training, and the choice of a kernel](#Training,-and-the-choice-of-a-kernel)
# - [The latent space](#The-latent-space)
# - [A walk with hidden parts](#A-walk-with-hidden-parts)
# - [Calibration](#Calibration)
# - [Neighbouring frames as outputs](#Neighbouring-frames-as-outputs)
# - [New motion](#New-motion)
# - [What next](#What-next)

# %%
import os
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from pyro.infer import Predictive

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, Solver, baselines, datasets, fit, metrics
from pyro_vgpds.kernels import RBF, Bias, Periodic, White
from pyro_vgpds.plotting import animate_poses, embed_animation, plot_poses, plot_reconstruction, plot_relevance

smoke_test = "CI" in os.environ
assert pyro.__version__.startswith("1.9")
pyro.set_rng_seed(0)
torch.set_num_threads(1)  # faster than several threads for problems of this size
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## The data
#
# The paper's data are 31 walks and runs of one person, subject 35 of the CMU motion capture database
# ([mocap.cs.cmu.edu](http://mocap.cs.cmu.edu), created with funding from NSF EIA-0196217). Every frame has 59 features:
# 50 joint angles, and the motion and rotation of the hips. One more walk is the test sequence.
#
# The environment variable `PYRO_VGPDS_DATA` names the folder of the data, or `load_cmu35(download=True)` downloads
# them. If the data are not available, `make_gait` generates walks and runs of a simpler figure, and the rest of this
# tutorial uses those.

# %%
try:
    motion = datasets.load_cmu35()
    times, poses = list(motion.t), list(motion.y)
    test_t, test_y = motion.test_t, motion.test_y
    hidden_parts = {"right leg": motion.blocks["legs"], "upper body": motion.blocks["body"]}
    shown_angle, degrees = 7, 180 / np.pi  # features are in radians
    # hypot(y[50], y[51]) is the speed of the hips; it identifies the runs and is only used for colours
    is_run = np.array([np.hypot(y[:, 50], y[:, 51]).mean() > 1.3 for y in poses])

    def positions(y):
        """Joint positions (T, J, 3) from features (T, 59), with fixed location and direction."""
        channels = datasets.channels_from_features(y)
        channels[:, [0, 2, 4]] = 0.0
        return motion.skeleton.positions(channels)

    print(motion.description)
except (FileNotFoundError, ImportError):
    motion = datasets.make_gait(11, (70, 110), styles=("walk", "run"))
    *times, test_t = motion.t
    *poses, test_y = motion.y
    part = {
        side: [i for i, name in enumerate(motion.columns) if name.startswith(side)]
        for side in ("right_knee", "right_ankle", "right_toe", "left_elbow", "left_hand", "right_elbow", "right_hand")
    }
    hidden_parts = {
        "right leg": np.array(part["right_knee"] + part["right_ankle"] + part["right_toe"]),
        "upper body": np.array(part["left_elbow"] + part["left_hand"] + part["right_elbow"] + part["right_hand"]),
    }
    shown_angle, degrees = part["right_knee"][0], 1.0
    is_run = np.array([name == "run" for name in motion.names[:-1]])
    positions = motion.skeleton.positions
    print(f"the CMU data are not available: {motion.description}")

if smoke_test:
    few = np.concatenate([np.flatnonzero(~is_run)[:3], np.flatnonzero(is_run)[:3]])
    times, poses, is_run = [times[i][:30] for i in few], [poses[i][:30] for i in few], is_run[few]
    test_t, test_y = test_t[:24], test_y[:24]

walks, runs = np.flatnonzero(~is_run), np.flatnonzero(is_run)
print(f"{len(walks)} walks and {len(runs)} runs of {min(map(len, poses))} to {max(map(len, poses))} frames")
print(f"{sum(map(len, poses))} frames of {test_y.shape[1]} features; the test walk has {len(test_y)}")

# %%
fig, axes = plt.subplots(2, 1, figsize=(10, 4.6), layout="constrained")
for ax, name, s in zip(axes, ("a walk", "a run"), (walks[0], runs[0]), strict=True):
    shown = np.linspace(0, min(32, len(poses[s]) - 1), 9).round().astype(int)
    plot_poses(motion.skeleton, positions(poses[s]), shown, ax, view="side", labels=[f"{t:.2f}" for t in times[s]])
    ax.set_title(name, loc="left")

# %% [markdown]
# Poses of a walk and of a run, seen from the side. The number below each pose is its time (the CMU data have a time
# step of 0.05, as in the paper). The legs move in the same order in both. They differ in the size of the movements, in
# the arms and in the inclination of the trunk: one phase and one style.

# %% [markdown]
# ## Many sequences, one mapping
#
# Let $Y^{(s)}$ be sequence $s$, a matrix of $N_s$ frames by $D$ features at times $\mathbf{t}^{(s)}$. A latent path
# $\mathbf{x}(t) \in \mathbb{R}^Q$ has a Gaussian process prior in time. $D$ Gaussian process functions map it to the
# features:
#
# $$x_q(t) \sim \mathcal{GP}(0, k_x(t_i, t_j)), \qquad
# f_d(\mathbf{x}) \sim \mathcal{GP}(0, k_f(\mathbf{x}_i, \mathbf{x}_j)), \qquad
# y_{nd} = f_d(\mathbf{x}_n) + \epsilon_{nd}, \quad \epsilon_{nd} \sim \mathcal{N}(0, \beta^{-1}).$$
#
# The times of different recordings are unrelated, so their paths are independent, $p(X^{(1)}, \ldots, X^{(S)}) =
# \prod_s p(X^{(s)})$: the covariance $K_t$ of all frames is block-diagonal. The recordings share the mapping
# $\mathbf{f}$. Because of this, the same pose of two walks has the same position in latent space.
#
# `Sequences` takes lists with one entry per sequence. The features are angles, lengths and differences. By default, the
# model divides each feature by its standard deviation, and predictions stay in the units of the data. As in the paper,
# we use one noise variance $\beta^{-1}$ for all of them, `noise_per_output=False`.

# %%
data = Sequences(times, poses)
print(data)

# %% [markdown]
# ## Training, and the choice of a kernel
#
# What do we know about $x_q(t)$? It is smooth: the paper uses an RBF kernel. Steps also repeat, but not exactly. The
# product of a periodic kernel and a slow RBF describes this: a cycle of period $p$ whose shape drifts over a time
# $\ell$,
#
# $$k_x(t_i, t_j) = \exp\!\Big(-\frac{2 \sin^2(\pi (t_i - t_j)/p)}{l_t^2}\Big)\,
# \exp\!\Big(-\frac{(t_i - t_j)^2}{2 \ell^2}\Big) + \sigma_w^2\, \delta_{ij} + \sigma_b^2 .$$
#
# The white part lets single frames deviate, and the bias shifts a whole path. The variances of the main parts are fixed
# at 1, because the mapping's weights $w_q$ already determine the scale of the latent space. Periods and lengthscales
# that we do not set are initialised from the data.
#
# `static_dim=4` initialises four of the nine latent dimensions to one constant per sequence, with slow kernels.
# Differences between sequences, such as the style of the gait, then have their own dimensions from the start.

# %%
num_steps, latent_dim, num_inducing, static_dim = (5, 5, 20, 2) if smoke_test else (150, 9, 100, 4)
kernels = {
    "smooth": lambda: RBF().fix("variance") + White(1e-2) + Bias(0.1),
    "cycle": lambda: Periodic().fix("variance") * RBF(lengthscale=2.0).fix("variance") + White(1e-2) + Bias(0.1),
}
trained = {}
for name, make_kernel in kernels.items():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    sizes = {"latent_dim": latent_dim, "num_inducing": num_inducing, "static_dim": static_dim}
    model = VGPDS.from_data(data, temporal=make_kernel(), noise_per_output=False, **sizes)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, num_steps, progress=False)
    trained[name] = SimpleNamespace(model=model, guide=guide, bound=result.bound)
    print(f"{name:7s}{result}")

# %% [markdown]
# Both kernels were trained for the same number of steps from the same initial values. The bound $\mathcal{F} \le \log
# p(Y \mid \mathbf{t})$ depends only on the training data, and it penalises models that are too flexible. So we can
# choose the kernel by the bound, without the data that are hidden below.

# %%
best = max(trained, key=lambda name: trained[name].bound)
model, guide = trained[best].model, trained[best].guide
posterior = Posterior(model, guide, data)
print(f"higher bound: {best}, by {trained[best].bound - min(t.bound for t in trained.values()):.0f} nats")

# %% [markdown]
# ## The latent space
#
# The weights $w_q$ of the mapping's kernel $k_f$, together with the spread of the path in each direction, show which
# dimensions are relevant. We draw the most relevant static dimension (static dimensions come last) and the two most
# relevant moving ones.

# %%
relevance = model.relevance(guide, data)
moving = relevance.value[: latent_dim - static_dim].argsort(descending=True)[:2].tolist()
style = latent_dim - static_dim + int(relevance.value[latent_dim - static_dim :].argmax())
x = posterior.q.mean.numpy()

fig = plt.figure(figsize=(11, 4), layout="constrained")
grid = fig.add_gridspec(1, 3, width_ratios=(0.75, 1, 1.15))
plot_relevance(relevance, ax=fig.add_subplot(grid[0]))
side, space = fig.add_subplot(grid[1]), fig.add_subplot(grid[2], projection="3d")
for s, rows in enumerate(data.times.slices()):
    line = {"color": "C1" if is_run[s] else "C0", "lw": 0.8}
    label = {runs[0]: "runs", walks[0]: "walks"}.get(s)
    side.plot(x[rows, moving[0]], x[rows, moving[1]], label=label, **line)
    space.plot(x[rows, moving[0]], x[rows, moving[1]], x[rows, style], **line)
side.set(xlabel=f"latent {moving[0]}", ylabel=f"latent {moving[1]}", aspect="equal")
side.legend(frameon=False, fontsize="small", ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
space.set(xlabel=f"latent {moving[0]}", ylabel=f"latent {moving[1]}", zlabel=f"latent {style}")
space.set_box_aspect((1, 1, 1), zoom=0.9)

# %% [markdown]
# Left: a few dimensions carry the motion; pale bars are nearly inactive dimensions. Middle: the two moving dimensions
# are the phase of the step; every sequence follows a loop. Right: with the static dimension as height, walks form one
# bundle of loops and runs another. The model was not given these labels: the colours were added afterwards.

# %% [markdown]
# ## A walk with hidden parts
#
# The test walk is a new sequence. Its first half is completely observed. In its second half we hide the right leg, and
# in a second experiment the upper body. With $Y_*^p$ the observed and $Y_*^m$ the missing values,
#
# $$p(Y_*^m \mid Y_*^p, Y) = \int p(Y_*^m \mid F_*^m)\, p(F_*^m \mid X_*, Y_*^p, Y)\, p(X_* \mid Y_*^p, Y)\,
# \mathrm{d}F_*^m\, \mathrm{d}X_* ,$$
#
# where $p(X_* \mid Y_*^p, Y)$ is approximated by a Gaussian that maximises the same bound, now for the training data
# and the observed part of the new walk together. NaN marks hidden values.

# %%
half = len(test_y) // 2
solver = Solver(num_starts=2, num_steps=20 if smoke_test else 200)
partly, found = {}, {}
for name, block in hidden_parts.items():
    partly[name] = test_y.copy()
    partly[name][half:, block] = np.nan
    found[name] = posterior.reconstruct(test_t, partly[name], solver=solver)
    print(f"{name}: {np.isnan(partly[name]).sum()} of {test_y.size} values hidden")

# %% [markdown]
# The paper's baseline is the nearest neighbour: the training frame that is closest in the observed features provides
# the hidden ones. Distances are computed from the original features, or after division by their standard deviations.
# Probabilistic PCA is the linear alternative. The mean pose ignores the observed features. The errors are root mean
# squared errors.

# %%
scale = model.output_scale.numpy()  # standard deviations: PCA gets scaled features as well
guesses = {}
for name, seen in partly.items():
    linear = baselines.ppca([*times, test_t], [*(y / scale for y in poses), seen / scale], num_iterations=50)[-1]
    guesses[name] = {
        "VGPDS": found[name].mean.numpy(),
        "nearest neighbour": baselines.nearest_neighbour(poses, seen).numpy(),
        "nearest neighbour, scaled": baselines.nearest_neighbour(poses, seen, scaled=True).numpy(),
        "probabilistic PCA": linear.numpy() * scale,
        "mean pose": np.broadcast_to(np.concatenate(poses).mean(0), seen.shape),
    }

print("error in degrees".ljust(27) + "".join(name.rjust(12) for name in partly))
for method in guesses["right leg"]:
    row = method.ljust(27)
    for name, seen in partly.items():
        truth = np.where(np.isnan(seen), test_y, np.nan)
        row += f"{degrees * metrics.mse(truth, guesses[name][method]) ** 0.5:12.2f}"
    print(row)

# %% [markdown]
# The paper compares with the nearest neighbour, but not with a linear model. We include the linear model because it is
# hard to beat if most of a pose is observed and the hidden part moves little. For the leg, a single frame is ambiguous;
# [neighbouring frames](#Neighbouring-frames-as-outputs) reduce the error below.
#
# The next figure shows one angle of the hidden leg over time, in degrees. It was hidden in the shaded region.


# %%
def in_degrees(prediction):
    """The parts of a prediction that are drawn, in degrees."""
    return SimpleNamespace(
        t=prediction.t,
        mean=degrees * prediction.mean,
        interval=lambda probability: [degrees * end for end in prediction.interval(probability)],
    )


fig, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
plot_reconstruction(
    in_degrees(found["right leg"]), shown_angle, ax, truth=degrees * test_y, seen=degrees * partly["right leg"],
    baseline=degrees * guesses["right leg"]["nearest neighbour"],
)  # fmt: skip
_ = ax.set_ylabel("right thigh, forwards (degrees)")

# %% [markdown]
# The reconstruction is smooth across the start of the hidden region, while the nearest neighbour (dashed) jumps from
# one training frame to the next. The next figure shows the poses.

# %%
shown = np.linspace(half + 1, len(test_y) - 1, 8).round().astype(int)
labels = [f"{t:.2f}" for t in test_t]
fig, axes = plt.subplots(2, 1, figsize=(10, 5.6), layout="constrained")
for ax, name in zip(axes, hidden_parts, strict=True):
    drawn = {
        "truth": positions(test_y),
        "VGPDS": positions(np.where(np.isnan(partly[name]), guesses[name]["VGPDS"], test_y)),
        "nearest neighbour": positions(guesses[name]["nearest neighbour"]),
    }
    plot_poses(motion.skeleton, drawn, shown, ax, view="side", labels=labels)
    ax.set_title(f"{name} hidden", loc="left", fontsize="medium")

# %% [markdown]
# Poses from the second half of the test walk. The broad grey figure is the truth, blue is the VGPDS, and orange is the
# nearest neighbour. Both methods had to find the hidden part. The same in motion, with the upper body hidden:

# %%
second_half = {name: places[half:] for name, places in drawn.items()}
embed_animation(animate_poses(motion.skeleton, second_half, view="side", fps=12))

# %% [markdown]
# ## Calibration
#
# A prediction also has intervals. If they are calibrated, 95 per cent of the hidden values lie in their 95 per cent
# intervals. The model assumes that the noise of the features is independent and has one variance. For the joints of a
# body this is not true: the residuals are correlated between features and between frames. So the model overestimates
# how much sixty features tell about the path. A larger noise variance for prediction corrects this in part. We multiply
# the sum of the trained noise and the residual variance by 3. This factor was chosen on held-out training sequences
# (`pyro_vgpds.experiments.cmu35`), not here, and for the error of the mean, not for the intervals. The intervals can
# therefore become too wide.

# %%
noise_variance = 3.0 * (posterior.noise_variance + posterior.residual_variance())
wider = Posterior(model, guide, data, noise_variance=noise_variance)
for name, seen in partly.items():
    truth = np.where(np.isnan(seen), test_y, np.nan)
    again = wider.reconstruct(test_t, seen, solver=solver)
    for label, prediction in (("trained noise", found[name]), ("larger noise", again)):
        covered = [100 * metrics.coverage(truth, *prediction.interval(level)) for level in (0.5, 0.8, 0.95)]
        error = degrees * metrics.mse(truth, prediction.mean) ** 0.5
        print(
            f"{name}, {label}: {covered[0]:.0f}, {covered[1]:.0f} and {covered[2]:.0f} % of the hidden values lie in "
            f"the 50, 80 and 95 % intervals; error {error:.2f} degrees"
        )

# %% [markdown]
# ## Neighbouring frames as outputs
#
# A single frame is ambiguous: when the legs pass each other, a pose does not tell which of them moves forward.
# Recordings also differ: in one recording, a knee may bend a little more than the mapping predicts, in all frames. Two
# additions help, and neither changes the model.
#
# - `data.lagged([-4, 4])` adds the outputs of the fourth frame before and the fourth frame after as outputs of a frame.
#   A model of these data takes and predicts only the original outputs. A value that is hidden in one frame is hidden in
#   the frames that contain it as well.
# - `Posterior(..., residual=Bias() + White())` treats half of the noise variance as an offset that is constant over a
#   sequence. The residual of the leg in the first half is carried over to the second half.
#
# Lags, kernel and the factor on the noise were chosen on held-out training sequences. The linear model also gets the
# neighbouring frames.

# %%
lagged_data = data.lagged([-4, 4])
print(f"{lagged_data}; {lagged_data.num_base_outputs} of the outputs are predicted")
pyro.set_rng_seed(0)
kernel = RBF().fix("variance") + White(1e-2) + Bias(0.1)
lag_model = VGPDS.from_data(lagged_data, temporal=kernel, noise_per_output=False, **sizes)
lag_guide = AutoOpperArchambeau(lag_model)
print(fit(lag_model, lag_guide, lagged_data, num_steps, progress=False))
lag_posterior = Posterior(lag_model, lag_guide, lagged_data)
noise_variance = 2.0 * (lag_posterior.noise_variance + lag_posterior.residual_variance())
with_offset = Posterior(lag_model, lag_guide, lagged_data, noise_variance=noise_variance, residual=Bias() + White())

for name, seen in partly.items():
    truth = np.where(np.isnan(seen), test_y, np.nan)
    again = with_offset.reconstruct(test_t, seen, solver=solver)
    everything = Sequences([*times, test_t], [y / scale for y in (*poses, seen)]).lagged(lagged_data.lags)
    linear = baselines.ppca(everything, num_iterations=50)[-1][:, : len(scale)].numpy() * scale
    versions = {
        "VGPDS": found[name].mean,
        "with neighbouring frames": again.with_noise(False).mean,
        "with neighbouring frames and offset": again.mean,
        "probabilistic PCA with neighbouring frames": linear,
    }
    for method, guess in versions.items():
        error = degrees * metrics.mse(truth, guess) ** 0.5
        print(f"{name}, {method}: {error:.2f} degrees")

# %% [markdown]
# A prediction without noise has no offset, so `with_noise(False)` shows the effect of the neighbouring frames alone.
# One walk is little evidence. For all training sequences, each held out once, see `pyro-vgpds experiment cmu35`.

# %% [markdown]
# ## New motion
#
# *Continue a recording.* Given only times after the end of a walk and of a run, $q(X_*)$ is the Gaussian process
# prediction from the latent path so far. Every sample has its own path and its own function. `include_noise=False`
# samples the function without the noise of the frames.

# %%
ahead = np.arange(1, 13 if smoke_test else 41)
fig, axes = plt.subplots(3, 1, figsize=(10, 6.6), layout="constrained")
pyro.set_rng_seed(0)
for ax, (name, s) in zip(axes, (("walk", walks[0]), ("walk, second sample", walks[0]), ("run", runs[0])), strict=True):
    step = times[s][1] - times[s][0]
    new_t = times[s][-1] + step * ahead
    draw = posterior.generate(new_t, 1, sequence=int(s), include_noise=False)[0].numpy()
    shown = np.linspace(0, len(ahead) - 1, 9).round().astype(int)
    plot_poses(motion.skeleton, positions(draw), shown, ax, view="side", labels=[f"{t:.2f}" for t in new_t])
    ax.set_title(f"{name}, after its end at {times[s][-1]:.2f}", loc="left", fontsize="medium")

# %% [markdown]
# Samples that continue a walk (two samples) and a run. They start where the recording ends and continue in its style.
# The further ahead, the more the samples differ, and a few poses are unnatural: far ahead, the path returns to the
# prior, which does not contain the loop.

# %% [markdown]
# *Choose the latent path.* `posterior.as_model` is a Pyro model of times with sites `x` and `y`, so all of Pyro works
# with it. We construct a path: once around the mean loop of the walks, then over to the mean loop of the runs, and on.
# We condition the site `x` on this path. No recording changes from walking to running.


# %%
def mean_loop(which, phase, width=0.3):
    """Mean latent positions (len(phase), Q) of the given sequences near each phase of the step."""
    rows = np.concatenate([np.arange(len(x))[data.times.slices()[s]] for s in which])
    angle = np.arctan2(x[rows, moving[1]], x[rows, moving[0]])
    weight = np.exp((np.cos(phase[:, None] - angle) - 1) / width**2)
    return weight @ x[rows] / weight.sum(1, keepdims=True)


path = x[data.times.slices()[walks[0]]]
angles = np.unwrap(np.arctan2(path[:, moving[1]], path[:, moving[0]]))
turn = 2 * np.pi * np.sign(angles[-1] - angles[0])  # the direction of the walks
cycles = np.linspace(0, 3, 13 if smoke_test else 73)
share = np.clip(cycles - 1, 0, 1)[:, None]  # weight of the run: 0, then increasing, then 1
blend = (1 - share) * mean_loop(walks, turn * cycles) + share * mean_loop(runs, turn * cycles)
conditioned = pyro.condition(posterior.as_model(include_noise=False), data={"x": torch.as_tensor(blend)})
made = Predictive(conditioned, num_samples=1)(torch.as_tensor(cycles))["y"][0].numpy()

fig, axes = plt.subplots(2, 1, figsize=(10, 5), layout="constrained")
for ax, first in zip(axes, (0, len(made) // 2), strict=True):
    shown = first + np.linspace(0, len(made) // 2, 9).round().astype(int)
    texts = [f"{100 * s:.0f} % run" for s in share[:, 0]]
    plot_poses(motion.skeleton, positions(made), shown, ax, view="side", labels=texts)

# %% [markdown]
# A gait that was never recorded: three steps of both legs in which a walk (above) becomes a run (below). As the style
# dimension moves from one bundle of loops to the other, the arms are lifted, the knees bend more and the trunk leans
# forward. There are no data between the bundles, so the poses there are only the model's interpolation.

# %%
embed_animation(animate_poses(motion.skeleton, {"from walk to run": positions(made)}, view="side", fps=15), fps=15)

# %% [markdown]
# ## What next
#
# - [VGPDS in Pyro](vgpds_in_pyro.ipynb): the model, the guide and the bound, step by step.
# - [Video](video.ipynb): the same model with tens of thousands of pixels as outputs.
# - [Your own priors and guides](priors_and_guides.ipynb): other priors, guides and algorithms for this model.
# - [Messy data](messy_data.ipynb): gaps, irregular times, and calibration of the uncertainty.
# - [The eight scenarios of the original code](eight_scenarios.ipynb): which temporal kernel and mapping for which data.
#
# `pyro-vgpds experiment cmu35` computes the paper's table with several seeds and folds.
