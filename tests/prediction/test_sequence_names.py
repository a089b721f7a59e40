# SPDX-License-Identifier: Apache-2.0
"""Sequences by name, and predictions of several sequences apart."""

import io

import numpy as np
import pandas
import pyro
import pytest
import torch
from problems import make_data, make_model
from pyro.infer import Predictive

from pyro_vgpds import (
    Ensemble,
    Posterior,
    PosteriorMixture,
    Sequences,
    Solver,
    load,
    load_posterior,
    save,
    save_posterior,
)
from pyro_vgpds.cli import main
from pyro_vgpds.data.parts import take_frames, with_outputs
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.kernels import Matern32, White
from pyro_vgpds.prediction import condition
from pyro_vgpds.prediction.combination import Combination
from pyro_vgpds.prediction.intervals import Calibration
from pyro_vgpds.selection.named_baselines import make_baseline
from pyro_vgpds.training.metadata import Metadata

NAMES = ["2014/15", "2015/16", "2016/17"]
SOLVER = Solver(num_starts=1, num_steps=5)


@pytest.fixture(scope="module")
def data():
    torch.set_default_dtype(torch.float64)
    plain = make_data((8, 6, 7))
    t, y = plain.times.t.split(plain.lengths), plain.y.split(plain.lengths)
    return Sequences(list(t), list(y), names=NAMES, columns=list("abcde"))


@pytest.fixture(scope="module")
def predictors(data):
    """A posterior, a mixture, an ensemble and a baseline."""
    one = Posterior(*make_model(data), data)
    both = PosteriorMixture([one, Posterior(one.origin.model, one.origin.guide, data, noise_variance=0.2)])
    alone = {"forecast": Combination(torch.ones(1, 5), Calibration.none(5))}
    line = make_baseline("linear interpolation", data)
    return one, both, Ensemble([line], alone), line


def options(predictor):
    """A quick solver, for predictors that have one."""
    return {"solver": SOLVER} if isinstance(predictor, (Posterior, PosteriorMixture)) else {}


@pytest.fixture
def posterior(predictors):
    return predictors[0]


def test_names_work_like_numbers(predictors, posterior):
    t = torch.tensor([3.1, 3.2])
    y = torch.randn(2, 5)
    y[:, 2] = torch.nan
    for one in predictors:
        assert torch.equal(one.forecast(t, sequence="2015/16").mean, one.forecast(t, sequence=1).mean)
        assert not torch.equal(one.forecast(t, "2015/16").mean, one.forecast(t, "2016/17").mean)
        several = (["2016/17", None], [2, None])
        found = [one.reconstruct([t, t], [y, y], sequence=s, **options(one)).mean for s in several]
        torch.testing.assert_close(*found)
        assert one.condition(one.data, ["2014/15", "2015/16", None]).data.lengths == (8, 6, 7)
        if hasattr(one, "generate"):
            draws = []
            for s in ("2015/16", 1):
                pyro.set_rng_seed(0)
                draws.append(one.generate(t, 2, sequence=s))
            assert torch.equal(*draws)
    projected = [posterior.project(t, y, sequence=s, solver=SOLVER).mean for s in ("2014/15", 0)]
    assert torch.equal(*projected)
    assert Predictive(posterior.as_model("2016/17"), num_samples=2)(t)["y"].shape == (2, 2, 5)


def test_unknown_names_list_the_known_ones(predictors, posterior):
    known = "sequence must be 0 to 2, or one of the names '2014/15', '2015/16', '2016/17', or None for a new sequence"
    for one in predictors:
        with pytest.raises(ValueError, match=f"{known}, but got '2015'"):
            one.forecast([3.1], sequence="2015")
        with pytest.raises(ValueError, match=f"{known}, but got 'x'"):
            one.reconstruct([3.1], torch.randn(1, 5), "x")
        with pytest.raises(ValueError, match=r"sequence is required because there are 3 .*'2014/15', '2015/16'"):
            one.forecast([3.1])
    with pytest.raises(ValueError, match=r"one of the 3 training sequences \(names: '2014/15', .*\), or None, but got"):
        posterior.condition(posterior.data, ["2014/15", "x", None])
    with pytest.raises(ValueError, match=r"0 to 2, or one of the names .* but got 3"):
        posterior.forecast([3.1], 3)


