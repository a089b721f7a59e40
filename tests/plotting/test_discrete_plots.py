# SPDX-License-Identifier: Apache-2.0
"""Pictures of counts and of yes/no, and heat maps. How they look was looked at."""

import re
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from problems import fit_posterior

from pyro_vgpds import VGPDS, Posterior, PosteriorMixture, Sequences
from pyro_vgpds.likelihoods import Bernoulli, ByColumn, NegativeBinomial, StudentT
from pyro_vgpds.plotting import plot_forecast, plot_raster, plot_reconstruction


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def fitted(likelihood, y) -> Posterior:
    t = [np.arange(12.0), np.arange(10.0)]
    data = Sequences(t, [y[:12], y[12:]], columns=list("abcd"), names=["first", "second"])
    torch.manual_seed(0)
    model = VGPDS.from_data(data, 2, 6, likelihood=likelihood)
    return fit_posterior(model, data, 6)


@pytest.fixture(scope="module")
def posts():
    rng = np.random.default_rng(0)
    f = np.sin(np.arange(22.0)[:, None] / 2 + np.arange(4))
    counts = rng.poisson(np.exp(0.7 + f)).astype(float)
    mixed = np.column_stack([counts[:, :1], f[:, 1:2] + 0.1 * rng.standard_normal((22, 1)), counts[:, 2:] > 1])
    return SimpleNamespace(
        counts=fitted(NegativeBinomial(), counts),
        yes=fitted(Bernoulli(), (counts > 1).astype(float)),
        mixed=fitted(ByColumn([(NegativeBinomial(), [0]), (StudentT(), [1]), (Bernoulli(), [2, 3])]), mixed),
    )


