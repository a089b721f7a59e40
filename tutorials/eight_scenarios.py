# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # The eight scenarios of the original code
#
# A VGPDS has two kernels: the temporal kernel $k_x$ determines how the latent path moves, and the mapping kernel $k_f$
# determines how the outputs depend on it. The authors' demos cover eight combinations. This page has all of them, each
# on a small synthetic series: the kernels, the learned parameters, the number of active latent dimensions, and the
# forecast. At the end we check whether the bound, or the error on a held-out part of each series, would have selected
# the right kernels.
#
# If the model is new to you, read [VGPDS in Pyro](vgpds_in_pyro.ipynb) first.
#
# #### Contents
#
# - [The scenarios](#The-scenarios)
# - [Synthetic data](#Synthetic-data)
# - [Training](#Training)
# - [How to read the figures](#How-to-read-the-figures)
# - [Smooth motion, and frames without order](#Smooth-motion,-and-frames-without-order): scenarios 1 and 2
# - [Linear kernels](#Linear-kernels): scenarios 3 and 4
# - [Rough motion](#Rough-motion): scenario 5
# - [Cycles](#Cycles): scenarios 6 and 7
# - [Several sequences](#Several-sequences): scenario 8
# - [Model selection](#Model-selection)
# - [Summary](#Summary)

# %%
import math
import os
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, SparseGP, TemporalGP, fit
from pyro_vgpds.baselines import column_mean, last_value, repeat_cycle
from pyro_vgpds.kernels import ARDRBF, RBF, ARDLinear, Bias, Linear, Matern12, Periodic, White
from pyro_vgpds.metrics import mse
from pyro_vgpds.plotting import plot_forecast, plot_plane, plot_relevance

smoke_test = "CI" in os.environ
assert pyro.__version__.startswith("1.9")
pyro.set_rng_seed(0)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## The scenarios
#
# | | temporal kernel $k_x$ | mapping kernel $k_f$ | for |
# | --- | --- | --- | --- |
# | 1 | RBF | ARD RBF | smooth motion; the default on this page |
# | 2 | white noise | ARD RBF | frames without order: the model is then the Bayesian GP-LVM |
# | 3 | RBF | ARD linear | smooth signals, mixed linearly |
# | 4 | linear | ARD linear | trends: straight lines in time |
# | 5 | Matérn 1/2 | ARD RBF | rough motion |
# | 6 | periodic | ARD RBF | a cycle that repeats exactly |
# | 7 | periodic × RBF | ARD RBF | a cycle that changes slowly |
# | 8 | RBF, one path per sequence | ARD RBF | several recordings of the same process |
#
# As in the authors' demos, a small white noise and a bias are added to the temporal kernel. Variances that are
# redundant with the weights of the mapping are fixed at 1. Lengthscales and periods that are not given are initialised
# from the data and trained. The drift of scenario 7 starts at a lengthscale of two periods, so that the cycle explains
# the data and not the drift.


# %%
@dataclass
class Scenario:
    title: str
    truth: tuple[Any, Any]  # the kernels that the series is sampled with
    temporal: Any  # makes the temporal kernel to train
    mapping: Any = ARDRBF
    sequences: int = 1
    view: str = "time"  # how to plot the latent space


def around(kernel):
    """A temporal kernel with small white noise and a bias."""
    return kernel + White(1e-3) + Bias(0.1)


curved = ARDRBF(1.0, torch.tensor([0.25, 0.15]))
flat = ARDLinear(torch.tensor([0.5, 0.3]))
scenarios = [
    Scenario("1  smooth: RBF, the default", (RBF(1.0, 0.8), curved), lambda: around(RBF().fix("variance"))),
    Scenario("2  no dynamics: white noise", (White(1.0), curved), lambda: White(1.0).fix(), view="points"),
    Scenario(
        "3  linear mapping",
        (RBF(1.0, 0.8), flat),
        lambda: around(RBF().fix("variance")),
        lambda: ARDLinear() + Bias(0.1),
    ),
    Scenario(
        "4  both linear", (Linear(0.1) + Bias(0.5), flat), lambda: around(Linear(0.1)), lambda: ARDLinear() + Bias(0.1)
    ),
    Scenario("5  rough: Matérn 1/2", (Matern12(1.0, 2.0), curved), lambda: around(Matern12().fix("variance"))),
    Scenario("6  periodic", (Periodic(1.0, 0.8, 2.5), curved), lambda: around(Periodic().fix("variance"))),
    Scenario(
        "7  periodic with drift",
        (Periodic(1.0, 0.8, 2.5) * RBF(1.0, 6.0), curved),
        lambda: around(Periodic().fix("variance") * RBF(1.0, 5.0).fix("variance")),
    ),
    Scenario(
        "8  independent sequences",
        (RBF(1.0, 0.8), curved),
        lambda: around(RBF().fix("variance")),
        sequences=4,
        view="plane",
    ),
]

