# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Motion capture: walks and runs
#
# A motion capture studio records the angles of a person's joints, thirty times a second. There are about sixty of
# them, and they move together: whoever knows the phase of the step and whether the person walks or runs knows nearly
# all of them. In this tutorial a *variational Gaussian process dynamical system* (VGPDS) finds those few numbers,
# completes a walk in which a leg was not measured, and makes up new movement.
#
# #### Summary
#
# - Many recordings of unequal length are one `Sequences` object: each has a latent path of its own, and all share one
#   mapping from latent space to poses.
# - Kernels of time are compared by the lower bound on the evidence, without a test set.
# - `static_dim` lets some latent dimensions start as constants of a sequence: here they tell walks from runs.
# - `Posterior.reconstruct` fills in what is hidden of a new sequence, with its uncertainty.
# - `lagged` outputs and a `residual` kernel make better reconstructions where single frames are ambiguous and people
#   differ.
# - `Posterior.generate` goes on with a recording, and `pyro.condition` drives the model along a path of our own.
#
# #### Contents
#
# - [The data](#The-data)
# - [Many sequences, one mapping](#Many-sequences,-one-mapping)
# - [Training, and the choice of a kernel](#Training,-and-the-choice-of-a-kernel)
# - [The latent space](#The-latent-space)
# - [A walk with hidden parts](#A-walk-with-hidden-parts)
# - [How sure is it?](#How-sure-is-it?)
# - [Frames that see their neighbours](#Frames-that-see-their-neighbours)
# - [New movement](#New-movement)
# - [What next](#What-next)

# %%
import os
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from pyro.infer import Predictive

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    Posterior,
    Sequences,
    Solver,
    baselines,
    datasets,
    fit,
    lagged,
    metrics,
)
from pyro_vgpds.kernels import RBF, Bias, Periodic, White
from pyro_vgpds.plotting import plot_poses, plot_reconstruction, plot_relevance

smoke_test = "CI" in os.environ
assert pyro.__version__.startswith("1.9")
pyro.set_rng_seed(0)
torch.set_num_threads(1)  # faster than many, for problems of this size
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## The data
#
# The paper's data are 31 walks and runs of one person, subject 35 of the CMU motion capture database
# ([mocap.cs.cmu.edu](http://mocap.cs.cmu.edu), created with funding from NSF EIA-0196217). Every frame has 59
# features: 50 angles of joints, and how the hips move and turn. One more walk is kept for the test.
#
# The data are found through the variable `PYRO_VGPDS_DATA`, or fetched by `load_cmu35(download=True)`. Where they are
# not at hand, `make_gait` makes up walks and runs of a simpler figure, and everything below runs on those.

# %%
try:
    motion = datasets.load_cmu35()
    times, poses = list(motion.t), list(motion.y)
    test_t, test_y = motion.test_t, motion.test_y
    hidden_parts = {"right leg": motion.blocks["legs"], "upper body": motion.blocks["body"]}
    shown_angle, degrees = 7, 180 / np.pi  # features are in radians
    # the hips move by hypot(y[50], y[51]) from frame to frame; this tells the runs, and is only used for colours
    is_run = np.array([np.hypot(y[:, 50], y[:, 51]).mean() > 1.3 for y in poses])

    def positions(y):
        """Joints (T, J, 3) of features (T, 59), walking on the spot and facing one way."""
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
    print(f"the CMU data are not at hand: {motion.description}")

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
# Poses of a walk and of a run, from the side; below each stands its time (that of the CMU data runs by 0.05 a frame,
# as in the paper). The two have the same order of leg
# movements and differ in their size, in the arms and in the lean of the trunk: one phase and one style.

