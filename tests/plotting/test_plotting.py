# SPDX-License-Identifier: Apache-2.0
"""Pictures hold the right numbers. How they look was looked at."""

import io
import itertools
from statistics import NormalDist
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image

from pyro_vgpds import VGPDS, AutoOpperArchambeau, FitResult, Posterior, PosteriorMixture, Sequences, fit
from pyro_vgpds.datasets import load_video, make_gait, make_pendulum_video, stick_figure
from pyro_vgpds.files.film import write_film
from pyro_vgpds.model import Relevance
from pyro_vgpds.plotting import (
    animate_frames,
    animate_poses,
    embed_animation,
    plot_forecast,
    plot_frames,
    plot_latent,
    plot_plane,
    plot_poses,
    plot_reconstruction,
    plot_relevance,
    plot_training,
    save_animation,
)
from pyro_vgpds.plotting.style import labelled, legend_above
from pyro_vgpds.training.result import Record


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def trained():
    rng = np.random.default_rng(0)
    t = [np.arange(12.0), np.concatenate([np.arange(6.0), np.arange(40.0, 46.0)])]
    y = [np.sin(s[:, None] / 2 + np.arange(4)) + 0.1 * rng.standard_normal((12, 4)) for s in t]
    data = Sequences(t, y, columns=list("abcd"))
    model = VGPDS.from_data(data, 3, 8)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, 5, progress=False)
    return SimpleNamespace(model=model, guide=guide, data=data, result=result, post=Posterior(model, guide, data), y=y)


def prediction(count=10, columns=None):
    rng = np.random.default_rng(1)
    mean = torch.from_numpy(rng.standard_normal((count, 3)))
    return SimpleNamespace(t=torch.arange(count), mean=mean, interval=gaussian(mean, 0.5), columns=columns)


def gaussian(mean, sd):
    """Central intervals of Gaussians with a common standard deviation."""

    def interval(level):
        width = sd * NormalDist().inv_cdf(0.5 + 0.5 * level)
        return mean - width, mean + width

    return interval


def line(ax, label):
    (found,) = [line for line in ax.get_lines() if line.get_label() == label]
    return found


def band(ax, label):
    """Lower and upper ends of a filled band, at its times."""
    (found,) = [patch for patch in ax.collections if patch.get_label() == label]
    points = found.get_paths()[0].vertices
    times = np.unique(points[:, 0])
    return np.array([[f(points[points[:, 0] == t, 1]) for f in (min, max)] for t in times]).T


def test_training_curve(trained):
    ax = plot_training(trained.result)
    (curve,) = ax.get_lines()
    np.testing.assert_array_equal(curve.get_ydata(), [record.bound for record in trained.result.history])
    assert ax.get_xlabel() == "step"
    assert "natural" in ax.get_title()
    own = plt.subplots()[1]
    assert trained.result.plot(own) is own
    np.testing.assert_array_equal(own.get_lines()[0].get_ydata(), curve.get_ydata())


def test_training_curve_leaves_a_bad_start_below():
    history = [Record(i, 0.0, -1e9 if i == 0 else float(i)) for i in range(30)]
    low, high = plot_training(FitResult(29.0, history, "steps", 0, "natural")).get_ylim()
    assert low > -10
    assert high > 29
    flat = FitResult(1.0, [Record(0, 0.0, 1.0), Record(1, 0.0, 1.0)], "steps", 0, "adam")
    assert plot_training(flat).get_title() == "adam: final bound 1"
    with pytest.raises(ValueError, match="history must have at least one step"):
        plot_training(FitResult(0.0, [], "steps", 0, "adam"))


