# SPDX-License-Identifier: Apache-2.0
"""Outputs that are not Gaussian, from the command line."""

import json
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from written import read_csv, write_csv

from pyro_vgpds import VGPDS, Ensemble, Posterior, PosteriorMixture, Sequences, load_posterior, save_posterior
from pyro_vgpds.cli import main
from pyro_vgpds.cli.options import likelihood_facts, likelihood_text
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import parse_kernel
from pyro_vgpds.likelihoods import Bernoulli, Binomial, ByColumn, NegativeBinomial, StudentT
from pyro_vgpds.training import fit

NAMES = ["a", "b", "c", "d"]
SIZE = ["--latent-dim", "2", "--num-inducing", "6", "--steps", "6"]


def write(path, y) -> None:
    rows = ([f"{n / 2:g}", *(f"{v:g}" if np.isfinite(v) else "" for v in row)] for n, row in enumerate(y))
    write_csv(path, ["time", *NAMES], rows)


def read(path) -> tuple[list[str], np.ndarray]:
    header, rows = read_csv(path)
    return header, np.array(rows, dtype=float)


def run(*arguments) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("likelihoods")
    rng = np.random.default_rng(0)
    t = np.arange(24) / 2.0
    counts = rng.poisson(np.exp(0.7 + np.sin(t[:, None] / 2 + np.arange(4)))).astype(float)
    found = SimpleNamespace(counts=folder / "counts.csv", yes=folder / "yes.csv", t=t, y=counts)
    write(found.counts, counts)
    write(found.yes, counts > 1)
    for kind, name, source in (("c", "negative-binomial", found.counts), ("b", "bernoulli", found.yes)):
        model = folder / f"{kind}.safetensors"
        assert run("fit", source, "--likelihood", name, "-o", model, *SIZE, "-q") == 0
        setattr(found, kind, model)
    return found


# fit


def test_fit_is_that_of_python(files):
    pyro.set_rng_seed(0)
    data = Sequences(files.t, files.y, columns=NAMES)
    model = VGPDS.from_data(data, 2, 6, likelihood=NegativeBinomial())
    guide = AutoOpperArchambeau(model)
    model.relevance(guide, data)  # meets the data, as the command does for its figure
    fit(model, guide, data, 6)
    post, loaded = Posterior(model, guide, data), load_posterior(files.c)
    assert loaded.bound == pytest.approx(post.bound, abs=1e-9)
    assert isinstance(loaded.likelihood.likelihood, NegativeBinomial)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("student-t", "StudentT, scale "), ("Binomial:40", "Binomial, total 40"), ("poisson", "Poisson")],
)
def test_fit_says_what_it_does(files, tmp_path, capsys, name, shown):
    assert run("fit", files.counts, "--likelihood", name, "-o", tmp_path / "m.safetensors", *SIZE) == 0
    said = capsys.readouterr().err
    assert "--latent-dim, --num-inducing, --steps belong to a single model, so one is trained, as with --quick" in said
    assert f"latent dimensions are active; {shown}" in said


def test_quick_trains_one_model(files, tmp_path):
    assert run("fit", files.yes, "--likelihood", "bernoulli", "--quick", "-o", tmp_path / "m.safetensors") == 0
    assert isinstance(load_posterior(tmp_path / "m.safetensors"), Posterior)


@pytest.mark.parametrize(("name", "source"), [("poisson", "counts"), ("bernoulli", "yes")])
def test_a_likelihood_alone_compares_models(files, tmp_path, capsys, name, source):
    model, ahead = tmp_path / "m.safetensors", tmp_path / "ahead.csv"
    file, only = getattr(files, source), ["--candidates", "linear mapping"]
    page = tmp_path / "page.html"
    assert run("fit", file, "--likelihood", name, "--horizon", 2, *only, "-o", model, "--report", page) == 0
    said = capsys.readouterr().out
    assert "log score" in said
    assert ("common level" in said) is (name == "poisson")
    assert ("neighbouring frames" in said) is (name == "bernoulli")
    assert "Log scores are mean log-probabilities" in page.read_text()
    found = load_posterior(model)
    assert isinstance(found, Ensemble)
    assert run("info", model) == 0
    assert "linear mapping" in capsys.readouterr().out
    assert run("forecast", model, "--horizon", 2, "-o", ahead) == 0
    header, rows = read(ahead)
    lower = rows[:, [i for i, column in enumerate(header) if column.endswith("lower")]]
    assert (lower == lower.round()).all()
    upper = found.forecast(found.data.times.t[-1:] + 0.5).interval()[1]
    assert (rows[0, [i for i, column in enumerate(header) if column.endswith("upper")]] == upper[0].numpy()).all()