# %% [markdown]
# ## Synthetic data
#
# Each series is a sample from the model with the true kernels: a path from `TemporalGP`, then outputs from `SparseGP`,
# which samples from the exact GP. All series have two latent dimensions, twelve outputs and noise with a standard
# deviation of 0.05. The last part of the series (of the first sequence, if there are several) is held out.

# %%
num_frames, num_ahead, num_outputs, noise = (24, 6, 6, 0.05) if smoke_test else (100, 25, 12, 0.05)
step = 10.0 / num_frames  # between two frames


def make_series(scenario):
    """Lists of complete times and outputs, one entry per sequence."""
    length = num_frames // scenario.sequences if scenario.sequences > 1 else num_frames
    lengths = [length + num_ahead] + [length] * (scenario.sequences - 1)
    t = [step * torch.arange(n) for n in lengths]
    x = [TemporalGP(scenario.truth[0](), part, latent_dim=2).sample() for part in t]
    likelihood = SparseGP(
        torch.cat(x),
        scenario.truth[1](),
        inducing=torch.zeros(1, 2),
        noise=torch.tensor(noise**2),
        mean=torch.zeros(num_outputs),
    )
    return t, list(likelihood.sample().split(lengths))


with torch.no_grad():
    series = [make_series(scenario) for scenario in scenarios]


# %% [markdown]
# ## Training
#
# The call is the same for all scenarios, with five latent dimensions initially. We train the suited model, and for
# comparison the default one (that of scenario 1), to see how much the choice matters.


# %%
def train(t, y, temporal, mapping):
    pyro.clear_param_store()
    pyro.set_rng_seed(1)
    data = Sequences([t[0][:-num_ahead], *t[1:]], [y[0][:-num_ahead], *y[1:]])
    latent_dim, num_inducing = (3, 10) if smoke_test else (5, 30)
    model = VGPDS.from_data(data, latent_dim, num_inducing, temporal(), mapping(), static_dim=0)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=5 if smoke_test else 300, progress=False)
    return model, Posterior(model, guide, data), model.relevance(guide, data)


default = scenarios[0]
suited = [train(t, y, s.temporal, s.mapping) for s, (t, y) in zip(scenarios, series, strict=True)]
plain = [train(t, y, default.temporal, default.mapping) for t, y in series]
for scenario, (model, _, _) in zip(scenarios, suited, strict=True):
    print(f"{scenario.title:28s}{model.temporal}")


# %% [markdown]
# ## How to read the figures
#
# Each scenario has a row of three plots.
#
# - Left: one output, with the observed values (black), the fit (orange), the forecast with 50 and 95 % bands, and the
#   held-out values as dots.
# - Middle: the latent path along the active dimensions, with two standard deviations. For frames without order and for
#   several sequences, it is the plane of the two leading dimensions.
# - Right: the relevance of each latent dimension.
#
# All series have two true dimensions; for the straight lines of the fourth scenario, one is enough. If more remain
# active, training has kept an additional dimension to represent a curved surface: it starts at the principal
# components, which need it.


# %%
def draw_latent(ax, posterior, relevance, view):
    order = relevance.value.argsort(descending=True).tolist()
    if view == "plane":
        plot_plane(posterior, order[:2], ax)
        ax.get_legend().remove()
        return
    mean, sd = posterior.q.mean, posterior.q.variance.sqrt()
    if view == "points":
        ax.errorbar(*mean[:, order[:2]].T, *sd[:, order[:2]].flip(1).T, ".", elinewidth=0.5, markersize=4)
        ax.set(xlabel=f"latent {order[0]}", ylabel=f"latent {order[1]}")
        return
    for q in order[: int(relevance.active.sum())]:
        ax.plot(posterior.data.times.t, mean[:, q], linewidth=1)
        ax.fill_between(
            posterior.data.times.t, mean[:, q] - 2 * sd[:, q], mean[:, q] + 2 * sd[:, q], alpha=0.25, linewidth=0
        )
    ax.set(xlabel="time", ylabel="latent path")


def draw(*numbers):
    """The rows of these scenarios, numbered from 1."""
    size = (11, 0.4 + 2.6 * len(numbers))
    fig, axes = plt.subplots(
        len(numbers), 3, figsize=size, width_ratios=(2.2, 1.3, 1), layout="constrained", squeeze=False
    )
    for row, number in zip(axes, numbers, strict=True):
        scenario, (t, y), (_, posterior, relevance) = (part[number - 1] for part in (scenarios, series, suited))
        t_seen, t_ahead = t[0][:-num_ahead], t[0][-num_ahead:]
        ahead = posterior.forecast(t_ahead, sequence=0)
        plot_forecast(ahead, 0, row[0], history=(t_seen, y[0][:-num_ahead]), truth=(t_ahead, y[0][-num_ahead:]))
        fitted = posterior.impute(fill=False, include_noise=False).mean[: len(t_seen), 0]
        row[0].plot(t_seen, fitted, color="#D55E00", linewidth=1, label="fit")
        row[0].get_legend().remove()
        row[0].set_title(scenario.title, loc="left", fontweight="bold")
        draw_latent(row[1], posterior, relevance, scenario.view)
        plot_relevance(relevance, ax=row[2])
        row[2].set(xlabel="latent dimension", ylabel="relevance")
        row[2].title.set_fontsize("medium")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper left", ncols=len(labels), frameon=False)
    plt.show()


