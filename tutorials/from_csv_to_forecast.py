# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # From a csv to a forecast
#
# This tutorial starts with an ordinary csv file: a column of dates, two dozen columns of measurements, and gaps. You
# need no knowledge of kernels or variational inference. One function, `auto`, compares models with simple methods on
# held-out data, combines the best of them, and sets the widths of the intervals to what the held-out errors need. We
# read its report, test it on earlier dates, forecast the next day, fill in gaps, and see what to do if a simple method
# wins.
#
# #### Summary
#
# - `auto(data, task)` returns predictions and a report. The task is `"forecast"`, `"impute"` (fill in gaps) or
#   `"reconstruct"` (hidden columns of new recordings).
# - Every number of the report is an error on data that the candidate did not see.
# - A model of your own can be given as one more candidate, and is compared with the others.
# - If a baseline is best, the report says so in a sentence. Then use the baseline, or ask another question.
#
# #### Contents
#
# - [Look at the file](#Look-at-the-file)
# - [One call](#One-call)
# - [Read the report](#Read-the-report)
# - [Add a candidate of your own](#Add-a-candidate-of-your-own)
# - [Backtest](#Backtest)
# - [The forecast](#The-forecast)
# - [Fill in the gaps](#Fill-in-the-gaps)
# - [Save, load, and the command line](#Save,-load,-and-the-command-line)
# - [When a baseline wins](#When-a-baseline-wins)
# - [What next](#What-next)

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro
import torch
from matplotlib.dates import AutoDateLocator, DateFormatter

from pyro_vgpds import Sequences, auto, datasets, load_posterior, metrics, save_posterior
from pyro_vgpds.cli import main
from pyro_vgpds.evaluation import backtest
from pyro_vgpds.plotting import plot_forecast, plot_reconstruction
from pyro_vgpds.selection import Configuration

smoke_test = "CI" in os.environ
assert pyro.__version__.startswith("1.9")
pyro.set_rng_seed(0)
torch.set_num_threads(1)  # faster than several threads for problems of this size
plt.rcParams.update({"figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## Look at the file
#
# Everybody should be able to run this page, so the file is generated: `make_sensors` makes hourly measurements of six
# weather stations over three weeks. All sensors follow the hour of the day and the same weather, in nonlinear ways, and
# some fail for hours or days, as real ones do. We write a csv file and use only this file. Generated data show how to
# work; they do not show which method is best for your data.

# %%
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "weather.csv"
made = datasets.make_sensors(7, 6) if smoke_test else datasets.make_sensors()
pd.DataFrame(made.y[0], pd.Index(made.dates[0], name="time"), made.columns).round(2).to_csv(path)

frame = pd.read_csv(path, index_col="time", parse_dates=True)
frame.iloc[:4, :6]

# %% [markdown]
# Three questions come before any model: is the sampling regular, what is missing, and what do the columns look like?

# %%
steps = frame.index.to_series().diff().value_counts()
missing = frame.isna()
print(f"{len(frame)} rows from {frame.index[0]} to {frame.index[-1]}, {frame.shape[1]} columns")
print(f"steps between rows: {', '.join(f'{count} times {step}' for step, count in steps.items())}")
print(f"{100 * missing.to_numpy().mean():.1f} % missing; {missing.all(axis=1).sum()} rows have no value at all")
print(f"the worst columns: {missing.sum().nlargest(3).to_dict()}")


# %%
def date_axis(ax, most=8):
    ax.xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=most))
    ax.xaxis.set_major_formatter(DateFormatter("%d %b"))
    ax.set_xlabel("2024")


units = {"temperature": "°C", "humidity": "%", "light": "W/m²", "wind": "m/s"}
kinds = [kind for kind in units if f"{kind} 1" in frame]
fig, axes = plt.subplots(len(kinds) + 1, 1, figsize=(9, 7.5), layout="constrained", sharex=True)
for ax, kind in zip(axes, kinds, strict=False):
    for station, shade in ((1, "#0072B2"), (2, "#E69F00")):
        if f"{kind} {station}" in frame:
            ax.plot(frame.index, frame[f"{kind} {station}"], color=shade, lw=1, label=f"station {station}")
    ax.set_ylabel(f"{kind}, {units[kind]}")
axes[0].legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
axes[-1].pcolormesh(frame.index, np.arange(frame.shape[1]), missing.to_numpy().T, cmap="Greys", vmax=1.3)
axes[-1].set(ylabel="column", title="missing entries (dark)")
axes[-1].invert_yaxis()
date_axis(axes[-1])