def test_evaluate_writes_the_page_of_a_likelihood(files, tmp_path, capsys):
    page = tmp_path / "page.html"
    only = ["--candidates", "none", "--horizon", 2, "--likelihood"]
    assert run("evaluate", files.counts, *only, "negative-binomial", "-o", page) == 0
    said = capsys.readouterr().out
    assert "log score" in said
    assert "mean count" in said
    text = page.read_text()
    assert "<th>log score</th>" in text or "log score" in text
    assert "Those of counts and of yes/no are whole numbers" in text
    assert "calibrated on the other half" not in text
    assert run("evaluate", files.counts, *only, "cauchy", "-o", page, "--force") == 2
    assert "--likelihood: there is no likelihood 'cauchy'" in capsys.readouterr().err
    wrong = ["--baselines", "last value"]
    assert run("evaluate", files.counts, *only, "poisson", *wrong, "-o", page, "--force") == 2
    assert "--baselines: 'last value' is unknown" in capsys.readouterr().err
    assert run("evaluate", files.counts, *only, "bernoulli", "-o", page, "--force") == 1
    assert "outputs must be 0 or 1" in capsys.readouterr().err


def test_gaussian_is_the_default(files, tmp_path, capsys):
    model = tmp_path / "m.safetensors"
    assert run("fit", files.counts, "--likelihood", "gaussian", "-o", model, *SIZE, "--one-noise") == 0
    assert "--likelihood" not in capsys.readouterr().err
    assert load_posterior(model).likelihood is None


def test_training_goes_on_from_a_checkpoint(files, tmp_path):
    size = ["--latent-dim", "2", "--num-inducing", "6", "--likelihood", "negative-binomial", "-q"]
    first, second = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    check = ["--checkpoint", tmp_path / "c"]
    assert run("fit", files.counts, "-o", first, *size, "--steps", 3, *check) == 0
    assert run("fit", files.counts, "-o", second, *size, "--steps", 6, *check, "--resume") == 0
    # of a run that was never stopped, except for the warm-up, which depends on the number of steps
    assert load_posterior(second).bound == pytest.approx(load_posterior(files.c).bound, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--likelihood", "cauchy"], "--likelihood: there is no likelihood 'cauchy'; there are bernoulli, gaussian, "),
        (["--likelihood", "binomial"], "--likelihood: binomial needs the number of trials, as in binomial:10, but got"),
        (["--likelihood", "binomial:0"], "--likelihood: binomial needs the number of trials, as in binomial:10, but"),
        (["--likelihood", "binomial:x"], "--likelihood: binomial needs the number of trials, as in binomial:10, but"),
        (["--likelihood", "poisson:3"], "--likelihood: poisson takes no number, but got 'poisson:3'."),
        (["--likelihood", "bernoulli", "--one-noise"], "--one-noise needs Gaussian outputs, but got --likelihood bern"),
        (["--likelihood", "bernoulli", "--calibrate", "impute"], "--calibrate needs Gaussian outputs, but got --likel"),
        (["--likelihood", "bernoulli", "--noise-factor", "2"], "--noise-factor needs Gaussian outputs, but got --like"),
        (
            ["--likelihood", "bernoulli", "--residual", "white"],
            "--residual needs Gaussian or Student-t outputs, but got",
        ),
        (
            ["--likelihood", "bernoulli", "--task", "forecast", "--latent-dim", "2"],
            "--task cannot be combined with --latent-dim, which trains a single model without a comparison.",
        ),
        (
            ["--likelihood", "poisson", "--baselines", "last value"],
            "--baselines: 'last value' is unknown; known: mean count; common level; common cycle; or none.",
        ),
    ],
)
def test_arguments_that_do_not_fit(files, tmp_path, capsys, arguments, message):
    assert run("fit", files.counts, "-o", tmp_path / "m.safetensors", *arguments) == 2
    assert f"pyro-vgpds fit: error: {message}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("likelihood", "value", "message"),
    [
        ("poisson", -1.0, "has -1 in output 2 ('c'), frame 5 of sequence 0, but Poisson outputs must be a count"),
        ("negative-binomial", 0.25, "has 0.25 in output 2 ('c'), frame 5 of sequence 0, but NegativeBinomial outputs"),
        ("bernoulli", 2.0, "has 2 in output 2 ('c'), frame 5 of sequence 0, but Bernoulli outputs must be 0 or 1. NaN"),
        ("binomial:3", 4.0, "has 4 in output 2 ('c'), frame 5 of sequence 0, but Binomial outputs must be a whole "
         "number from 0 to 3. NaN"),
    ],
)  # fmt: skip
def test_outputs_that_are_not_possible(files, tmp_path, capsys, likelihood, value, message):
    y = (files.y > 1).astype(float)
    y[5, 2] = value
    write(tmp_path / "bad.csv", y)
    model = tmp_path / "m.safetensors"
    assert run("fit", tmp_path / "bad.csv", "--likelihood", likelihood, "-o", model, *SIZE) == 1
    assert f"pyro-vgpds fit: error: {tmp_path / 'bad.csv'}: data {message}" in capsys.readouterr().err
    assert not model.exists()