# %% [markdown]
# ## Smooth motion, and frames without order

# %%
draw(1, 2)

# %% [markdown]
# 1. **Smooth.** The intervals widen over about one lengthscale. Beyond it, the forecast has the whole range of the
#    output.
# 2. **No dynamics.** Time has no influence, so the latent points depend only on their outputs, and a forecast is the
#    average frame with the spread of all frames. Use this for frames without order, to fill in missing values.

# %% [markdown]
# ## Linear kernels

# %%
draw(3, 4)

# %% [markdown]
# 3. **Linear mapping.** Outputs are mixtures of a few smooth signals, as in factor analysis with GP factors.
# 4. **Both linear.** A straight line in time for each output. It can be extrapolated far ahead if the data really are
#    linear.

# %% [markdown]
# ## Rough motion

# %%
draw(5)

# %% [markdown]
# 5. **Rough.** The path has no direction that could be continued, so the intervals widen at once, and the forecast is
#    close to the last value.

# %% [markdown]
# ## Cycles

# %%
draw(6, 7)

# %% [markdown]
# 6. **Periodic.** The cycle is known for all times: the intervals do not widen.
# 7. **Periodic with drift.** The next cycle is similar to the last ones, and the similarity decreases with each cycle:
#    the intervals widen slowly.

# %% [markdown]
# ## Several sequences

# %%
draw(8)

# %% [markdown]
# 8. **Independent sequences.** Four short paths in one latent space, with one mapping. The forecast is for the first
#    sequence; the mapping was trained on all of them.

# %% [markdown]
# ## Model selection
#
# Two quantities are available without knowing the truth: the bound on the training data, and the error on a held-out
# part. The table has both for the suited model and for the default one, with simple forecasts for comparison.

# %%
rows = []
for scenario, (t, y), (_, good, _), (_, usual, _) in zip(scenarios, series, suited, plain, strict=True):
    t_ahead, y_ahead = t[0][-num_ahead:], y[0][-num_ahead:]
    hidden = [torch.cat([y[0][:-num_ahead], torch.full_like(y_ahead, math.nan)]), *y[1:]]
    simple = {"last value": last_value, "mean": column_mean}
    if "periodic" in scenario.title:
        simple["last cycle"] = repeat_cycle
    forecasts = {name: f(t, hidden)[0][-num_ahead:] for name, f in simple.items()}
    forecasts |= {name: p.forecast(t_ahead, sequence=0).mean for name, p in (("suited", good), ("default", usual))}
    errors = {name: mse(y_ahead, value) ** 0.5 for name, value in forecasts.items()}
    rows.append((scenario.title, good.bound, usual.bound, errors))

names = ("suited", "default", "last value", "mean", "last cycle")
print(f"{'':28s}{'bound (nats)':>18s}{'error of the forecast':>33s}")
print(f"{'':28s}{'suited':>9s}{'default':>9s}" + "".join(f"{name:>11s}" for name in names))
for title, first, second, errors in rows:
    numbers = "".join(f"{errors[name]:11.3f}" if name in errors else f"{'-':>11s}" for name in names)
    print(f"{title:28s}{first:9.0f}{second:9.0f}{numbers}")

# %% [markdown]
# Scenarios 1 and 8 *are* the default, so their columns agree. In the others, compare the two bounds first: a difference
# of many nats is clear evidence for a kernel, and it needs no held-out data. The errors are those of one short part of
# one series each, so small differences are not significant. But the forecasts of the periodic and the linear models
# should stay accurate when those of the default return to the mean.
#
# ## Summary
#
# - `temporal=` selects the temporal kernel, and `mapping=` the mapping kernel. Temporal kernels can be sums and
#   products.
# - With `White(1.0).fix()` as the only temporal kernel, the model is the Bayesian GP-LVM.
# - The intervals of a forecast widen over the memory of the temporal kernel.
# - The bound compares kernels on the same data, without held-out data. Compare also with simple forecasts: if the last
#   value is as good, the series may be too rough to forecast.
#
# ## What next
#
# - [VGPDS in Pyro](vgpds_in_pyro.ipynb): the model written out, with its guide and its ELBO.
# - [Motion capture](motion_capture.ipynb): scenario 8 with real walks.
# - [Video](video.ipynb): scenarios 1, 6 and 7 with pixels.
# - [Your own priors and guides](priors_and_guides.ipynb): a kernel that is not in the list.
# - [Messy data](messy_data.ipynb): gaps, irregular times and files.