# %% [markdown]
# ## Many sequences, one mapping
#
# Write $Y^{(s)}$ for sequence $s$, a matrix of $N_s$ frames by $D$ features at times $\mathbf{t}^{(s)}$. A latent
# path $\mathbf{x}(t) \in \mathbb{R}^Q$ with a Gaussian process prior in time goes through $D$ Gaussian process
# functions:
#
# $$x_q(t) \sim \mathcal{GP}(0, k_x(t_i, t_j)), \qquad
# f_d(\mathbf{x}) \sim \mathcal{GP}(0, k_f(\mathbf{x}_i, \mathbf{x}_j)), \qquad
# y_{nd} = f_d(\mathbf{x}_n) + \epsilon_{nd}, \quad \epsilon_{nd} \sim \mathcal{N}(0, \beta^{-1}).$$
#
# Two recordings share no clock, so their paths are independent, $p(X^{(1)}, \ldots, X^{(S)}) = \prod_s p(X^{(s)})$:
# the covariance $K_t$ of all frames is block-diagonal. They do share the mapping $\mathbf{f}$, and that is what puts
# the same pose of two walks at the same place of the latent space.
#
# `Sequences` takes lists with one entry for each sequence. We divide the features by their standard deviations, as
# they are angles, lengths and differences, and the model has one noise $\beta^{-1}$ for all.

# %%
scale = np.concatenate(poses).std(0)
scale[scale < 1e-9] = 1.0  # features that never change
data = Sequences(times, [y / scale for y in poses])
print(data)

# %% [markdown]
# ## Training, and the choice of a kernel
#
# What do we know of $x_q(t)$? That it is smooth: the paper takes an RBF kernel. But steps also repeat, if not
# exactly. A periodic kernel times a slow RBF says just that: a cycle of period $p$ whose shape drifts over a time
# $\ell$,
#
# $$k_x(t_i, t_j) = \exp\!\Big(-\frac{2 \sin^2(\pi (t_i - t_j)/p)}{l_t^2}\Big)\,
# \exp\!\Big(-\frac{(t_i - t_j)^2}{2 \ell^2}\Big) + \sigma_w^2\, \delta_{ij} + \sigma_b^2 .$$
#
# A white part lets single frames be odd, and a bias lets a whole path be shifted. The variances of the main parts are
# held at 1, since stretching the latent space is the business of the mapping's weights $w_q$. Periods and
# lengthscales that we leave open are started from the data.
#
# `static_dim=4` starts four of the nine latent dimensions as constants of each sequence, with slow kernels. What sets
# sequences apart, such as the style of a gait, has a place of its own from the beginning.

# %%
num_steps, latent_dim, num_inducing, static_dim = (5, 5, 20, 2) if smoke_test else (150, 9, 100, 4)
solver = Solver(num_starts=2, num_steps=20 if smoke_test else 200)  # of reconstructions
kernels = {
    "smooth": lambda: RBF().fix("variance") + White(1e-2) + Bias(0.1),
    "cycle": lambda: Periodic().fix("variance") * RBF(lengthscale=2.0).fix("variance") + White(1e-2) + Bias(0.1),
}
trained = {}
for name, make_kernel in kernels.items():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, latent_dim, num_inducing, make_kernel(), static_dim=static_dim)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, num_steps, progress=False)
    trained[name] = SimpleNamespace(model=model, guide=guide, bound=result.bound)
    print(f"{name:7s}{result}")

# %% [markdown]
# Both kernels were trained for the same number of steps from the same start. The bound
# $\mathcal{F} \le \log p(Y \mid \mathbf{t})$ is a number about the training data alone, and it already pays for what
# is too flexible; so it may choose, and nothing that is hidden below has a say.

# %%
best = max(trained, key=lambda name: trained[name].bound)
model, guide = trained[best].model, trained[best].guide
posterior = Posterior(model, guide, data)
print(f"the higher bound: {best}, by {trained[best].bound - min(t.bound for t in trained.values()):.0f} nats")

# %% [markdown]
# ## The latent space
#
# The weights $w_q$ of the mapping's kernel $k_f$, together with the spread of the path in each direction, say which
# dimensions matter. We draw the most relevant static one (dimensions that start static come last) and the two most
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
# Left: few dimensions carry the movement; those drawn pale are nearly off. Middle: the two moving dimensions are the
# phase of the step; every sequence goes round a loop. Right: with the static dimension as height, walks are one
# bundle of loops and runs another. Nobody told the model which sequences are runs: the colours were put on
# afterwards.