# %% [markdown]
# The rows are regular. There is a daily cycle, weather that changes over days, light that is zero at night, one day on
# which everything was lost, and columns that failed for two days. Nothing has to be repaired: NaN means missing, dates
# may be dates, and columns may have different units.
#
# We put the last day aside. Nothing below sees it before the end; it plays the role of tomorrow.

# %%
horizon = 6 if smoke_test else 24
past, tomorrow = frame[:-horizon], frame[-horizon:]
data = Sequences.from_frame(past)
print(data)

# %% [markdown]
# ## One call
#
# The task is to forecast a day, 24 frames. `auto` hides the last days of the data, lets each candidate predict them
# from what comes before, combines the best candidates and trains them on everything. No period has to be given: if the
# data repeat, the models start with the period of the data.

# %%
options = {}
if smoke_test:
    small = Configuration("nonlinear mapping", latent_dim=2, num_inducing=10, num_steps=5)
    options = {"candidates": [small], "baselines": ["column mean", "last value"]}
found = auto(data, "forecast", horizon=horizon, **options)
print(found.report)

# %% [markdown]
# ## Read the report
#
# *Error* is the root mean squared error on hidden entries, in standard deviations of each column. So columns of
# different units count alike, predicting the mean of each column has an error of about 1, and 0 is perfect. *In 95 %*
# is the percentage of the hidden entries inside the 95 % intervals: it should be near 95. *Weight* is the share in the
# ensemble, a mean over the columns, because each column has weights of its own; poor candidates have none. The row of
# the ensemble is a fair test: its weights and the widths of its intervals were chosen on other hidden entries than
# those that it is tested on. So its error can be above that of the best candidate, which was found by looking at all of
# them. Its percentage should be near 95 even if the intervals of single models are too narrow.
# Candidates that are far behind on the first hidden part are stopped there to save time; the last sentence names them,
# and their errors are estimates.
#
# The models differ in the mapping from the hidden path to the columns. With a clear cycle in the data, as here, the
# kernel of time of both has its period.
#
# The baselines are the methods that anybody would try first. *Last cycle* repeats the last day. *Linear dynamical
# system* is a linear state-space model whose parameters are learned by the EM algorithm. A model that is not better
# than these is not worth its time. The sentences under the table say what was found; if a baseline wins, they say that
# as well.
#
# Two warnings. There are only a few held-out days, and the weather of a few days is a small sample. And the future may
# differ from the past in ways that no held-out data can show.

# %% [markdown]
# ## Add a candidate of your own
#
# If you know something about the data, you can let a model that says so compete. A `Configuration` is a model with all
# choices made, and `temporal` describes how the hidden path moves. In this one the period is exactly one day and is not
# learned, and the shape of the day need not be a sinusoid (`periodic`); it changes over about a week. Something that
# changes from day to day and noise are added. Durations have units (`24h`, `7d`), because the data have dates. We let
# this model predict the same held-out days and draw its error beside the others.

# %%
shape = "matern32(lengthscale=7d)*periodic(period=24h fixed)"
own = Configuration(
    "exactly one day, any shape",
    temporal=f"{shape}+matern32(lengthscale=1d)+white(variance=0.01)",
    **({"latent_dim": 2, "num_inducing": 10, "num_steps": 5} if smoke_test else {}),
)
rivals = ["last value"] if smoke_test else ["last cycle", "linear dynamical system"]
tried = auto(data, "forecast", candidates=[own], baselines=[], horizon=horizon, refit=False)

scores = {(c.name, c.is_baseline): c.error for report in (found.report, tried.report) for c in report.candidates}
scores |= {("ensemble of the first call", None): found.report.ensemble.error}
ranked = sorted(scores, key=scores.get)
shades = {None: "#0072B2", False: "#56B4E9", True: "#E69F00"}
fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
bars = ax.barh(
    [name for name, _ in ranked], [scores[key] for key in ranked], color=[shades[kind] for _, kind in ranked]
)
ax.bar_label(bars, fmt="%.2f", padding=3)
ax.invert_yaxis()
ax.tick_params(axis="y", length=0)
ax.set(xlabel="held-out error, standard deviations", xlim=(0, 1.12 * max(scores.values())))
handles = [plt.Rectangle((0, 0), 1, 1, color=shade) for shade in shades.values()]
_ = ax.legend(
    handles, ["ensemble", "model", "baseline"], frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1)
)

# %% [markdown]
# Held-out errors. Shorter is better. The bars of single candidates can be compared with each other; that of the
# ensemble can be longer, as described above. A candidate of your own is useful if its bar is clearly shorter than those
# of the default models. Then let `auto` combine it with the default model: `candidates=[Configuration("default"),
# own]`. A small difference on a few days can be chance. And with each further idea that is tried on the same days, the
# smallest error becomes more optimistic: this is why we have put a day aside. Below we continue with the ensemble of
# the first call.

