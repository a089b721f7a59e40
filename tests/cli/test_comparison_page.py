# SPDX-License-Identifier: Apache-2.0
"""The held-out predictions behind the page of a comparison, and the outputs that it shows."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from pyro_vgpds import Sequences, auto
from pyro_vgpds.plotting.comparisons import draw_errors, draw_panel
from pyro_vgpds.selection.combining import LEVELS
from pyro_vgpds.selection.comparison import ENSEMBLE
from pyro_vgpds.selection.page import _sampling, write_page
from pyro_vgpds.selection.pictures import Pictures
from pyro_vgpds.selection.problem import Problem


def make_data(sequences=5, outputs=4, missing=0.1):
    rng = np.random.default_rng(0)
    t = [np.arange(20 + 2 * s) / 4 for s in range(sequences)]
    y = [np.sin(part[:, None] + np.arange(outputs)) + 0.1 * rng.standard_normal((len(part), outputs)) for part in t]
    for part in y:
        part[rng.random(part.shape) < missing] = np.nan
    return Sequences(t, y)


@pytest.mark.parametrize("task", ["impute", "reconstruct", "forecast"])
@pytest.mark.parametrize("sequences", [1, 5])
def test_entries_are_those_of_the_data(task, sequences):
    data = make_data(sequences)
    names = ["column mean", "one GP for each output"]
    report = auto(data, task, candidates=[], baselines=names, progress=False).report
    entries, y = report.comparison.entries, data.read()
    for i, output in enumerate(report.comparison.output.tolist()):
        rows = data.times.slices()[int(entries.sequence[i])]
        frame = (data.times.t[rows] == entries.t[i]).nonzero().item()
        assert y[rows][frame, output] == report.comparison.truth[i]
    if task == "forecast":
        origins = Problem(data, task, None, 0).splits
        assert len(origins) >= 3
        assert entries.split.unique().tolist() == list(range(len(origins)))
    assert set(report.comparison.found) == {ENSEMBLE, *names} - set(report.stopped)
    # the same scores as in the table
    scale = data.output_scales
    assert report.comparison.error(ENSEMBLE, scale) == pytest.approx(report.ensemble.error)
    assert report.comparison.coverage(ENSEMBLE, 0.95) == pytest.approx(report.ensemble.inside)
    for candidate in (one for one in report.candidates if one.name not in report.stopped):
        assert report.comparison.error(candidate.name, scale) == pytest.approx(candidate.error)
        assert report.comparison.coverage(candidate.name, 0.95) == pytest.approx(candidate.inside)
    inside = [report.comparison.coverage(ENSEMBLE, level) for level in LEVELS]
    assert inside == sorted(inside)


def test_pictures_show_what_can_be_predicted():
    rng = np.random.default_rng(0)
    t = np.arange(80) / 4
    y = np.concatenate([rng.standard_normal((80, 6)), np.sin(t[:, None] + np.arange(4))], 1)  # noise, then a signal
    data = Sequences(t, y)
    found = auto(data, "impute", candidates=[], baselines=["linear interpolation", "column mean"], progress=False)
    pictures = Pictures(found.report, found.report.comparison, data)
    assert pictures.shown[0] == ENSEMBLE
    assert len(pictures._telling()) == 4
    assert set(pictures._telling()) & {6, 7, 8, 9}
    assert pictures.ahead() is None
    panel = pictures._panel(7)
    assert np.isnan(panel.known[panel.at]).all()
    np.testing.assert_allclose(panel.truth, y[panel.at, 7])


def test_bands_of_pictures_do_not_pass_limits():
    t = np.arange(96.0)
    light = np.maximum(0.0, np.sin(2 * np.pi * t / 12)) * (1.0 + 0.3 * np.random.default_rng(0).standard_normal(96))
    data = Sequences(t, np.stack([light, np.cos(t)], 1))
    found = auto(data, "forecast", candidates=[], baselines=["column mean"], horizon=12, progress=False)
    assert float(found.report.comparison.interval()[0].min()) < 0.0  # symmetric
    lower, upper = Pictures(found.report, found.report.comparison, data)._panel(0).band
    assert lower.min() == 0.0
    assert upper.min() > 0.0


def test_names_are_escaped(tmp_path):
    data = make_data(2)
    found = auto(data, "impute", candidates=[], baselines=["column mean"], progress=False)
    text = write_page(tmp_path / "a.html", found.report, data, source="<b>&", names=["<i>", "u"]).read_text()
    assert "&lt;b&gt;&amp;" in text
    assert "2: &lt;i&gt;, u" in text
    assert "<b>" not in text
    assert torch.is_tensor(found.report.comparison.truth)


def test_panels_of_the_same_times_have_the_same_axis():
    t = np.arange(30.0)
    y = np.sin(t[:, None] + np.arange(2))
    y[:8, 1] = np.nan  # matplotlib's own range of the times would begin after them
    data = Sequences(t, y)
    found = auto(data, "forecast", horizon=4, candidates=[], baselines=["last value", "last cycle"], progress=False)
    pictures = Pictures(found.report, found.report.comparison, data)
    figure = Figure()
    for output, ax in enumerate(figure.subplots(2, 1)):
        panel = pictures._panel(output)
        assert np.isnan(panel.known[0]) == (output == 1)
        draw_panel(ax, panel, pictures.colors, 0.95)
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    assert figure.axes[0].get_xlim()[0] <= panel.t[0]


@pytest.mark.parametrize(("last", "length"), [(1.4, 1.4), (8.0, 1.5)])
def test_only_bars_of_large_errors_are_cut(last, length):
    ax = Figure().subplots()
    draw_errors(ax, ["ensemble", "a", "b"], [0.2, 0.3, last], ["ensemble", "model", "baseline"])
    assert [bar.get_width() for bar in ax.patches] == [0.2, 0.3, length]
    assert [text.get_text().endswith("(bar is cut)") for text in ax.texts] == [False, False, last > length]


def test_bars_of_estimated_errors_are_hatched():
    ax = Figure().subplots()
    draw_errors(ax, ["ensemble", "a", "b"], [0.2, 0.3, 0.4], ["ensemble", "model", "baseline"], ["a"])
    assert [bool(bar.get_hatch()) for bar in ax.patches] == [False, True, False]
    assert "estimated" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (np.arange(9) / 4, "regular, every 0.25"),
        (np.arange("2023-01", "2024-01", dtype="datetime64[M]"), "regular, every 28 d to 31 d"),
        (np.array(["2024-01-01", "2024-01-02", "2024-01-05"], "datetime64[D]"), "irregular: steps from 1 d to 3 d, "),
        ([3.0], "1 frame in each sequence"),
    ],
)
def test_months_are_regular(times, words):
    assert _sampling(Sequences(times, np.ones(len(times)))).startswith(words)