def test_relevance_bars(trained):
    after = Relevance(torch.tensor([0.1, 2.0, 1.0]), torch.tensor([False, True, True]))
    ax = plot_relevance(after, before=torch.tensor([1.0, 4.0, 2.0]))
    before, late = ax.containers
    np.testing.assert_allclose([bar.get_height() for bar in before], [1.0, 0.5, 0.25])  # in the order of the later
    np.testing.assert_allclose([bar.get_height() for bar in late], [1.0, 0.5, 0.05])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "0"]
    assert [bar.get_alpha() for bar in late] == [1.0, 1.0, 0.35]
    assert ax.get_title() == "2 of 3 dimensions are active"
    assert len(plot_relevance([3.0, 1.0]).containers) == 1
    value, active = trained.model.relevance(trained.guide, trained.data)
    own = plot_relevance(trained.model.relevance(trained.guide, trained.data))
    heights = value.sort(descending=True).values / value.max()
    np.testing.assert_allclose([bar.get_height() for bar in own.containers[0]], heights.detach())
    assert own.get_title() == f"{int(active.sum())} of 3 dimensions are active"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0], [1.0]), r"must be \(Q,\), but got \(2,\) and \(1,\)"),
        (([[1.0]],), r"must be \(Q,\), but got \(1, 1\)\."),
        (([0.0, 0.0],), "after must be finite with at least one positive value"),
        (([1.0, 1.0], [np.nan, 1.0]), "before must be finite"),
    ],
)
def test_relevance_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_relevance(*arguments)


def test_the_legend_of_relevance_is_beside_or_above_the_bars():
    assert plot_relevance(np.array([1.0, 0.2, 0.1, 0.0]), np.array([1.0, 1.0, 0.1, 0.1])).get_ylim()[1] < 1.1
    assert plot_relevance(np.ones(1), np.ones(1)).get_ylim()[1] > 1.2
    assert plot_relevance(np.array([1.0, 0.1]), np.array([0.1, 1.0])).get_ylim()[1] > 1.2


def test_latent_paths(trained):
    axes = plot_latent(trained.post, [2, 0], names=["one", "two"])
    assert axes.shape == (2,)
    mean, sd = trained.post.q.mean.numpy(), trained.post.q.variance.sqrt().numpy()
    first, second = axes[0].get_lines()
    np.testing.assert_allclose(first.get_ydata(), mean[:12, 2])
    assert (first.get_label(), second.get_label()) == ("one", "two")
    # the second sequence has a gap, over which no line goes
    np.testing.assert_allclose(second.get_ydata(), np.insert(mean[12:, 2], 6, np.nan))
    ends = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert ends.min() == pytest.approx((mean[:12, 2] - 2 * sd[:12, 2]).min())
    assert ends.max() == pytest.approx((mean[:12, 2] + 2 * sd[:12, 2]).max())
    assert [ax.get_ylabel() for ax in axes] == ["latent 2", "latent 0"]
    assert [ax.get_xlabel() for ax in axes] == ["", "time"]
    assert len(plot_latent(trained.post)) == 3
    own = plt.subplots(1, 2)[1]
    assert plot_latent(trained.post, [0, 1], own)[1] is own[1]
    with pytest.raises(ValueError, match="dimensions must be indices from 0 to 2, but got"):
        plot_latent(trained.post, [3])
    with pytest.raises(ValueError, match="one entry for each of the 3 dimensions, but got 2"):
        plot_latent(trained.post, axes=own)


def test_times_at_random_have_no_gaps():
    t = np.random.default_rng(0).exponential(1.0, 200).cumsum()
    data = Sequences(t, np.sin(t[:, None] / 5 + np.arange(3)))
    model = VGPDS.from_data(data, 2, 5)
    (line,) = plot_latent(Posterior(model, AutoOpperArchambeau(model), data), [0])[0].get_lines()
    assert np.isfinite(line.get_ydata()).all()


def test_latent_paths_at_dates():
    t = np.datetime64("2024-01-01") + np.arange(10).astype("timedelta64[D]")
    data = Sequences(t, np.sin(np.arange(10.0)[:, None] + np.arange(3)))
    model = VGPDS.from_data(data, 2, 5)
    ax = plot_latent(Posterior(model, AutoOpperArchambeau(model), data))[-1]
    ax.figure.canvas.draw()
    np.testing.assert_array_equal(ax.get_lines()[0].get_xdata().astype("datetime64[D]"), t)
    assert "ConciseDateFormatter" in type(ax.xaxis.get_major_formatter()).__name__