# %% [markdown]
# ## Backtest
#
# Would it have worked on other days? `backtest` goes back to earlier origins, uses only what was known then, forecasts,
# and compares with what happened. The parameters of the model are those of all data, so the errors are a little
# optimistic; `cross_validate(..., task="forecast")` trains again at each origin and takes longer. An ensemble of one
# baseline shows the same for that baseline.


# %%
def by_hours(predictor):
    """Errors of several origins, for a quarter of the horizon at a time."""
    table = backtest(predictor, horizon, num_origins=2 if smoke_test else 5).to_pandas()
    width = -(-horizon // 4)
    hours = (table["ahead"] - 1) // width * width
    label = hours.astype(int).map(lambda start: f"{start + 1} to {start + width}")
    parts = table.groupby(label, sort=False)
    return pd.DataFrame(
        {"error": parts["nrmse"].agg(lambda e: (e**2).mean() ** 0.5), "in 95 %": parts["in 95 %"].mean()}
    )


tested = {"ensemble": by_hours(found)}
for name in rivals:
    tested[name] = by_hours(auto(data, "forecast", candidates=[], baselines=[name], horizon=horizon))
table = pd.concat(tested, axis=1)
table.index.name = "hours ahead"
table.round(2)

# %%
fig, ax = plt.subplots(figsize=(8, 3.2), layout="constrained")
for (name, scores_of), shade in zip(tested.items(), ("#0072B2", "#E69F00", "#009E73"), strict=False):
    ax.plot(scores_of.index, scores_of["error"], ".-", color=shade, lw=2 if name == "ensemble" else 1.3, label=name)
ax.set(xlabel="hours ahead", ylabel="error, standard deviations", ylim=(0, None))
ax.grid(axis="y", alpha=0.3)
_ = ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)

# %% [markdown]
# ## The forecast
#
# `forecast` takes dates and returns means, intervals and samples in the units of the file.

# %%
ahead = found.forecast(tomorrow.index)
print(ahead)
ahead.to_pandas().iloc[:3, :4].round(1)

# %%
shown = [f"{kind} 1" for kind in kinds]
recent = past[-5 * horizon :]
fig, axes = plt.subplots(len(shown), 1, figsize=(9, 8), layout="constrained", sharex=True, squeeze=False)
for ax, name in zip(axes[:, 0], shown, strict=True):
    column = frame.columns.get_loc(name)
    plot_forecast(ahead, name, ax, history=(recent.index, recent), truth=(tomorrow.index, tomorrow))
    ax.set(ylabel=f"{name}, {units[name.split()[0]]}", xlabel="")
    if name != shown[0]:
        ax.get_legend().remove()
date_axis(axes[-1, 0])

# %% [markdown]
# The forecast (blue) with its 50 % and 95 % intervals, and what happened on the day that we put aside (dots). Now this
# day may be used, once:

# %%
lower, upper = ahead.interval(0.95)
spread = past.std().to_numpy()


def error_of(guess):
    return metrics.mse(tomorrow.to_numpy() / spread, np.asarray(guess) / spread) ** 0.5


repeated = np.where(past[-horizon:].isna(), past.mean(), past[-horizon:])
print(f"forecast {error_of(ahead.mean):.2f}, the same as the day before {error_of(repeated):.2f} (standard deviations)")
print(f"{100 * metrics.coverage(tomorrow.to_numpy(), lower, upper):.0f} % lie in the 95 % intervals")

# %% [markdown]
# One day is one sample of the weather: the errors of its hours and sensors rise and fall together. So the percentage
# inside the intervals of a single day can be far from 95 without anything being wrong.

# %% [markdown]
# ## Fill in the gaps
#
# Another task needs another choice: what forecasts well may be poor at filling in gaps. For `"impute"`, `auto` hides
# known entries in the patterns in which entries are missing, here single values, days of one sensor, and whole days.

# %%
everything = Sequences.from_frame(frame)
gaps = ["column mean"] if smoke_test else ["linear interpolation", "last cycle", "ridge regression"]
filler = auto(everything, "impute", candidates=options.get("candidates"), baselines=[*gaps, *rivals[1:]])
print(filler.report)

# %%
filled = filler.impute(fill=False)  # fill=True returns known numbers unchanged
table = filler.impute().to_pandas()
print(f"{table.isna().to_numpy().sum()} entries are missing now")