def band(ax, k: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest value of the outline of a band at each of its times."""
    points = ax.collections[k].get_paths()[0].vertices
    return points[:, 0], points[:, 1]


def labels(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def line(ax, label):
    return next(one for one in ax.lines if one.get_label() == label)


def test_kinds_of_outputs(posts):
    ahead = {name: post.forecast([12.0, 13.0], 0) for name, post in vars(posts).items()}
    assert [ahead["counts"].kind_of(i) for i in range(4)] == ["count"] * 4
    assert [ahead["yes"].kind_of(i) for i in range(4)] == ["yes/no"] * 4
    assert [ahead["mixed"].kind_of(i) for i in range(4)] == ["count", "continuous", "yes/no", "yes/no"]
    assert ahead["counts"].rate.kind_of(0) == "continuous"
    assert ahead["yes"].rate.kind_of(0) == "yes/no"
    assert ahead["counts"].select(slice(0, 1)).kind_of(0) == "count"
    mixture = PosteriorMixture([posts.yes, posts.yes])
    assert mixture.forecast([12.0], 0).kind_of(0) == "yes/no"


def test_a_forecast_of_counts_is_drawn_in_steps(posts):
    data = posts.counts.data
    rows = data.times.slices()[0]
    t = np.arange(12.0, 16.0)
    ahead = posts.counts.forecast(t, "first")
    ax = plot_forecast(ahead, "b", history=(data.times.t[rows], data.y[rows]), levels=[0.9], truth=(t, np.ones((4, 4))))
    assert labels(ax) == ["history", "90 %", "forecast, rate", "truth"]
    history = line(ax, "history")
    assert history.get_drawstyle() == "steps-mid"
    assert history.get_ydata().tolist() == data.y[rows, 1].tolist()
    rate = line(ax, "forecast, rate")
    assert np.allclose(rate.get_ydata(), ahead.mean[:, 1])
    lower, upper = (end[:, 1].numpy() for end in ahead.interval(0.9))
    x, y = band(ax)
    for at, low, high in zip(t, lower, upper, strict=True):  # cells of the whole numbers, up to the next frame
        near = y[np.abs(x - at) < 0.5]
        own = y[np.abs(x - at) <= 0.5]
        assert {low - 0.5, high + 0.5} <= set(own)
        assert set(near) <= {low - 0.5, high + 0.5}
    assert all(float(tick).is_integer() for tick in ax.get_yticks())


def test_the_rate_of_counts_is_drawn_as_numbers(posts):
    rate = posts.counts.forecast([12.0, 13.0, 14.0], 0, include_noise=False)
    ax = plot_forecast(rate, 0, levels=[0.9])
    assert labels(ax) == ["90 %", "forecast"]
    lower, upper = rate.interval(0.9)
    assert band(ax)[1].min() == pytest.approx(float(lower[:, 0].min()))
    assert band(ax)[1].max() == pytest.approx(float(upper[:, 0].max()))


def test_yes_and_no_have_the_band_of_their_probability(posts):
    data = posts.yes.data
    rows = data.times.slices()[1]
    ahead = posts.yes.forecast([10.0, 11.0, 12.0], 1)
    for prediction in (ahead, PosteriorMixture([posts.yes, posts.yes]).forecast([10.0, 11.0, 12.0], 1)):
        ax = plot_forecast(prediction, 2, history=(data.times.t[rows], data.y[rows]), levels=[0.9])
        assert labels(ax) == ["history", "90 %", "forecast, probability"]
        assert line(ax, "history").get_linestyle() == "None"
        assert ax.get_ylim() == pytest.approx((-0.06, 1.06))
        assert list(ax.get_yticks()) == [0.0, 0.5, 1.0]
        heights = band(ax)[1]
        assert ((heights >= 0.0) & (heights <= 1.0)).all()
        assert 0.0 < heights.min() < heights.max() < 1.0
    lower, upper = ahead.rate.interval(0.9)
    ax = plot_forecast(ahead, 2, levels=[0.9])
    assert band(ax)[1].min() == pytest.approx(float(lower[:, 2].min()))
    assert band(ax)[1].max() == pytest.approx(float(upper[:, 2].max()))


def test_reconstructions(posts):
    data = posts.mixed.data
    seen = data.y.clone()
    seen[3:6] = torch.nan
    fit_of = posts.mixed.impute(fill=False)
    shown = [
        plot_reconstruction(fit_of, i, truth=data.y, seen=seen).get_legend_handles_labels()[1][-1] for i in range(3)
    ]
    assert shown == ["reconstruction, rate", "reconstruction", "reconstruction, probability"]
    part = fit_of.select(data.times.slices()[1])
    ax = plot_reconstruction(part, "c", truth=data.y[12:])
    heights = band(ax)[1]
    assert ((heights >= 0.0) & (heights <= 1.0)).all()


def test_predictions_of_other_classes_are_numbers():
    plain = SimpleNamespace(t=np.arange(3.0), mean=np.ones((3, 1)), interval=lambda level: (np.zeros((3, 1)),) * 2)
    assert labels(plot_forecast(plain, levels=[0.5])) == ["50 %", "forecast"]


# heat maps


def meshes(ax) -> list[QuadMesh]:
    return [one for one in ax.collections if isinstance(one, QuadMesh)]


def test_one_sequence_has_its_times():
    y = np.array([[0.0, 3.0], [1.0, np.nan], [2.0, 0.0]])
    (ax,) = plot_raster(Sequences([0.0, 1.0, 4.0], y, columns=["up", "down"]))
    (mesh,) = meshes(ax)
    assert mesh.get_coordinates()[0, :, 0].tolist() == [-0.5, 0.5, 2.5, 5.5]
    shown = mesh.get_array().reshape(2, 3)
    assert shown.filled(-1.0).tolist() == [[0.0, 1.0, 2.0], [3.0, -1.0, 0.0]]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["up", "down"]
    assert ax.get_ylim() == (1.5, -0.5)  # the first output is at the top
    assert ax.get_xlabel() == "time"
    assert (mesh.norm.vmin, mesh.norm.vmax) == (0.0, 3.0)


def test_sequences_are_separated_and_predictions_beside_them(posts):
    data = posts.counts.data
    fit_of = posts.counts.impute(fill=False)
    first, second = plot_raster(data, fit_of, outputs=["c", 0])
    for ax, y in ((first, data.y), (second, fit_of.mean)):
        parts = meshes(ax)
        assert len(parts) == 2
        assert np.allclose(parts[0].get_array().reshape(2, 12), y[:12][:, [2, 0]].T)
        assert np.allclose(parts[1].get_array().reshape(2, 10), y[12:][:, [2, 0]].T)
        assert parts[1].get_coordinates()[0, 0, 0] > parts[0].get_coordinates()[0, -1, 0]
        assert len(ax.lines) == 1  # between them
        assert [text.get_text() for text in ax.get_xticklabels()] == ["first", "second"]
    assert first.get_title(loc="left") == "data"
    assert second.get_title(loc="left") == "prediction"
    assert {mesh.norm.vmax for ax in (first, second) for mesh in meshes(ax)} == {meshes(first)[0].norm.vmax}
    assert [text.get_text() for text in first.get_yticklabels()] == ["c", "a"]


def test_arrays_and_axes_of_ones_own():
    y = np.arange(80.0).reshape(2, 40)
    ax = plt.subplots()[1]
    assert plot_raster(y, axes=ax, largest=7.0) == [ax]
    assert ax.get_xlabel() == "frame"
    assert ax.get_ylabel() == "output"
    assert meshes(ax)[0].norm.vmax == 7.0
    assert [text.get_text() for text in ax.get_yticklabels()] == [str(i) for i in range(0, 40, 5)]
    pair = plt.subplots(1, 2)[1]
    assert plot_raster(torch.from_numpy(y), torch.from_numpy(y), pair) == list(pair)


def test_dates_many_sequences_and_single_frames():
    dates = np.datetime64("2024-01-01") + np.arange(5)
    (ax,) = plot_raster(Sequences(dates, np.ones((5, 2))))
    middle = meshes(ax)[0].get_coordinates()[0, 1:-1, 0]
    assert np.allclose(np.diff(middle), 1.0)  # days
    (ax,) = plot_raster(Sequences([dates[:1]], [np.ones((1, 2))]))
    assert meshes(ax)[0].get_coordinates().shape == (3, 2, 2)
    (ax,) = plot_raster(Sequences([np.arange(2.0)] * 30, [np.ones((2, 2))] * 30))
    assert [text.get_text() for text in ax.get_xticklabels()] == [str(i) for i in range(0, 30, 3)]


@pytest.mark.parametrize(
    ("y", "top"), [(np.zeros((3, 2)), 1.0), (np.full((3, 2), 0.25), 0.25), (-np.ones((3, 2)), 1.0)]
)
def test_scales(y, top):
    (ax,) = plot_raster(y)
    assert meshes(ax)[0].norm.vmax == top
    assert meshes(ax)[0].norm.vmin == min(0.0, y.min())


def test_outputs_of_different_units_have_scales_of_their_own():
    t = np.arange(20.0)
    y = np.stack([101325 + 9.5 * t, 20 + np.sin(t), 0.5 + 0.01 * np.cos(t), np.full(20, 21.0)], 1)
    y[3, 0] = np.nan
    first, second = plot_raster(y, y + [0.0, 0.0, 0.005, 0.0])
    shown = meshes(first)[0].get_array().reshape(4, 20)
    assert np.allclose(shown[:3].min(1), 0.0)
    assert np.allclose(shown[:3].max(1), 1.0)
    assert np.allclose(shown[3], 0.5)  # constant
    assert meshes(second)[0].get_array().reshape(4, 20)[2].max() == pytest.approx(
        1.25, rel=0.01
    )  # in the units of the data
    assert [text.get_text() for text in first.figure.axes[-1].get_yticklabels()] == ["smallest", "largest"]
    (ax,) = plot_raster(y, largest=1e5)
    assert meshes(ax)[0].norm.vmax == 1e5
    (ax,) = plot_raster(np.stack([30 * np.sin(t), 0.5 * np.cos(t)], 1))  # one of two is seen
    assert meshes(ax)[0].norm.vmax > 29.0


def test_nothing_observed():
    (ax,) = plot_raster(np.full((3, 2), np.nan))
    assert meshes(ax)[0].norm.vmax == 1.0


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.ones(3),), {}, "data must be Sequences or (N, D), but its shape is (3,)."),
        ((Sequences([0.0, 1.0]),), {}, "data must have outputs, but these sequences have times only."),
        ((np.ones((3, 2)), np.ones((2, 2))), {}, "prediction must be (3, 2), but its shape is (2, 2)."),
        ((np.ones((3, 2)),), {"outputs": ["a"]}, "outputs must be one of 0 to 1, but got 'a'."),
        ((np.ones((3, 2)),), {"outputs": [2]}, "outputs must be a whole number from 0 to 1, but got 2."),
        ((np.ones((3, 2)),), {"outputs": []}, "outputs must have at least one output, but got none."),
        ((np.ones((3, 2)),), {"largest": 0.0}, "largest must be positive, but got 0.0."),
        (
            (np.ones((3, 2)), np.ones((3, 2)), [Figure().add_subplot()]),
            {},
            "axes must be 2, one for each picture, but got 1.",
        ),
    ],
)
def test_errors(arguments, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plot_raster(*arguments, **options)
    named = Sequences([0.0, 1.0], np.ones((2, 2)), columns=["a", "b"])
    with pytest.raises(ValueError, match=re.escape("outputs must be one of ['a', 'b'], but got 'c'.")):
        plot_raster(named, outputs=["c"])
