# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Video: every pixel is an output
#
# A grey video of $N$ frames with $H \times W$ pixels is a time series with $D = HW$ outputs: tens of thousands, for
# about a hundred frames. The model has no knowledge of pixels or images. It sees $D$ numbers that change over time,
# finds the few things that move, and reconstructs a frame of which half is hidden. With a periodic kernel it continues
# a clip beyond its end.
#
# #### Summary
#
# - A training step costs the same for a thousand pixels and for a million: with one noise variance for all pixels, the
#   bound depends on $Y$ only through $Y Y^\top$.
# - `Posterior.reconstruct(t, y, sequence=0)` fills in hidden pixels from the observed ones and from the frames before
#   and after. `trust` limits the influence of thousands of correlated pixels; it is chosen on held-out frames.
# - `Posterior.forecast(t)` predicts frames from their times only, between the frames of a clip or beyond its end.
# - Baselines: the nearest frame, linear interpolation in time for each pixel, and for periodic clips, the last cycle.
#
# #### Contents
#
# - [The clip](#The-clip)
# - [The cost does not depend on the number of outputs](#The-cost-does-not-depend-on-the-number-of-outputs)
# - [Training](#Training)
# - [Half of a frame](#Half-of-a-frame)
# - [How much to trust the pixels](#How-much-to-trust-the-pixels)
# - [Beyond the end of a clip](#Beyond-the-end-of-a-clip)
# - [What next](#What-next)

# %%
import os
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, Solver, baselines, datasets, fit, metrics
from pyro_vgpds.kernels import RBF, Bias, Matern32, Periodic, White
from pyro_vgpds.plotting import animate_frames, embed_animation, plot_forecast, plot_frames, plot_plane, plot_relevance

smoke_test = "CI" in os.environ
assert pyro.__version__.startswith("1.9")
pyro.set_rng_seed(0)
torch.set_num_threads(1)  # faster than several threads for problems of this size
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## The clip
#
# 'Miss America' is an old test clip for video coding: a woman talks in front of a dark wall. Of its 150 frames, four
# are for training, the next four for testing, and so on, as in the paper. The upper half of the test frames is hidden.
# If the clip is not available, a synthetic pendulum is used instead.

# %%
try:
    video = datasets.load_missa()
except FileNotFoundError:
    video = datasets.make_pendulum_video(120, 32, 32, period=24.0)
    number = np.arange(len(video.t[0]))
    upper = np.repeat(np.arange(video.shape[0]) < video.shape[0] // 2, video.shape[1])
    video = replace(video, train=number[number % 8 < 4], test=number[number % 8 >= 4], hidden=upper)
    print("the clip is not available: a synthetic one is used instead")

if smoke_test:
    video = replace(video, train=video.train[:16], test=video.test[video.test < video.train[15]])

train_data = video.training()
test_t, seen = video.partial()
truth = video.truth()  # the hidden pixels, NaN elsewhere
print(video.description)
print(f"training: {train_data}")
print(f"test: {len(test_t)} frames, {100 * video.hidden.mean():.0f} % of the pixels hidden")

# %% [markdown]
# ## The cost does not depend on the number of outputs
#
# With $\psi_0, \Psi_1, \Psi_2$ the expectations of the mapping's kernel under $q(X)$, the outputs enter the bound as
#
# $$\hat{\mathcal{F}} = \frac{D}{2}\Big(N \log\frac{\beta}{2\pi} + \log\frac{|K_{MM}|}{|\beta\Psi_2 + K_{MM}|}
# - \beta\psi_0 + \beta\, \mathrm{tr}(K_{MM}^{-1}\Psi_2)\Big) - \frac{\beta}{2} \mathrm{tr}(Y Y^\top)
# + \frac{\beta^2}{2} \mathrm{tr}\big(\Psi_1 (\beta \Psi_2 + K_{MM})^{-1} \Psi_1^\top\, Y Y^\top\big) .$$
#
# $Y Y^\top$ is $N \times N$ and constant, so it and a square factor of it are computed once. After this, $D$ is only a
# factor in the formula. The same holds for each pattern of missing entries. This needs one noise variance for all
# outputs, `noise_per_output=False`: by default, every output has one of its own, and a step then costs more for more
# outputs. Pixels also have the same unit, so they are not scaled: dark pixels that hardly vary would count too much.


# %%
def time_of_a_step(number):
    """Milliseconds for a model of the given number of random pixels."""
    some = Sequences(train_data.times.t, pixels[:, torch.randperm(pixels.shape[1])[:number]])
    pyro.clear_param_store()
    model = VGPDS.from_data(some, 10, min(50, some.num_frames), noise_per_output=False, scale_outputs=False)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, some, 3 if smoke_test else 20, tolerance=0.0, progress=False)
    return 1000 * result.seconds / result.num_steps