def test_the_number_of_further_entries(files, tmp_path, capsys):
    y = (files.y > 1).astype(float)
    for more, text in ((1, ", and 1 more entry is not."), (2, ", and 2 more entries are not.")):
        y[5, : more + 1] = 7.0
        write(tmp_path / "bad.csv", y)
        assert run("fit", tmp_path / "bad.csv", "--likelihood", "bernoulli", "-o", tmp_path / "m.safetensors") == 1
        assert text in capsys.readouterr().err


# predictions


def test_forecasts_of_counts_have_whole_intervals(files, tmp_path):
    assert run("forecast", files.c, "--until", "13", "-o", tmp_path / "f.csv", "--interval", "0.9", "-q") == 0
    header, rows = read(tmp_path / "f.csv")
    predicted = load_posterior(files.c).forecast(rows[:, 0])
    assert header[:4] == ["time", "a", "a lower", "a upper"]
    assert np.allclose(rows[:, 1::3], predicted.mean.numpy(), rtol=1e-9)
    ends = rows[:, 2::3], rows[:, 3::3]
    assert all((end == end.round()).all() and (end >= 0).all() for end in ends)
    assert "." not in (tmp_path / "f.csv").read_text().splitlines()[1].split(",")[2]
    for end, own in zip(ends, predicted.interval(0.9), strict=True):
        assert (end == own.numpy()).all()
    assert run("forecast", files.c, "--until", "13", "-o", tmp_path / "rate.csv", "--no-noise", "-q") == 0
    rates = read(tmp_path / "rate.csv")[1]
    assert np.allclose(rates[:, 1::3], rows[:, 1::3])
    assert (rates[:, 3::3] < rows[:, 3::3]).all()


def test_forecasts_of_yes_and_no_are_probabilities(files, tmp_path):
    assert run("forecast", files.b, "--until", "13", "-o", tmp_path / "f.csv", "-q") == 0
    rows = read(tmp_path / "f.csv")[1]
    assert ((rows[:, 1::3] > 0) & (rows[:, 1::3] < 1)).all()
    assert set(np.unique(rows[:, 2:4])) <= {0.0, 1.0}


def test_generated_counts_are_whole(files, tmp_path):
    assert run("generate", files.c, "--samples", "3", "--until", "5", "-o", tmp_path / "g.csv", "-q") == 0
    rows = read(tmp_path / "g.csv")[1]
    draws = rows[:, 2:]
    assert (draws == draws.round()).all()
    assert (draws >= 0).all()
    assert draws.max() > 1


def test_reconstructions(files, tmp_path, capsys):
    y = files.y.copy()
    y[3:6, 1] = np.nan
    write(tmp_path / "new.csv", y)
    assert run("reconstruct", files.c, tmp_path / "new.csv", "-o", tmp_path / "r.csv", "--interval", "0.9") == 0
    rows = read(tmp_path / "r.csv")[1]
    assert (rows[:, 1] == files.y[:, 0]).all()  # observed numbers are as they were
    hidden = rows[3:6, 5:7]
    assert (hidden == hidden.round()).all()
    assert run("reconstruct", files.c, files.counts, "--hide", "a", "-o", tmp_path / "h.csv") == 0
    assert "error on the hidden values: root mean square" in capsys.readouterr().err
    y[0, 3] = -2.0
    write(tmp_path / "bad.csv", y)
    assert run("reconstruct", files.c, tmp_path / "bad.csv", "-o", tmp_path / "b.csv") == 1
    assert (
        f"{tmp_path / 'bad.csv'}: y has -2 in output 3 ('d'), frame 0 of sequence 0, but NegativeBinomial outputs must "
        "be a count: a whole number of 0 or more. NaN marks missing entries." in capsys.readouterr().err
    )