def test_plane(trained):
    ax = plot_plane(trained.post, (1, 2))
    mean, sd = trained.post.q.mean.numpy(), trained.post.q.variance.sqrt().numpy()
    np.testing.assert_allclose(ax.get_lines()[0].get_xydata(), mean[:12, 1:])
    ellipses = ax.collections[0]
    np.testing.assert_allclose(ellipses.get_widths(), 2 * sd[:12, 1])
    np.testing.assert_allclose(ellipses.get_heights(), 2 * sd[:12, 2])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("latent 1", "latent 2")
    for (low, high), q in ((ax.get_xlim(), 1), (ax.get_ylim(), 2)):  # no ellipse is cut
        assert low <= (mean - sd)[:, q].min()
        assert (mean + sd)[:, q].max() <= high
    with pytest.raises(ValueError, match=r"dimensions must have 2 entries, but got \[1\]"):
        plot_plane(trained.post, (1,))


def test_forecast_fan():
    guess = prediction(columns=["a", "b", "c"])
    history, truth = (np.arange(-5, 0), np.ones((5, 3))), (np.arange(3), np.full((3, 3), 2.0))
    ax = plot_forecast(guess, "b", history=history, truth=truth, levels=(0.5, 0.95))
    mean = guess.mean[:, 1].numpy()
    np.testing.assert_allclose(line(ax, "forecast").get_ydata(), mean)
    np.testing.assert_allclose(line(ax, "history").get_xydata(), np.stack([history[0], np.ones(5)], 1))
    np.testing.assert_allclose(line(ax, "truth").get_ydata(), 2.0)
    np.testing.assert_allclose(band(ax, "95 %"), [mean - 0.5 * 1.959964, mean + 0.5 * 1.959964], rtol=1e-6)
    np.testing.assert_allclose(band(ax, "50 %"), [mean - 0.5 * 0.67449, mean + 0.5 * 0.67449], rtol=1e-4)
    assert ax.get_ylabel() == "b"
    assert plot_forecast(prediction(), -1).get_ylabel() == "output 2"
    own = plt.subplots()[1]
    assert plot_forecast(guess, ax=own) is own


def test_bands_are_the_intervals_of_the_prediction(trained):
    """Those of a mixture are not Gaussian."""
    far = Posterior(trained.model, trained.guide, trained.data, noise_variance=9.0)
    mixed = PosteriorMixture([trained.post, far], [0.7, 0.3]).forecast([12.0, 13.0, 14.0], 0)
    for ax, label, level in (
        (plot_forecast(mixed, 1, levels=(0.5, 0.9)), "50 %", 0.5),
        (plot_reconstruction(mixed, 1, level=0.9), "90 %", 0.9),
    ):
        lower, upper = (end[:, 1].numpy() for end in mixed.interval(level))
        np.testing.assert_allclose(band(ax, label), [lower, upper])
        gaussian_ends = gaussian(mixed.mean, mixed.stddev)(level)
        assert np.abs(gaussian_ends[1][:, 1].numpy() - upper).min() > 0.01


def test_forecast_of_a_real_prediction_sorts_its_times(trained):
    ahead = trained.post.forecast([13.0, 12.0, 12.5], sequence=0)
    ax = plot_forecast(ahead, "c")
    np.testing.assert_allclose(line(ax, "forecast").get_xydata()[:, 0], [12.0, 12.5, 13.0])
    np.testing.assert_allclose(line(ax, "forecast").get_ydata(), ahead.mean[[1, 2, 0], 2])


def test_reconstruction():
    guess = prediction()
    truth, baseline = guess.mean.numpy() + 1.0, guess.mean.numpy() - 1.0
    seen = truth.copy()
    seen[2:4, 0] = seen[7:, 0] = np.nan
    ax = plot_reconstruction(guess, 0, truth=truth, baseline=baseline, seen=seen)
    np.testing.assert_allclose(line(ax, "truth").get_ydata(), truth[:, 0])
    np.testing.assert_allclose(line(ax, "baseline").get_ydata(), baseline[:, 0])
    np.testing.assert_allclose(line(ax, "reconstruction").get_ydata(), guess.mean[:, 0])
    spans = [(p.get_x(), p.get_x() + p.get_width()) for p in ax.patches]
    assert spans == [(1.5, 3.5), (6.5, 9.0)]
    assert not plot_reconstruction(guess, 1, seen=seen).patches