pixels = train_data.read()
time_of_a_step(100)  # warm-up
for number in (100, 1000, pixels.shape[1]):
    print(f"{number:6d} pixels: {time_of_a_step(number):4.0f} ms per step")

# %% [markdown]
# ## Training
#
# Faces move smoothly, but their motion changes after some time. We use a Matérn 3/2 kernel, as in the paper,
#
# $$k_x(t_i, t_j) = \Big(1 + \frac{\sqrt 3 |t_i - t_j|}{l_t}\Big) e^{-\sqrt 3 |t_i - t_j| / l_t}
# + \sigma_w^2\, \delta_{ij} + \sigma_b^2 ,$$
#
# with separate parameters for each latent dimension: the nod of the head and the blink of an eye have different speeds.
# There are as many inducing inputs as frames, which costs little for this number of frames.


# %%
def train(data, latent_dim, num_inducing, kernel, num_steps, per_dimension=False):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    sizes = latent_dim, min(num_inducing, data.num_frames)
    model = VGPDS.from_data(data, *sizes, kernel, noise_per_output=False, scale_outputs=False)
    if per_dimension:
        smooth, white, bias = model.temporal
        for part, name in ((smooth, "lengthscale"), (white, "variance"), (bias, "variance")):
            part.set(name, getattr(part, name).detach().expand(latent_dim))
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, 5 if smoke_test else num_steps, progress=False)
    return model, guide, result, Posterior(model, guide, data)


def matern():
    return Matern32().fix("variance") + White(1e-2) + Bias(0.1)


latent_dim = 5 if smoke_test else 25
model, guide, result, posterior = train(train_data, latent_dim, 85, matern(), 300, per_dimension=True)
print(result)

# %%
relevance = model.relevance(guide, train_data)
leading = relevance.value.argsort(descending=True)[:2].tolist()
fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
plot_relevance(relevance, ax=axes[0])
axes[0].tick_params(axis="x", labelsize=6)
_ = plot_plane(posterior, leading, axes[1])

# %% [markdown]
# Left: the relevance of each latent dimension. Right: the path of the clip in the plane of the two leading dimensions.
# Every dot is a frame; the lines are interrupted at the test frames.

# %% [markdown]
# ## Half of a frame
#
# The test frames belong to the same clip, so their latent positions lie on the same path as those of the training
# frames before and after them: `sequence=0`. From the times only, the model interpolates this path. The observed pixels
# of the test frames provide more information:
#
# $$q(X, X_*) = \arg\max\ \mathcal{F}(Y, Y_*^p), \qquad
# p(Y_*^m \mid Y_*^p, Y) \approx \int p(Y_*^m \mid X_*)\, q(X_*)\, \mathrm{d}X_* .$$

# %%
solver = Solver(num_steps=10 if smoke_test else 200)
from_times = posterior.forecast(test_t, 0)
with_seen = posterior.reconstruct(test_t, seen, 0, solver=solver)

# %% [markdown]
# The baselines are: the mean frame; the training frame that is nearest in the observed half; the mean of the $k$
# nearest frames, with the best $k$ from 1 to 5 on the test data, as in the paper (in practice the best $k$ is not
# known); and linear interpolation in time of each hidden pixel.