# %% [markdown]
# ## A walk with hidden parts
#
# The test walk is a new sequence. Its first half is seen whole; in its second half we hide the right leg, and in
# another experiment the upper body. With $Y_*^p$ what is present and $Y_*^m$ what is missing,
#
# $$p(Y_*^m \mid Y_*^p, Y) = \int p(Y_*^m \mid F_*^m)\, p(F_*^m \mid X_*, Y_*^p, Y)\, p(X_* \mid Y_*^p, Y)\,
# \mathrm{d}F_*^m\, \mathrm{d}X_* ,$$
#
# where $p(X_* \mid Y_*^p, Y)$ is approximated by a Gaussian that maximises the same bound, now on the training data
# and on what is seen of the new walk together. To hide a number is to write NaN.

# %%
half = len(test_y) // 2
partly, found = {}, {}
for name, block in hidden_parts.items():
    partly[name] = test_y.copy()
    partly[name][half:, block] = np.nan
    found[name] = posterior.reconstruct(test_t, partly[name] / scale, solver=solver)
    print(f"{name}: {np.isnan(partly[name]).sum()} of {test_y.size} numbers hidden")

# %% [markdown]
# The paper's baseline is the nearest neighbour: the training frame that is most alike in what is seen lends what is
# hidden. Distances are taken of the features as they are, or after division by their standard deviations.
# Probabilistic PCA is the linear rival, and the mean pose is what one would say knowing nothing. Errors are roots of
# mean squares.