failed = [name for name in missing.sum().nlargest(frame.shape[1]).index if name.split()[0] in ("temperature", "light")][
    :2
]
truth = datasets.make_sensors(*((7, 6) if smoke_test else ()), dropouts=False).y[0]  # in real life nobody has this
fig, axes = plt.subplots(2, 1, figsize=(9, 5), layout="constrained", sharex=True)
for ax, name in zip(axes, failed, strict=False):
    plot_reconstruction(filled, name, ax, truth=truth, seen=frame.to_numpy())
    ax.set(ylabel=f"{name}, {units[name.split()[0]]}", xlabel="")
axes[1].get_legend().remove()
axes[1].set_xlim(frame.index[len(frame) // 3], frame.index[-1])
date_axis(axes[1])

# %% [markdown]
# Shaded: missing in the file. Dots: the measurements, with those that were lost, which only a generator can tell us.
# The interval is wide where everything was lost and narrow where other sensors were still there.

# %%
lost = np.where(frame.isna(), truth, np.nan)
print(f"{100 * metrics.coverage(lost, *filled.interval(0.95)):.0f} % of the lost entries lie in the 95 % intervals")

# %% [markdown]
# ## Save, load, and the command line
#
# A file keeps all members of the ensemble, its weights, its intervals and its report.

# %%
file = Path(folder.name) / "weather.safetensors"
save_posterior(file, found)
again = load_posterior(file)
difference = (again.forecast(tomorrow.index).mean - ahead.mean).abs().max()
print(f"{again}\nlargest difference of its forecast: {difference:.1g}")

# %% [markdown]
# The command line does the same without Python. `evaluate` writes the comparison as a page with pictures:
#
#     pyro-vgpds evaluate weather.csv --task forecast --horizon 24 -o weather.html
#     pyro-vgpds fit weather.csv --task forecast --horizon 24 -o weather.safetensors
#     pyro-vgpds forecast weather.safetensors --until 2024-05-27 --step 1h -o tomorrow.csv
#     pyro-vgpds reconstruct weather.safetensors -o filled.csv
#
# Here is the third of them, with the file that we have just written:

# %%
csv = Path(folder.name) / "tomorrow.csv"
main(["forecast", str(file), "--until", str(tomorrow.index[-1]), "-o", str(csv), "-q"])
pd.read_csv(csv, index_col=0).iloc[:3, :6].round(1)

# %% [markdown]
# ## When a baseline wins
#
# Monthly returns of 35 portfolios (Kenneth French's library). If returns could be forecast from their own past by
# simple means, traders would use this until it is gone. We forecast a year anyway.

# %%
try:
    french = datasets.load_french()
except (FileNotFoundError, ImportError):
    french = None
    print("the returns are not available, so this part is skipped: see datasets.load_french")

if french is not None:
    recent = slice(-120 if smoke_test else -240, None)
    returns = Sequences(french.dates[0][recent], french.y[0][recent], columns=french.columns)
    market = auto(
        returns, "forecast", baselines=["column mean", "last value", "linear dynamical system"], horizon=12,
        **({"candidates": [small]} if smoke_test else {}),
    )  # fmt: skip
    print(market.report)
    best, mean = market.report.best, next(c for c in market.report.candidates if c.name == "column mean")
    print(f"\nthe error of {best.name} is {100 * best.error / mean.error:.0f} % of that of the column mean")

# %% [markdown]
# The best candidates differ little, and the held-out months are few, so their order may be chance. A model with a cycle
# is tried if something in the past looks like one; the held-out months decide whether it gets any weight. If the mean
# of each column, one line of code, is about as good as everything else, that is the answer to the question, not a
# failure of the call. What can be done:
#
# - *Use the baseline.* The column mean costs nothing and needs no explanation.
# - *Think about the question.* Next year's returns may be unpredictable, while their variance, or the difference of two
#   portfolios, is not.
# - *Give more data*, a longer past or columns that lead the others, or *add a candidate of your own* that says what you
#   know about them.
# - *Try another task.* Portfolios move together. If some of them are known, the others can be estimated: that is
#   `"impute"` or `"reconstruct"`.

# %%
if french is not None:
    names = ["column mean", "linear interpolation", "probabilistic PCA", "ridge regression"]
    together = auto(returns, "impute", baselines=names, **({"candidates": [small]} if smoke_test else {}))
    print(together.report)

# %% [markdown]
# The same data, another question, and much smaller errors.

# %%
folder.cleanup()

# %% [markdown]
# ## What next
#
# - [Messy data](messy_data.ipynb): gaps, irregular times, and sequences of different lengths, with a single model.
# - [VGPDS in Pyro](vgpds_in_pyro.ipynb): what the model is, and what its bound has to do with the paper.
# - [The eight scenarios of the original code](eight_scenarios.ipynb): which temporal kernel and mapping for which data.
# - [Your own priors and guides](priors_and_guides.ipynb): change the model itself.