# %%
t, frames = train_data.times.t.numpy(), pixels.numpy()
gappy = np.full_like(video.y[0], np.nan)
gappy[video.train], gappy[video.test] = frames, seen
used = np.sort(np.concatenate([video.train, video.test]))
lines = np.full_like(video.y[0], np.nan)
lines[used] = baselines.linear_interpolation(video.t[0][used], gappy[used]).numpy()
neighbours = [baselines.nearest_neighbour(frames, seen, k).numpy() for k in range(1, 6)]
guesses = {
    "VGPDS, times and observed pixels": with_seen.mean.numpy(),
    "VGPDS, times only": from_times.mean.numpy(),
    "nearest frame": neighbours[0],
    "nearest frames, best k": min(neighbours, key=lambda guess: metrics.mae(truth, guess)),
    "linear in time": lines[video.test],
    "mean frame": np.broadcast_to(frames.mean(0), seen.shape),
}


def table(truth, guesses):
    print("method".ljust(34) + "mean absolute error   mean squared error")
    for name, guess in guesses.items():
        print(f"{name:34s}{metrics.mae(truth, guess):19.2f}{metrics.mse(truth, guess):21.2f}")


table(truth, guesses)

# %% [markdown]
# ## How much to trust the pixels
#
# The observed pixels can make the result worse than the times only. The model assumes that the noise $\epsilon_{nd}$ of
# the pixels is independent. In a video it is not: the residuals are edges and shadows, which affect many pixels at
# once. Ten thousand pixels then contain much less information about $\mathbf{x}_n$ than ten thousand independent ones
# would, and the model trusts them too much. The argument `trust`, $\tau$, increases the noise variance of the observed
# pixels of new frames,
#
# $$y_{*nd} = f_d(\mathbf{x}_{*n}) + \epsilon_{*nd}, \qquad \epsilon_{*nd} \sim \mathcal{N}(0, \beta^{-1} / \tau),
# \qquad 0 < \tau \le 1 ,$$
#
# as if there were about $\tau D$ pixels. We choose $\tau$ on held-out training frames: a second model is trained only
# on the first two frames of each training block, and reconstructs the others.

# %%
position = np.zeros(len(video.train), dtype=int)  # of each training frame within its block
for i in range(1, len(position)):
    position[i] = position[i - 1] + 1 if video.train[i] == video.train[i - 1] + 1 else 0