def test_many_names_are_shortened():
    data = make_data((2,) * 30)
    data = Sequences(list(data.times.t.split(2)), list(data.y.split(2)), names=[f"s{i}" for i in range(30)])
    with pytest.raises(ValueError, match="'s18', 's19', …, or None"):
        Posterior(*make_model(data), data).forecast([1.0], "x")


def test_names_are_checked():
    t, y = [[0.0, 1.0], [0.0, 1.0]], [np.ones((2, 1)), np.ones((2, 1))]
    for names in (["a"], ["a", "a"]):
        with pytest.raises(ValueError, match="names must be 2 different names, one for each sequence of t, but got"):
            Sequences(t, y, names=names)
    for names in ("ab", [1, 2]):
        with pytest.raises(TypeError, match="names must be a list of strings"):
            Sequences(t, y, names=names)


def test_names_stay(data):
    assert data.lagged([1]).names == NAMES
    assert take_frames(data, [slice(0, 3), slice(0, 0), slice(1, 4)]).names == ["2014/15", "2016/17"]
    assert with_outputs(data, data.y + 1).names == NAMES
    other = Sequences(list(data.times.t.split(data.lengths)), list(data.y.split(data.lengths)), names=list("xyz"))
    assert data.joined(other).names == [*NAMES, "x", "y", "z"]
    assert data.joined(make_data((3,))).names is None