def several(lengths=(4, 5), start=(1.0, 0.5)):
    """Two sequences, whose times overlap, one after the other."""
    guess = prediction(sum(lengths))
    guess.t = torch.cat([torch.arange(n) + s for n, s in zip(lengths, start, strict=True)])
    return guess


def test_reconstruction_of_several_sequences():
    guess = several()
    t, mean = guess.t.numpy(), guess.mean.numpy()
    seen = mean + 1.0
    seen[2, 0] = seen[4:6, 0] = np.nan
    ax = plot_reconstruction(guess, 0, truth=mean + 1.0, baseline=mean - 1.0, seen=seen)
    dots = line(ax, "truth").get_xydata()
    np.testing.assert_allclose(dots[dots[:, 0].argsort()], np.stack([t, mean[:, 0] + 1.0], 1)[t.argsort()])
    rows = [4, 5, 6, 7, 8, 0, 1, 2, 3]  # each a line of its own, the earlier first
    for label, shift in (("reconstruction", 0.0), ("baseline", -1.0)):
        x, y = line(ax, label).get_xydata().T
        np.testing.assert_allclose(y, np.insert(mean[rows, 0] + shift, 5, np.nan))
        np.testing.assert_allclose(np.delete(x, 5), t[rows])
    (drawn,) = [patch for patch in ax.collections if patch.get_label() == "95 %"]
    assert [set(path.vertices[:, 0]) for path in drawn.get_paths()] == [set(t[4:]), set(t[:4])]
    assert [(p.get_x(), p.get_x() + p.get_width()) for p in ax.patches] == [(0.5, 2.0), (2.5, 3.5)]
    assert [text.get_text() for text in ax.get_legend().get_texts()].count("hidden") == 1
    labels = [text.get_text() for text in plot_reconstruction(guess, 0, truth=seen, seen=seen).get_legend().get_texts()]
    assert labels.count("missing") == labels.count("data") == 1
    assert not {"hidden", "truth"} & set(labels)


def test_reconstruction_of_all_training_frames(trained):
    """As the user calls it: dots and the mean are of the same frames."""
    y = trained.data.read()
    ax = plot_reconstruction(trained.post.impute(fill=True), "a", truth=y)
    x, mean = line(ax, "reconstruction").get_xydata().T
    drawn = sorted(zip(x[~np.isnan(mean)], mean[~np.isnan(mean)], strict=True))
    assert drawn == sorted(map(tuple, line(ax, "truth").get_xydata()))
    assert drawn == sorted(zip(trained.data.times.t.tolist(), y[:, 0].tolist(), strict=True))


def test_reconstruction_is_one_line_where_times_do_not_overlap():
    guess = several(start=(10.0, 0.0))
    seen = guess.mean.clone()
    seen[0, 1] = float("nan")
    ax = plot_reconstruction(guess, 1, truth=guess.mean, seen=seen)
    order = guess.t.argsort()
    np.testing.assert_allclose(line(ax, "reconstruction").get_xydata()[:, 0], guess.t[order])
    np.testing.assert_allclose(line(ax, "reconstruction").get_ydata(), guess.mean[order, 1])
    assert [(p.get_x(), p.get_x() + p.get_width()) for p in ax.patches] == [(7.0, 10.5)]


@pytest.fixture(scope="module")
def dated():
    t = np.datetime64("2024-01-01") + np.arange(10).astype("timedelta64[D]")
    data = Sequences(t, np.sin(np.arange(10.0)[:, None] + np.arange(3)))
    model = VGPDS.from_data(data, 2, 5)
    post = Posterior(model, AutoOpperArchambeau(model), data)
    return SimpleNamespace(t=t, data=data, post=post, ahead=post.forecast(t[-1:] + np.timedelta64(1, "D")))