out = position % 4 >= 2
inner = Sequences(t[~out], frames[~out])
*_, inner_posterior = train(inner, latent_dim, 85, matern(), 300, per_dimension=True)
hidden_out = np.where(video.hidden, frames[out], np.nan)
seen_out = np.where(video.hidden, np.nan, frames[out])
errors = {}
for trust in (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
    found = inner_posterior.reconstruct(t[out], seen_out, 0, trust=trust, solver=solver)
    errors[trust] = metrics.mae(hidden_out, found.mean)
    print(f"trust {trust:6g}: mean absolute error {errors[trust]:.3f} on {out.sum()} held-out training frames")
trust = min(errors, key=errors.get)
alone = metrics.mae(hidden_out, inner_posterior.forecast(t[out], 0).mean)
print(f"times only: {alone:.3f}; chosen: trust {trust:g}")

# %% [markdown]
# With a small `trust` the observed pixels only correct the prediction from the times. If the noise is independent, as
# in a synthetic clip, `trust=1` is right. On the test frames:

# %%
with_trust = posterior.reconstruct(test_t, seen, 0, trust=trust, solver=solver)
chosen = f"VGPDS, trust {trust:g}"
guesses = {chosen: with_trust.mean.numpy()} | guesses
table(truth, {name: guesses[name] for name in (chosen, *list(guesses)[1:3], "linear in time")})

# %%
height, width = video.shape
part = np.s_[:, : 3 * height // 4, width // 5 : 4 * width // 5]  # the region with most of the motion
shown = np.linspace(2, 0.8 * len(test_t), 4).round().astype(int)
labels = [f"frame {number:.0f}" for number in test_t]
films = {
    "truth": video.y[0][video.test],
    "observed": seen,
    "VGPDS": np.where(np.isnan(seen), guesses[chosen], seen),
    "nearest\nframe": guesses["nearest frame"],
    "linear\nin time": guesses["linear in time"],
}
films = {name: video.to_frames(rows)[part] for name, rows in films.items()}
axes = plt.subplots(len(films), 4, figsize=(6.2, 7), layout="constrained")[1]
_ = plot_frames(films, shown, axes, labels=labels)

# %% [markdown]
# Parts of the test frames, and the reconstruction by each method. The methods are close, so we also show the absolute
# error: black is zero, and all three methods have the same scale.

# %%
off = {name: np.abs(film - films["truth"]) for name, film in films.items() if name not in ("truth", "observed")}
limit = np.percentile(off["nearest\nframe"], 99.5)
axes = plt.subplots(len(off), 4, figsize=(6.2, 4.2), layout="constrained")[1]
_ = plot_frames({name: np.minimum(film, limit) for name, film in off.items()}, shown, axes, labels=labels)

# %% [markdown]
# Linear interpolation blends two frames, so it has two faint edges where something moves fast. The nearest frame has a
# sharp edge at the wrong position. The VGPDS moves the edge. Something that happens only in the hidden part and only
# between two training frames, such as a blink, is not contained in the data.

# %%
moving = {name: films[name][::2] for name in ("observed", "VGPDS", "truth")}
embed_animation(animate_frames(moving, labels=labels[::2]), fps=4, dpi=60, density=1)

# %% [markdown]
# Every other test frame: what the model got, what it made of it, and the truth.

# %% [markdown]
# ## Beyond the end of a clip
#
# With a smooth kernel, a forecast from the times only returns to the mean about one lengthscale after the end of the
# clip. Periodic motion can be continued. In this clip a mouse runs on a wheel (paninski-lab/lightning-pose, MIT
# licence). We train on the first sixty frames and forecast the following ones.

# %%
try:
    clip = datasets.load_clip("mouse")
except FileNotFoundError:
    clip = datasets.make_pendulum_video(100, 32, 32, period=15.0, seed=1)
    print("the clip is not available: a synthetic one is used instead")
first = 40 if smoke_test else 60
clip_t, clip_y = clip.t[0], clip.y[0]
clip_data, ahead = Sequences(clip_t[:first], clip_y[:first]), clip_t[first:]
period = baselines.estimate_period(clip_t[:first], clip_y[:first])
print(f"{clip.description}\nestimated period of the first {first} frames: {period:.2f} frames")

# %% [markdown]
# The kernel is a cycle with drift, the product of a periodic kernel and a slow RBF:
#
# $$k_x(t_i, t_j) = \exp\!\Big(-\frac{2 \sin^2(\pi (t_i - t_j)/p)}{l_t^2}\Big)\,
# \exp\!\Big(-\frac{(t_i - t_j)^2}{2 \ell^2}\Big) + \sigma_w^2\, \delta_{ij} + \sigma_b^2 .$$
#
# Its parameters can be trained or fixed. A period that is trained on four cycles can end a few per cent off, and some
# cycles later the phase is wrong. The bound also likes a short $\ell$, which explains the small differences between the
# cycles, but then the forecast forgets the cycle and returns to the mean frame, a blur. So we try two versions. In the
# first, the period starts at the value estimated from the training frames and $\ell$ at five periods, and both are
# trained. In the second, the cycle is fixed: the estimated period, $l_t = 1$, and $\ell$ of ten periods. Each version
# predicts the last cycle of the *training* frames from the frames before, and the better one is used.


# %%
def cycle_kernel(fixed):
    cycle, drift = Periodic(1.0, 1.0, period), RBF(1.0, (10.0 if fixed else 5.0) * period)
    parts = (cycle.fix(), drift.fix()) if fixed else (cycle.fix("variance"), drift.fix("variance"))
    return parts[0] * parts[1] + White(1e-2) + Bias(0.1)


inside = first - round(period)  # training frames before the last cycle
early = Sequences(clip_t[:inside], clip_y[:inside])
clip_dim, errors = 4 if smoke_test else 5, {}
for fixed in (False, True):
    *_, early_posterior = train(early, clip_dim, 60, cycle_kernel(fixed), 100)
    found = early_posterior.forecast(clip_t[inside:first])
    errors[fixed] = metrics.mse(clip_y[inside:first], found.mean)
    print(f"{'fixed' if fixed else 'trained'} cycle: mean squared error {errors[fixed]:.0f} on the last training cycle")
fixed = min(errors, key=errors.get)

# %%
clip_model, clip_guide, result, clip_posterior = train(clip_data, clip_dim, 60, cycle_kernel(fixed), 100)
forecast = clip_posterior.forecast(ahead)
print(result)
print(clip_model.temporal)

# %%
future = np.concatenate([clip_y[:first], np.full_like(clip_y[first:], np.nan)])
generated = {
    "VGPDS": forecast.mean.numpy(),
    "last cycle repeated": baselines.repeat_cycle(clip_t, future, period).numpy()[first:],
    "last frame": np.broadcast_to(clip_y[first - 1], clip_y[first:].shape),
    "mean frame": np.broadcast_to(clip_y[:first].mean(0), clip_y[first:].shape),
}
table(clip_y[first:], generated)

# %%
rows = {"truth": clip_y[first:], "VGPDS": generated["VGPDS"], "last cycle\nrepeated": generated["last cycle repeated"]}
shown = np.linspace(0, len(ahead) - 1, 6).round().astype(int)
_ = plot_frames(
    {name: clip.to_frames(film) for name, film in rows.items()}, shown, labels=[f"{number:.0f}" for number in ahead]
)

# %% [markdown]
# Forecasts after the end of the training frames. The forecast stays in phase with the truth, and keeps its contrast to
# the end. It is softer than a real frame where the cycles differ, such as at the paws: it is the mean of what can
# happen, which has the smallest squared error. The last cycle is as sharp as a frame, but wrong in places.

# %%
moving = {name.replace("\n", " "): clip.to_frames(film) for name, film in rows.items()}
embed_animation(animate_frames(moving, labels=[f"frame {number:.0f}" for number in ahead]), dpi=55, density=1)

# %%
relevance = clip_model.relevance(clip_guide, clip_data)
leading = relevance.value.argsort(descending=True)[:2].tolist()
pixel = int(clip_y[:first].std(0).argmax())
fig, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained", width_ratios=(1, 2))
plot_plane(clip_posterior, leading, axes[0])
plot_forecast(forecast, pixel, axes[1], history=(clip_t[:first], clip_y[:first]), truth=(ahead, clip_y[first:]))
axes[1].set(xlabel="frame", ylabel=f"brightness of pixel {pixel}")
covered = metrics.coverage(clip_y[first:], *forecast.interval(0.95))
print(f"{100 * covered:.1f} % of the hidden pixel values lie in their 95 % intervals")

# %% [markdown]
# Left: the latent path makes one loop per period. Right: the pixel with the largest variance, with 50 and 95 % bands.
# They widen as the cycle drifts.

# %% [markdown]
# ## What next
#
# - [VGPDS in Pyro](vgpds_in_pyro.ipynb): the model, the guide and the bound, step by step.
# - [Motion capture](motion_capture.ipynb): several sequences in one latent space.
# - [Your own priors and guides](priors_and_guides.ipynb): other kernels, other guides, other algorithms.
# - [Messy data](messy_data.ipynb): gaps, irregular times, and calibration of the uncertainty.
# - [The eight scenarios of the original code](eight_scenarios.ipynb): which temporal kernel and mapping for which data.
#
# The same comparisons over several seeds are `pyro-vgpds experiment missa` and `pyro-vgpds experiment periodic-video`.
# For your own videos use `datasets.load_video` or `pyro-vgpds fit clip.mp4`.