def test_files_keep_names(predictors, posterior, tmp_path, capsys):
    for one in predictors[:3]:
        save_posterior(tmp_path / "one.safetensors", one)
        again = load_posterior(tmp_path / "one.safetensors")
        assert again.data.names == NAMES
        assert again.forecast([3.1], "2015/16").mean.shape == (1, 5)
    origin = posterior.origin
    save(tmp_path / "model.safetensors", origin.model, origin.guide, posterior.data)
    assert load(tmp_path / "model.safetensors")[2].names == NAMES
    # the command line knows the names of files that Python wrote
    assert main(["forecast", str(tmp_path / "model.safetensors"), "--sequence", "2016/17", "--times", "3.1,3.2"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2016/17,3.1,")


def test_older_files_have_names_as_metadata(predictors, tmp_path):
    def strip_names(path):
        header, tensors = read_file(path, "model", "mixture", "ensemble")
        for part in (header, *header.get("members", []), *header.get("sequences", [])):
            part.get("data", {}).pop("names", None)
        kind = header.pop("kind")
        write_file(path, kind, {k: v for k, v in header.items() if k not in ("format", "version")}, tensors)

    about = Metadata("seasons.csv", names=NAMES).pack()
    for one in predictors[:3]:
        for metadata, names in ((about, NAMES), ({"names": NAMES}, None), ({**about, "names": NAMES[:2]}, None)):
            path = tmp_path / "old.safetensors"
            save_posterior(path, one, metadata)
            strip_names(path)
            assert load_posterior(path).data.names == names


def test_splitting(predictors):
    t = [[3.1, 3.2], [0.1, 0.2, 0.3], [3.0]]
    y = [torch.randn(len(times), 5) for times in t]
    for part in y:
        part[:, 1] = torch.nan
    for one in predictors:
        found = one.reconstruct(t, y, [1, None, "2014/15"], **options(one))
        assert found.parts.names == ["2015/16", "new 1", "2014/15"]
        parts = found.split()
        assert [part.shape for part in parts] == [(2, 5), (3, 5), (1, 5)]
        torch.testing.assert_close(torch.cat([part.mean for part in parts]), found.mean)
        torch.testing.assert_close(torch.cat([part.interval(0.9)[1] for part in parts]), found.interval(0.9)[1])
        assert [part.t.tolist() for part in parts] == t
        assert [part.parts.names for part in parts] == [["2015/16"], ["new 1"], ["2014/15"]]
        frame = found.to_pandas()
        assert frame.index.names == ["sequence", "time"]
        np.testing.assert_allclose(frame.loc["new 1"].to_numpy(), parts[1].mean)
        assert parts[0].to_pandas().index.tolist() == t[0]
        assert one.reconstruct(t, y, **options(one)).parts.names == ["0", "1", "2"]
        imputed = one.impute()
        assert imputed.parts.names == NAMES
        assert [len(part.t) for part in imputed.split()] == [8, 6, 7]
        only = one.forecast([3.1, 3.2], 0)
        assert [part.t.tolist() for part in only.split()] == [[3.1, 3.2]]
        assert only.to_pandas().index.tolist() == [3.1, 3.2]


def test_tables_name_the_sequences(posterior, tmp_path):
    t = [[3.1, 3.2], [0.1]]
    y = [torch.randn(2, 5), torch.randn(1, 5)]
    found = posterior.reconstruct(t, y, ["2016/17", None], solver=SOLVER)
    found.to_file(tmp_path / "found.csv", 0)
    frame = pandas.read_csv(tmp_path / "found.csv")
    assert frame["sequence"].tolist() == ["2016/17", "2016/17", "new 1"]
    again = Sequences.from_frame(frame, time="time", sequence="sequence")
    assert again.names == ["2016/17", "new 1"]
    np.testing.assert_allclose(again.y, found.mean, rtol=1e-9)
    stream = io.StringIO()
    found.to_file(stream, 0, sequence=["p", "p", "q"])
    assert stream.getvalue().splitlines()[3].startswith("q,0.1,")
    stream = io.StringIO()
    found.split()[0].to_file(stream, 0)
    assert stream.getvalue().startswith("time,a,b")


# tables of pandas


def test_text_is_not_a_date():
    frame = pandas.DataFrame({"when": ["2024-05-06", "2024-05-07"], "y": [1.0, 2.0]})
    with pytest.raises(
        TypeError,
        match=r"time='when' is text such as '2024-05-06', but must be numbers or dates. Read dates with "
        r"pandas.read_csv\(..., parse_dates=\['when'\]\), or convert them: frame\['when'\] = pandas.to_datetime",
    ):
        Sequences.from_frame(frame, time="when")
    with pytest.raises(TypeError, match=r"the index is text such as '2024-05-06'.* parse_dates=True"):
        Sequences.from_frame(frame.set_index("when"))
    with pytest.raises(TypeError, match=r"pandas.read_csv\(..., parse_dates=\['when'\], dayfirst=True\)"):
        Sequences.from_frame(frame.assign(when="06.05.2024"), time="when")
    frame["when"] = pandas.to_datetime(frame["when"])
    assert Sequences.from_frame(frame, time="when").time_origin == np.datetime64("2024-05-06")


def test_numbers_as_names():
    frame = pandas.DataFrame({"year": [2015, 2015, 2016], "t": [0.0, 1.0, 0.0], "y": [1.0, 2.0, 3.0]})
    assert Sequences.from_frame(frame, time="t", sequence="year").names == ["2015", "2016"]
    assert Sequences.from_frame(frame, time="t", sequence="year", names=["a", "b"]).names == ["a", "b"]
    assert Sequences.from_frame(frame.iloc[:2], time="t").names is None


def test_conditioning_on_dates_of_another_origin():
    days = np.datetime64("2024-03-01", "s") + np.arange(12) * np.timedelta64(1, "D")
    y = make_data((12,)).y
    data = Sequences(days, y)
    post = Posterior(*make_model(data, temporal=Matern32(1.0, "3d") + White(0.02)), data)
    later, twin = Sequences(days[4:], y[4:]), take_frames(data, [slice(4, None)])
    assert later.time_origin != data.time_origin
    found, wanted = (condition(post, one) for one in (later, twin))
    assert found.data.time_origin == data.time_origin
    assert found.bound == pytest.approx(wanted.bound, rel=1e-9)
    numbers = Sequences(twin.times.t, y[4:])  # seconds since the first date of training
    assert condition(post, numbers).bound == pytest.approx(wanted.bound, rel=1e-9)
    plain = make_data((12,))
    with pytest.raises(TypeError, match="data has dates, but the training times are numbers"):
        Posterior(*make_model(plain), plain).condition(data)