@pytest.mark.parametrize("kind", ["seconds", "dates", "objects", "zone"])
def test_forecast_at_dates(dated, tmp_path, kind):
    y = dated.data.read()
    times = {"seconds": dated.data.times.t, "dates": dated.t, "objects": dated.t.astype("datetime64[us]").tolist()}
    if kind == "zone":
        pandas = pytest.importorskip("pandas")
        times[kind] = pandas.DatetimeIndex(dated.t, tz="UTC").tz_convert("Europe/Berlin")
    ax = plot_forecast(dated.ahead, history=(times[kind], y), truth=(times[kind], y))
    for label in ("history", "truth"):
        np.testing.assert_array_equal(line(ax, label).get_xdata().astype("datetime64[D]"), dated.t)
    ax.figure.savefig(tmp_path / "dates.png")
    low, high = ax.get_xlim()  # in days
    assert high - low < 12


def test_history_of_several_sequences_is_not_joined():
    t = np.array([0.0, 1.0, 0.5, 1.5])
    x, y = line(plot_forecast(prediction(), history=(t, np.ones((4, 3)))), "history").get_xydata().T
    np.testing.assert_array_equal(np.isnan(y), [False, False, True, False, False])
    np.testing.assert_array_equal(np.delete(x, 2), t)
    assert not len(line(plot_forecast(prediction(), history=([], np.ones((0, 3)))), "history").get_xdata())


def test_history_has_a_gap_where_regular_times_lack_frames():
    days = np.arange(40.0)
    lacking = np.delete(days, [11, 12, 13])
    x, y = line(plot_forecast(prediction(), history=(lacking, np.ones((37, 3)))), "history").get_xydata().T
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(y)), [11])
    np.testing.assert_array_equal(np.delete(x, 11), lacking)
    weekdays = days[days % 7 < 5]
    for t in (days, weekdays, days**1.5, days[:1]):
        y = line(plot_forecast(prediction(), history=(t, np.ones((len(t), 3)))), "history").get_ydata()
        assert len(y) == len(t)


@pytest.mark.parametrize("what", ["history", "truth"])
def test_forecast_refuses_times_of_another_kind(dated, what):
    dates = np.datetime64("2024-01-01") + np.arange(2).astype("timedelta64[D]")
    with pytest.raises(TypeError, match=f"times of {what} are dates, but those of the prediction are numbers"):
        plot_forecast(prediction(), **{what: (dates, np.ones((2, 3)))})
    with pytest.raises(TypeError, match=f"times of {what} must be numbers or dates, but their dtype is <U"):
        plot_forecast(prediction(), **{what: (["2024", "2025"], np.ones((2, 3)))})
    bare = SimpleNamespace(t=dated.ahead.dates, mean=dated.ahead.mean, interval=dated.ahead.interval)
    with pytest.raises(TypeError, match=f"times of {what} are numbers, but those of the prediction are dates"):
        plot_forecast(bare, **{what: (np.arange(2.0), np.ones((2, 3)))})
    assert not plt.get_fignums()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot_forecast(prediction(), 3), "output must be a whole number from 0 to 2, but got 3"),
        (lambda: plot_forecast(prediction(), "x"), "output must be one of 0 to 2, but got 'x'"),
        (lambda: plot_forecast(prediction(), levels=(1.0,)), "levels must be between 0 and 1"),
        (lambda: plot_reconstruction(prediction(), level=0.0), "level must be between 0 and 1"),
        (lambda: plot_reconstruction(prediction(), truth=np.ones((2, 3))), r"truth must be \(10, 3\)"),
        (lambda: plot_frames({}), "all of the same shape, but got none"),
        (lambda: plot_frames({"a": np.ones((2, 3, 3)), "b": np.ones((3, 3, 3))}), r"a \(2, 3, 3\), b \(3, 3, 3\)"),
        (lambda: plot_frames({"a": np.ones((2, 3, 3))}, [2]), r"frames must be indices from 0 to 1, but got \[2\]"),
        (lambda: plot_poses(stick_figure(), np.ones((2, 3, 3))), r"positions \(T, 18, 3\).*motion \(2, 3, 3\)"),
        (lambda: plot_poses(stick_figure(), np.full((2, 18, 3), np.nan)), "motions must have joints that are not NaN"),
        (
            lambda: animate_poses(stick_figure(), np.full((2, 18, 3), np.nan)),
            "motions must have joints that are not NaN",
        ),
        (lambda: plot_poses(stick_figure(), np.ones((2, 18, 3)), [5]), "frames must be indices from 0 to 1"),
        (lambda: plot_poses(stick_figure(), np.ones((2, 18, 3)), view="top"), "view must be one of 'side', 'front'"),
    ],
)
def test_pictures_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_frames():
    video = make_pendulum_video(9, 8, 10)
    seen = video.frames.copy()
    seen[:, 4:] = np.nan
    axes = plot_frames({"truth": video.frames, "seen": seen}, [0, 5], labels=[f"t{i}" for i in range(9)])
    assert axes.shape == (2, 2)
    np.testing.assert_array_equal(axes[0, 1].images[0].get_array(), video.frames[5])
    assert axes[1, 1].images[0].get_array().mask[4:].all()
    assert axes[1, 0].images[0].get_clim() == (video.frames.min(), video.frames.max())  # one scale of grey for all
    assert [ax.get_title() for ax in axes[0]] == ["t0", "t5"]
    assert axes[1, 0].get_ylabel() == "seen"
    assert plot_frames({"truth": video.frames}).shape == (1, 8)