def test_every_way_to_give_impossible_outputs():
    """In Python, before any work is done."""
    t = torch.arange(8.0)
    y = torch.poisson(torch.full((8, 2), 2.0))
    data = Sequences(t, y, columns=["a", "b"])
    model = VGPDS.from_data(data, 1, 4, likelihood=NegativeBinomial())
    post = Posterior(model, AutoOpperArchambeau(model), data)
    bad = torch.tensor([[0.0, 1.0], [2.0, 0.5]])
    message = r" has 0.5 in output 1 \('b'\), frame 1 of sequence 0, but NegativeBinomial outputs must be a count"
    for name, call in (
        ("y", lambda: post.reconstruct([0.0, 1.0], bad)),
        ("y", lambda: post.project([0.0, 1.0], bad)),
        ("y", lambda: post.log_density([0.0, 1.0], bad)),
        ("y", lambda: post.extended([8.0, 9.0], bad)),
        ("given", lambda: post.forecast([8.0, 9.0], given=bad)),
        ("data", lambda: post.condition(Sequences([0.0, 1.0], bad))),
    ):
        with pytest.raises(ValueError, match=f"^{name}{message}"):
            call()


@pytest.mark.parametrize(
    ("option", "value", "kinds"),
    [("--noise-factor", "2", "Gaussian"), ("--residual", "white(variance=1)", "Gaussian or Student-t")],
)
def test_options_of_gaussian_noise(files, capsys, option, value, kinds):
    assert run("forecast", files.c, "--until", "13", option, value) == 2
    message = f"{option} needs {kinds} outputs, but the likelihood is NegativeBinomial(dispersion=(4 values))."
    assert message in capsys.readouterr().err


def test_residuals_of_student_t_outputs(files, tmp_path, capsys):
    path, kernel = tmp_path / "m.safetensors", "matern32(lengthscale=2)+white(variance=0.7)"
    assert run("fit", files.counts, "--likelihood", "student-t", "--residual", kernel, "-o", path, *SIZE, "-q") == 0
    assert repr(load_posterior(path).origin.residual) == repr(parse_kernel(kernel))
    assert run("forecast", path, "--until", "13", "--residual", "bias(variance=1)") == 1
    assert "--residual: residual of Student-t outputs must be the sum of White()" in capsys.readouterr().err


# info and plot


def test_info(files, capsys):
    assert run("info", files.c) == 0
    text = capsys.readouterr().out
    assert "likelihood NegativeBinomial, dispersion " in text
    assert "noise sd" not in text
    assert "divided by its standard deviation" not in text
    assert run("info", files.c, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["noise_sd"] is None
    assert facts["likelihood"]["kind"] == "NegativeBinomial"
    assert facts["likelihood"]["dispersion"] == load_posterior(files.c).likelihood.parameters.dispersion.tolist()


def test_info_of_a_mixture_and_of_gaussian_models(files, tmp_path, capsys):
    post = load_posterior(files.c)
    save_posterior(tmp_path / "mixture.safetensors", PosteriorMixture([post, post]))
    assert run("info", tmp_path / "mixture.safetensors") == 0
    assert capsys.readouterr().out.count("likelihood NegativeBinomial, dispersion") == 2
    model = tmp_path / "gaussian.safetensors"
    assert run("fit", files.counts, "-o", model, *SIZE, "-q") == 0
    assert run("info", model, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["likelihood"] is None
    assert len(facts["noise_sd"]) == 4
    assert run("info", model) == 0
    assert "noise sd   " in capsys.readouterr().out


def test_short_forms():
    assert likelihood_text(Bernoulli()()) == "Bernoulli"
    assert likelihood_text(Binomial([3, 4])()) == "Binomial, total 3, 4"
    assert likelihood_text(StudentT(0.5, 3.0).fix("df")()) == "StudentT, scale 0.5, df 3 (fixed)"
    many = likelihood_text(NegativeBinomial(torch.arange(1.0, 10.0))())
    assert many == "NegativeBinomial, dispersion 1 to 9, median 5, one per output"
    mixed = ByColumn([(Bernoulli(), [0]), (StudentT(0.5), [1])])
    assert likelihood_text(mixed()) == repr(mixed)
    assert likelihood_facts(mixed()) == {"kind": "ByColumn", "text": repr(mixed)}


@pytest.mark.parametrize("what", ["overview", "fit", "forecast", "raster"])
def test_plots(files, tmp_path, what):
    more = ["--until", "13"] if what == "forecast" else ["--outputs", "b,a"] if what == "raster" else []
    assert run("plot", files.c, "--what", what, "-o", tmp_path / f"{what}.png", "-q", *more) == 0
    assert (tmp_path / f"{what}.png").stat().st_size > 5000


def test_help_names_all_likelihoods(capsys):
    assert run("fit", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "distribution of the outputs: bernoulli, gaussian, negative-binomial, poisson, student-t, binomial:TOTAL."
        in text
    )