# %%
guesses = {}
for name, seen in partly.items():
    linear = baselines.ppca([*times, test_t], [*(y / scale for y in poses), seen / scale], num_iterations=50)[-1]
    guesses[name] = {
        "VGPDS": found[name].mean.numpy() * scale,
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
# Beating the nearest neighbour is the paper's claim. The linear model is a rival that the paper does not have, and
# it should not be left out: where most of a pose is seen and what is hidden moves little, it is hard to beat.
#
# One angle of the hidden leg in time, in degrees. Where it is shaded it was hidden.


# %%
def in_degrees(prediction):
    """The parts of a prediction that are drawn, in the units of the reader."""
    to_degrees = torch.as_tensor(scale * degrees)
    return SimpleNamespace(
        t=prediction.t, mean=prediction.mean * to_degrees, stddev=prediction.stddev * to_degrees, columns=None
    )


fig, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
plot_reconstruction(
    in_degrees(found["right leg"]), shown_angle, ax, truth=degrees * test_y, seen=degrees * partly["right leg"],
    baseline=degrees * guesses["right leg"]["nearest neighbour"],
)  # fmt: skip
_ = ax.set_ylabel("right thigh, forwards (degrees)")

# %% [markdown]
# The reconstruction runs smoothly from what was seen into what was hidden, while the nearest neighbour (dashed) jumps
# from one training frame to the next. Now the poses:

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
# Poses of the second half of the test walk. The broad grey figure is the truth; blue is the VGPDS and orange the
# nearest neighbour, each of which had to find the hidden part.

# %% [markdown]
# ## How sure is it?
#
# A prediction also has intervals. If they are honest, 95 per cent of the hidden numbers lie in their 95 per cent
# intervals. The model takes the noise of the features to be independent and of one size. Joints of a body do not
# keep to that: what the latent path leaves unexplained is correlated from feature to feature and from frame to
# frame, so the model believes that sixty features say more of the path than they do. A larger noise for prediction
# repairs some of it. The factor 3 on the trained noise and the unexplained variance was chosen on training sequences
# held out (`pyro_vgpds.experiments.cmu35`), not here, and for the error of the mean, not for the intervals: those
# may well become too wide.

# %%
wide_noise = 3.0 * (posterior.noise_variance + posterior.residual_variance())
wider = Posterior(model, guide, data, noise_variance=wide_noise)
for name, seen in partly.items():
    truth = np.where(np.isnan(seen), test_y, np.nan) / scale
    again = wider.reconstruct(test_t, seen / scale, solver=solver)
    for label, prediction in (("trained noise", found[name]), ("wider noise", again)):
        covered = [100 * metrics.coverage(truth, *prediction.interval(level)) for level in (0.5, 0.8, 0.95)]
        error = degrees * metrics.mse(truth * scale, prediction.mean.numpy() * scale) ** 0.5
        print(
            f"{name}, {label}: {covered[0]:.0f}, {covered[1]:.0f} and {covered[2]:.0f} % of the truth in intervals of "
            f"50, 80 and 95 %; error {error:.2f} degrees"
        )

# %% [markdown]
# ## Frames that see their neighbours
#
# A single frame is ambiguous: when the legs pass each other, a pose does not tell which of them goes forward. And
# people differ: a knee may bend a little more than the mapping says in the whole of one recording. Two additions help
# with that, and neither changes the model.
#
# - `lagged(y, lags=[-4, 4])` makes the outputs of the fourth frame before and after outputs of a frame as well; what is
#   hidden in one frame is hidden in those that see it. The given features are the first columns.
# - `Posterior(..., residual=Bias() + White())` takes half of the noise's variance for an offset that stays over a
#   sequence. What was left unexplained of the leg in the first half is carried to the second.
#
# Lags, kernel and the factor on the noise were chosen on training sequences held out. The linear rival sees the
# neighbours, too.

# %%
lags = [-4, 4]
wide_poses = [lagged(y, lags) for y in poses]
wide_scale = np.tile(scale, 1 + len(lags))
wide_data = Sequences(times, [y / wide_scale for y in wide_poses])
pyro.set_rng_seed(0)
kernel = RBF().fix("variance") + White(1e-2) + Bias(0.1)
lag_model = VGPDS.from_data(wide_data, latent_dim, num_inducing, kernel, static_dim=static_dim)
lag_guide = AutoOpperArchambeau(lag_model)
print(fit(lag_model, lag_guide, wide_data, num_steps, progress=False))
lag_posterior = Posterior(lag_model, lag_guide, wide_data)
noise = 2.0 * (lag_posterior.noise_variance + lag_posterior.residual_variance())
carrying = Posterior(lag_model, lag_guide, wide_data, noise_variance=noise, residual=Bias() + White())

for name, seen in partly.items():
    truth = np.where(np.isnan(seen), test_y, np.nan)
    wide_seen = lagged(seen, lags) / wide_scale
    again = carrying.reconstruct(test_t, wide_seen, solver=solver)
    linear = baselines.ppca([*times, test_t], [*(y / wide_scale for y in wide_poses), wide_seen], num_iterations=50)[-1]
    versions = {
        "VGPDS": found[name].mean,
        "with neighbours": again.with_noise(False).mean[:, : len(scale)],
        "with neighbours and an offset": again.mean[:, : len(scale)],
        "probabilistic PCA with neighbours": linear[:, : len(scale)],
    }
    for method, guess in versions.items():
        error = degrees * metrics.mse(truth, guess.numpy() * scale) ** 0.5
        print(f"{name}, {method}: {error:.2f} degrees")

# %% [markdown]
# A prediction without noise has no offset, so `with_noise(False)` shows what the neighbours alone do. One walk says
# little; over all training sequences, each held out once, see `pyro-vgpds experiment cmu35`.

# %% [markdown]
# ## New movement
#
# *Go on with a recording.* Given only times after the end of a walk and of a run, $q(X_*)$ is the Gaussian process
# prediction from the latent path so far, and every draw has a path and a function of its own. `include_noise=False`
# draws the function without the noise of the frames.

# %%
ahead = np.arange(1, 13 if smoke_test else 41)
fig, axes = plt.subplots(3, 1, figsize=(10, 6.6), layout="constrained")
pyro.set_rng_seed(0)
for ax, (name, s) in zip(axes, (("walk", walks[0]), ("another draw", walks[0]), ("run", runs[0])), strict=True):
    step = times[s][1] - times[s][0]
    new_t = times[s][-1] + step * ahead
    draw = posterior.generate(new_t, 1, sequence=int(s), include_noise=False)[0].numpy() * scale
    shown = np.linspace(0, len(ahead) - 1, 9).round().astype(int)
    plot_poses(motion.skeleton, positions(draw), shown, ax, view="side", labels=[f"{t:.2f}" for t in new_t])
    ax.set_title(f"{name}, after its end at {times[s][-1]:.2f}", loc="left", fontsize="medium")

# %% [markdown]
# Draws of what comes after the end of a walk (two of them) and of a run. They begin where the recording ends and
# step on in its style; the further ahead, the more one draw differs from the next, and a pose now and then is one
# that nobody would take: with time the path forgets the loop, and the prior does not know it.

# %% [markdown]
# *Drive the model.* `posterior.as_model` is a Pyro model of times with sites `x` and `y`, so all of Pyro applies to
# it. We make a path by hand: once round the mean loop of the walks, over to the mean loop of the runs, and on; and we
# condition the site `x` on it. No recording goes from walking to running.


# %%
def mean_loop(which, phase, width=0.3):
    """Mean latent positions (len(phase), Q) of some sequences near each phase of the step."""
    rows = np.concatenate([np.arange(len(x))[data.times.slices()[s]] for s in which])
    angle = np.arctan2(x[rows, moving[1]], x[rows, moving[0]])
    weight = np.exp((np.cos(phase[:, None] - angle) - 1) / width**2)
    return weight @ x[rows] / weight.sum(1, keepdims=True)


path = x[data.times.slices()[walks[0]]]
angles = np.unwrap(np.arctan2(path[:, moving[1]], path[:, moving[0]]))
turn = 2 * np.pi * np.sign(angles[-1] - angles[0])  # the way round in which walks go
cycles = np.linspace(0, 3, 13 if smoke_test else 73)
share = np.clip(cycles - 1, 0, 1)[:, None]  # of running: none, then more, then all
blend = (1 - share) * mean_loop(walks, turn * cycles) + share * mean_loop(runs, turn * cycles)
conditioned = pyro.condition(posterior.as_model(include_noise=False), data={"x": torch.as_tensor(blend)})
made = Predictive(conditioned, num_samples=1)(torch.as_tensor(cycles))["y"][0].numpy() * scale

fig, axes = plt.subplots(2, 1, figsize=(10, 5), layout="constrained")
for ax, first in zip(axes, (0, len(made) // 2), strict=True):
    shown = first + np.linspace(0, len(made) // 2, 9).round().astype(int)
    texts = [f"{100 * s:.0f} % run" for s in share[:, 0]]
    plot_poses(motion.skeleton, positions(made), shown, ax, view="side", labels=texts)

# %% [markdown]
# A gait that nobody recorded: three steps of both legs in which a walk (above) becomes a run (below). Arms are
# lifted, knees bend more and the trunk leans forward as the style dimension moves from one bundle of loops to the
# other. Between the bundles there are no data, so there the poses are the model's interpolation and nothing more.

# %% [markdown]
# ## What next
#
# - [VGPDS in Pyro](vgpds_in_pyro.ipynb): the model, the guide and the bound, step by step.
# - [Video](video.ipynb): the same model with tens of thousands of pixels as outputs.
# - [Your own priors and guides](priors_and_guides.ipynb): other priors, guides and algorithms on this model.
# - [Messy data](messy_data.ipynb): gaps, uneven times, and how well the uncertainty is calibrated.
# - [The original's eight scenarios](eight_scenarios.ipynb): which dynamics and which mapping for which series.
#
# The paper's table with several seeds and folds is `pyro-vgpds experiment cmu35`.