def test_poses():
    motion = make_gait(1, (5, 5))
    places = motion.positions()
    ax = plot_poses(
        motion.skeleton, {"truth": places, "guess": places + 1.0}, [0, 4], labels=list("abcde"), view="front"
    )
    assert len(ax.get_lines()) == 4
    bones = motion.skeleton.bones
    first = ax.get_lines()[0].get_xydata().reshape(len(bones), 3, 2)
    np.testing.assert_allclose(first[:, 0], places[0][[b[0] for b in bones], :2])
    np.testing.assert_allclose(first[:, 1], places[0][[b[1] for b in bones], :2])
    assert np.isnan(first[:, 2]).all()
    assert [text.get_text() for text in ax.texts] == ["a", "e"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["truth", "guess"]
    alone = plot_poses(motion.skeleton, places[0], view="side")
    np.testing.assert_allclose(alone.get_lines()[0].get_xydata()[0], places[0, 0, [2, 1]])
    assert alone.get_legend() is None


def test_poses_of_one_limb():
    motion = make_gait(1, (5, 5))
    places = motion.positions()
    limb = places.copy()
    limb[:, 4:] = np.nan
    ax = plot_poses(motion.skeleton, {"truth": places, "limb": limb}, [0, 4], labels=list("abcde"))
    whole = plot_poses(motion.skeleton, {"truth": places, "limb": places}, [0, 4], labels=list("abcde"))
    bones = np.array(motion.skeleton.bones)
    drawn = np.isfinite(ax.get_lines()[3].get_xydata()).all(1).reshape(-1, 3)[:, :2]
    np.testing.assert_array_equal(drawn, bones < 4)
    np.testing.assert_array_equal(ax.get_lines()[1].get_xydata(), whole.get_lines()[1].get_xydata())
    assert [text.get_position() for text in ax.texts] == [text.get_position() for text in whole.texts]


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("view", ["side", "three-quarter"])
def test_poses_of_a_figure_that_walks(direction, view):
    motion = make_gait(1, (9, 9))
    places = motion.positions()
    places[..., 2] += direction * 50.0 * np.arange(9)[:, None]
    ax = plot_poses(motion.skeleton, places, labels=range(9), view=view)
    ends = [(np.nanmin(x), np.nanmax(x)) for x in (line.get_xdata() for line in ax.get_lines())]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    assert len(ax.texts) == len(ends) == 8
    for text, (left, right) in zip(ax.texts, ends, strict=True):
        assert left < text.get_position()[0] < right


def test_poses_without_a_root():
    """One limb of a figure that walks, one pose of which was not seen at all."""
    motion = make_gait(1, (4, 4))
    places = motion.positions()
    places[..., 2] += 50.0 * np.arange(4)[:, None]
    places[:, :4] = places[2] = np.nan
    ax = plot_poses(motion.skeleton, places, labels=range(4), view="side")
    for k in (0, 1, 3):
        x = ax.get_lines()[k].get_xdata()
        assert np.nanmin(x) < ax.texts[k].get_position()[0] < np.nanmax(x)
    assert np.isnan(ax.get_lines()[2].get_xdata()).all()


def test_animated_frames(tmp_path):
    video = make_pendulum_video(4, 8, 8)
    seen = video.frames.copy()
    seen[2] = np.nan
    moving = animate_frames({"truth": video.frames, "seen": seen}, labels=range(4))
    path = save_animation(moving, tmp_path / "a.gif", fps=10)
    with Image.open(path) as film:
        assert film.n_frames == 4
        assert film.info["duration"] == 100
        shares = []  # of coloured pixels, in the left and in the right half
        for i in range(4):
            film.seek(i)
            pixels = np.asarray(film.convert("RGB")).astype(int)
            coloured = pixels.max(-1) - pixels.min(-1) > 40
            shares.append([half.mean() for half in np.array_split(coloured, 2, axis=1)])
    assert [[share > 0.3 for share in pair] for pair in shares] == [[False, i == 2] for i in range(4)]
    assert not plt.get_fignums()


@pytest.mark.parametrize("density", [1, 2, 3])
def test_embedded_animation(density):
    video = make_pendulum_video(4, 8, 8)
    moving = animate_frames({"a": video.frames, "b": video.frames})
    for name, least in (("dpi", 10), ("density", 1)):
        with pytest.raises(ValueError, match=f"{name} must be a whole number of at least {least}, but got 0"):
            embed_animation(moving, **{name: 0})
    shown = embed_animation(moving, fps=10, dpi=50, density=density)
    with Image.open(io.BytesIO(shown.gif)) as film:
        assert film.n_frames == 4
        assert film.info["duration"] == 100
        assert film.size == (density * shown.width, density * shown.height)
    assert shown.width == 2 * 115  # two panels of 2.3 inches
    text = shown._repr_html_()
    assert text.startswith('<img src="data:image/gif;base64,R0lGOD')
    assert f'width="{shown.width}" height="{shown.height}"' in text
    assert not plt.get_fignums()


@pytest.mark.parametrize("overlay", [True, False])
def test_animated_poses(tmp_path, overlay):
    motion = make_gait(1, (4, 4))
    moving = animate_poses(motion.skeleton, {"a": motion.positions(), "b": motion.positions()}, overlay=overlay)
    assert len(moving._fig.axes) == (1 if overlay else 2)
    with Image.open(save_animation(moving, tmp_path / "a.gif")) as film:
        frames = []
        for i in range(film.n_frames):
            film.seek(i)
            frames.append(np.asarray(film.convert("L")))
    assert len(frames) == 4
    assert (frames[0] != frames[2]).any()
    assert min(frame.min() for frame in frames) < 150  # something is drawn


def test_animated_poses_of_one_limb(tmp_path):
    motion = make_gait(1, (3, 3))
    limb = motion.positions()
    limb[:, 4:] = np.nan
    moving = animate_poses(motion.skeleton, limb, view="side")
    low, high = moving._fig.axes[0].get_ylim()
    assert low < np.nanmin(limb[..., 1]) < np.nanmax(limb[..., 1]) < high
    (drawn,) = moving._fig.axes[0].get_lines()
    for frame in (0, 2):
        moving._func(frame)
        ends = drawn.get_ydata().reshape(-1, 3)[:, :2]
        seen = np.array(motion.skeleton.bones) < 4
        np.testing.assert_allclose(ends[seen], limb[frame, np.array(motion.skeleton.bones)[seen], 1])
        assert np.isnan(ends[~seen.all(1)]).any(1).all()
    with Image.open(save_animation(moving, tmp_path / "a.gif")) as film:
        assert film.n_frames == 3


@pytest.mark.long
def test_films_keep_their_frames(tmp_path):
    frames = np.linspace(-20, 300, 6 * 9 * 12).reshape(6, 9, 12)
    wanted = np.clip(np.round(frames), 0, 255)
    with Image.open(write_film(tmp_path / "a.gif", frames, 10)) as film:
        film.seek(3)
        np.testing.assert_allclose(np.asarray(film.convert("L")), wanted[3], atol=1)
    pytest.importorskip("av", reason="the [video] extra is not installed")
    pytest.importorskip("imageio", reason="the [video] extra is not installed")
    again = load_video(write_film(tmp_path / "a.mp4", frames, 10))
    assert again.shape == (10, 12)  # even sides: the last row is there twice
    assert again.fps == pytest.approx(10)
    np.testing.assert_allclose(again.frames[:, :9], wanted, atol=30)  # compressed, with loss


@pytest.mark.long
def test_gifs_keep_frames_that_are_as_those_before(tmp_path):
    random = np.random.default_rng(0)
    still = np.repeat(random.integers(0, 256, (4, 8, 8)), 3, axis=0)
    part = random.integers(0, 4, (5, 9, 7, 3)) * 80
    part[2, :, 3:] = part[1, :, 3:]  # what does not change is not written again
    for frames, mode in ((still, "L"), (part, "RGB"), (still[:3], "L"), (still[:1], "L")):
        with Image.open(write_film(tmp_path / "a.gif", frames, 12.5)) as film:
            assert film.n_frames == len(frames)
            for i, frame in enumerate(frames):
                film.seek(i)
                assert film.info["duration"] == 80
                np.testing.assert_array_equal(np.asarray(film.convert(mode)), frame)
    pytest.importorskip("av", reason="the [video] extra is not installed")
    pytest.importorskip("imageio", reason="the [video] extra is not installed")
    for fps in (0.01, 0.5, 10.0):
        again = load_video(write_film(tmp_path / "a.gif", still, fps))
        np.testing.assert_array_equal(again.frames, still)
        assert again.fps == pytest.approx(fps)


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("fps", [1 / 3600, 0.3, 12.5, 30000 / 1001])
def test_films_keep_their_rate(tmp_path, suffix, fps):
    pytest.importorskip("av", reason="the [video] extra is not installed")
    pytest.importorskip("imageio", reason="the [video] extra is not installed")
    film = load_video(write_film(tmp_path / f"a.{suffix}", np.zeros((5, 16, 16)), fps))
    assert film.fps == pytest.approx(fps, rel=1e-6)
    assert len(film.frames) == 5


@pytest.mark.parametrize(
    ("name", "frames", "fps", "message"),
    [
        ("a.bmp", np.ones((2, 8, 8)), 10, "must end in one of .gif, .mp4"),
        ("a.gif", np.ones((8, 8)), 10, r"frames must be \(T, H, W\)"),
        ("a.gif", np.full((2, 8, 8), np.nan), 10, "frames must be finite"),
        ("a.gif", np.ones((2, 8, 8)), 0, "fps must be positive"),
    ],
)
def test_films_refuse(tmp_path, name, frames, fps, message):
    with pytest.raises(ValueError, match=message):
        write_film(tmp_path / name, frames, fps)
    assert not list(tmp_path.iterdir())


def test_a_legend_of_several_axes_has_each_label_once():
    figure, (first, second) = plt.subplots(2, 1)
    first.plot([0, 1], label="a")
    second.plot([0, 1], label="a")
    second.plot([1, 0], label="b")
    legend_above(first, labelled(first, second))
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["a", "b"]
    plt.close(figure)


def test_a_legend_does_not_cover_the_factor_of_large_numbers():
    figure, (small, large) = plt.subplots(2)
    for ax, size in ((small, 1.0), (large, 1e12)):
        ax.plot(size * np.arange(3.0), label="a")
        legend_above(ax, labelled(ax))
    figure.canvas.draw()
    for ax in (small, large):
        overlap = ax.get_legend().get_window_extent().overlaps(ax.yaxis.get_offset_text().get_window_extent())
        assert not ax.yaxis.get_offset_text().get_text() or not overlap
    assert large.yaxis.get_offset_text().get_text() == "1e12"
    assert ax.get_legend().get_window_extent().x0 > small.get_legend().get_window_extent().x0
    plt.close(figure)
