# SPDX-License-Identifier: Apache-2.0
"""Options of models and predictions on the command line are those of Python, and long work says how far it is."""

import re
import sys
import time
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from problems import fit_posterior

from pyro_vgpds import VGPDS, Ensemble, Posterior, PosteriorMixture, Sequences, Solver, load, load_posterior
from pyro_vgpds import save_posterior as write_posterior
from pyro_vgpds.cli import main
from pyro_vgpds.cli.progress import left, working
from pyro_vgpds.kernels import ARDRBF, ARDLinear, Bias, Matern32, White, parse_kernel, parse_mapping

T = np.arange(14) / 2.0


def outputs(shift):
    return np.sin(T[:, None] + np.arange(4) + shift) + 0.05 * np.cos(7.0 * T[:, None] * np.arange(1, 5))


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """Five sequences, a file with a new one of which two outputs are hidden, and a model."""
    folder = tmp_path_factory.mktemp("options")
    parts = [outputs(0.4 * s) for s in range(5)]
    np.savez(folder / "all.npz", t=np.tile(T, 5), y=np.concatenate(parts), sequence=np.repeat(np.arange(5), len(T)))
    new = outputs(1.3)
    new[:, 2:] = np.nan
    np.savez(folder / "new.npz", t=T, y=new)
    found = SimpleNamespace(
        folder=folder, file=folder / "all.npz", new=new, data=Sequences([T] * 5, parts), model=folder / "m.safetensors"
    )
    fitted(found, found.model)
    return found


def fitted(walks, model, *options):
    size = ["--latent-dim", "3", "--num-inducing", "8", "--steps", "8", "-q", "--force"]
    assert main([str(a) for a in ("fit", walks.file, "-o", model, *size, *options)]) == 0
    return load_posterior(model)


def trained(data, **options):
    """What ``fitted`` does, in Python."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(data, 3, 8, **options)
    return fit_posterior(model, data, 8)


def read(path):
    with np.load(path) as content:
        return {name: content[name] for name in content.files}


# models


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("rbf", ARDRBF()),
        ("Linear + white", ARDLinear() + White(1e-2)),
        ("rbf(variance=2 fixed, weight=0.5)+bias", ARDRBF(2.0, 0.5).fix("variance") + Bias(0.1)),
    ],
)
def test_mappings_as_text(text, kernel):
    assert repr(parse_mapping(text)) == repr(kernel)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "matern32",
            "unknown kernel 'matern32' at character 1.*with [+], as in 'rbf[+]linear'; the names are rbf",
        ),
        ("rbf*linear", r"\* is not allowed, because products have no analytic Psi statistics, at character 4"),
        ("rbf+", "expected the name of a kernel, but got the end at character 5"),
    ],
)
def test_what_is_no_mapping(text, message):
    with pytest.raises(ValueError, match=message):
        parse_mapping(text)


def test_a_mapping_must_be_text():
    with pytest.raises(TypeError, match=r"must be a string such as 'rbf\+linear', but got ARDRBF"):
        parse_mapping(ARDRBF())


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--mapping", "linear"], {"mapping": ARDLinear()}),
        (["--mapping", "rbf+linear"], {"mapping": ARDRBF() + ARDLinear()}),
        (["--static-dim", "2"], {"static_dim": 2}),
        (["--static-dim", "0"], {"static_dim": 0}),
    ],
)
def test_options_of_the_model(walks, tmp_path, arguments, options):
    here, there = fitted(walks, tmp_path / "m", *arguments), trained(walks.data, **options)
    assert here.bound == pytest.approx(there.bound, rel=1e-10)
    assert here.bound != pytest.approx(load_posterior(walks.model).bound) or arguments[-1] == "0"


def test_noise_and_residuals_are_kept_in_the_file(walks, tmp_path):
    here = fitted(walks, tmp_path / "m", "--noise-factor", "3", "--residual", "bias(variance=1)+white(variance=1)")
    plain = load_posterior(walks.model)
    origin = plain.origin
    there = Posterior(
        origin.model, origin.guide, walks.data, noise_variance=3.0 * plain.noise_variance, residual=Bias() + White()
    )
    ahead = T[-1] + np.array([0.5, 1.0])
    torch.testing.assert_close(here.forecast(ahead, 1).mean, there.forecast(ahead, 1).mean)
    torch.testing.assert_close(here.forecast(ahead, 1).variance, there.forecast(ahead, 1).variance)
    assert here.origin.widening is there.origin.widening is False
    assert load(tmp_path / "m")[0].latent_dim == 3  # a file of one model


@pytest.mark.parametrize(("task", "more"), [("forecast", ["--horizon", "3"]), ("impute", [])])
def test_calibration(walks, tmp_path, task, more, capsys):
    here = fitted(walks, tmp_path / "m", "--calibrate", task, "--seed", "0", *more)
    options = {"horizon": 3} if more else {}
    there = load_posterior(walks.model).calibrate(task, seed=0, **options)
    assert isinstance(here, Ensemble)
    assert list(here.combinations) == [task]
    one, other = (ensemble.combination(task).calibration.factor for ensemble in (here, there))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=0.0)
    assert main(["info", str(tmp_path / "m")]) == 0
    assert "calibrated" in capsys.readouterr().out
    assert main(["plot", str(tmp_path / "m"), "-o", str(tmp_path / "m.png"), "-q"]) == 0


# predictions


def predicted(walks, tmp_path, model, *arguments):
    out = tmp_path / "out.npz"
    command, *rest = arguments
    assert main([str(a) for a in (command, model, *rest, "-o", out, "-q", "--force")]) == 0
    return read(out)


def variant(post, **options):
    return Posterior(post.origin.model, post.origin.guide, post.data, **options)


NOISE = ["--noise-factor", "2.5"]
DRIFT = ["--residual", "matern32(lengthscale=2)+white(variance=0.5)"]


@pytest.mark.parametrize("many", [False, True], ids=["one", "mixture"])
def test_options_of_predictions(walks, tmp_path, many):
    post, model = load_posterior(walks.model), walks.model
    other = variant(post, noise_variance=2.5 * post.noise_variance, residual=Matern32(1.0, 2.0) + White(0.5))
    if many:
        model = tmp_path / "two.safetensors"
        write_posterior(model, PosteriorMixture([post, load_posterior(walks.model)], [0.25, 0.75]))
    ahead = predicted(walks, tmp_path, model, "forecast", "--sequence", "2", "--times", "7,7.5", *NOISE, *DRIFT)
    np.testing.assert_allclose(ahead["y"], other.forecast([7.0, 7.5], 2).mean, rtol=1e-8)
    np.testing.assert_allclose(ahead["upper"], other.forecast([7.0, 7.5], 2).interval(0.95)[1], rtol=1e-6)
    filled = predicted(walks, tmp_path, model, "reconstruct", "--smooth", *NOISE, *DRIFT)
    np.testing.assert_allclose(filled["y"], other.impute(fill=False).mean, rtol=1e-8)
    solver = ["--starts", "1", "--steps", "20"]
    for trust in ("0.1", "1"):
        options = ["--trust", trust, *solver, *NOISE, *DRIFT]
        found = predicted(walks, tmp_path, model, "reconstruct", walks.folder / "new.npz", *options)
        there = other.reconstruct(T, walks.new, trust=float(trust), fill=True, solver=Solver(1, 20)).mean
        np.testing.assert_allclose(found["y"], there, rtol=1e-8)
    if not many:
        drawn = predicted(walks, tmp_path, model, "generate", "--samples", "2", *NOISE)
        pyro.set_rng_seed(0)
        wide = variant(post, noise_variance=2.5 * post.noise_variance).generate(T, 2)
        np.testing.assert_allclose(drawn["y"], wide.flatten(0, 1), rtol=1e-8)


def test_trust_changes_the_answer(walks, tmp_path):
    new = walks.folder / "new.npz"
    some, full = (predicted(walks, tmp_path, walks.model, "reconstruct", new, "--trust", w)["y"] for w in ("0.01", "1"))
    assert np.abs(some - full)[:, 2:].max() > 1e-4


# errors

FIT = ["fit", "FILE", "-o", "OUT"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([*FIT, "--mapping", "rbf*linear"], 2, "--mapping: the kernel 'rbf*linear': * is not all"),
        ([*FIT, "--mapping", "bias+white"], 2, "--mapping must have rbf or linear, but got 'bias"),
        ([*FIT, "--static-dim", "-1"], 2, "--static-dim: must be a whole number of at least 0"),
        ([*FIT, "--static-dim", "9"], 1, "--static-dim must be a whole number from 0 to"),
        ([*FIT, "--calibrate", "all"], 2, "--calibrate: invalid choice: 'all'"),
        ([*FIT, "--calibrate", "impute", "--residual", "bias"], 2, "--residual cannot be combined"),
        ([*FIT, "--calibrate", "impute", "--horizon", "3"], 2, "--horizon cannot be combined with"),
        (
            [*FIT, "--steps", "1", "--calibrate", "forecast", "--horizon", "99"],
            1, "--calibrate forecast: horizon",
        ),
        ([*FIT, "--noise-factor", "0"], 2, "--noise-factor: must be a positive number, but got '0'"),
        ([*FIT, "--residual", "hat"], 2, "--residual: the kernel 'hat': unknown kernel 'hat'"),
        (["forecast", "MODEL", "--noise-factor", "x"], 2, "--noise-factor: must be a positive number, but got 'x'"),
        (["forecast", "MODEL", "--residual", "("], 2, "--residual: the kernel '('"),
        (["generate", "MODEL", "--residual", "matern32(lengthscale=2h)"], 1, "--residual: lengthscale of Matern32"),
        (["reconstruct", "MODEL", "NEW", "--trust", "0"], 2, "--trust: must be above 0 and at most 1, but got '0'"),
        (["reconstruct", "MODEL", "NEW", "--trust", "1.5"], 2, "--trust: must be above 0 and at most 1, but got '1.5'"),
        (["reconstruct", "MODEL", "--trust", "0.5"], 2, "--trust requires FILE, the data to weigh"),
        (["reconstruct", "BEST", "NEW", "--trust", "0.5"], 2, "--trust requires a single model, but"),
        (["forecast", "BEST", "--noise-factor", "2"], 2, "has an ensemble. Train with fit --quick, without"),
        (["generate", "BEST", "--residual", "bias"], 2, "--residual requires a single model, but"),
    ],
)  # fmt: skip
def test_errors(walks, tmp_path, arguments, code, message, capsys):
    best = walks.folder / "best.safetensors"
    if "BEST" in arguments and not best.exists():
        write_posterior(best, load_posterior(walks.model).calibrate("forecast"))
    places = {"FILE": walks.file, "MODEL": walks.model, "NEW": walks.folder / "new.npz", "BEST": best}
    places["OUT"] = tmp_path / "out"
    assert main([str(places.get(word, word)) for word in arguments]) == code
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text
    assert not (tmp_path / "out").exists()


# progress


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, 10, 5.0, ""), (10, 10, 5.0, ""), (5, 10, 6.0, ", about 6 s left"), (1, 3, 0.1, ", about 1 s left"),
        (1, 10, 20.0, ", about 3 min left"), (1, 11, 1800.0, ", about 5 h left"),
    ],
)  # fmt: skip
def test_seconds_left(done, total, seconds, text):
    assert left(done, total, seconds) == text


@pytest.fixture
def hasty(monkeypatch):
    """Lines are printed every tenth of a second, and at once."""
    monkeypatch.setattr("pyro_vgpds.cli.progress._SECONDS", 0.1)


def test_lines_of_long_work(hasty, capsys, monkeypatch):
    args = SimpleNamespace(quiet=False)
    with working(args, "thinking ...") as count:
        count(1, 4, "bound 2, ")
        time.sleep(0.35)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "thinking ..."
    assert re.fullmatch(r"thinking \.\.\. 25 %, bound 2, 0 s, about \d s left", lines[1])
    assert len(lines) >= 3
    with working(args, "blinking ...", patience=60.0):
        time.sleep(0.25)
    assert capsys.readouterr().err == ""
    with working(args, "waiting ...", patience=0.01):
        time.sleep(0.35)
    assert capsys.readouterr().err.startswith("waiting ...\nwaiting ... 0 s\n")
    with working(SimpleNamespace(quiet=True), "silent ...") as count:
        count(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with working(args, "drawing ...") as count:
        count(1, 2)
        time.sleep(0.6)
    assert re.fullmatch(
        r"\rdrawing \.\.\.\rdrawing \.\.\. 50 %, 1 s, about 1 s left\rdrawing \.\.\. 0\.\d s +\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("model", ["one", "mixture", "ensemble"])
def test_a_reconstruction_counts_its_steps(walks, tmp_path, model, monkeypatch):
    post = load_posterior(walks.model)
    many = {"one": post, "mixture": PosteriorMixture([post, post]), "ensemble": post.calibrate("forecast")}[model]
    calls = []
    options = {} if model == "ensemble" else {"solver": Solver(num_starts=2, num_steps=4)}
    many.reconstruct(T, walks.new, progress=lambda done, total: calls.append((done, total)), **options)
    done, totals = zip(*calls, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]}
    assert done[-1] == {"one": 8, "mixture": 16, "ensemble": 600}[model]


def test_training_says_how_far_it_is(walks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pyro_vgpds.cli.progress._SECONDS", 0.01)  # the whole training takes less than half a second
    monkeypatch.setattr("pyro_vgpds.cli.fitting.PATIENCE", 0.01)
    size = ["--latent-dim", "3", "--num-inducing", "8", "--steps", "60", "--restarts", "1"]
    assert main(["fit", str(walks.file), "-o", str(tmp_path / "m"), *size]) == 0
    text = capsys.readouterr().err
    assert re.search(r"training \.\.\. \d+ %, bound -?[\d.,]+, \d+ s(, about \d+ s left)?\n", text)
    shares = [int(share) for share in re.findall(r"training \.\.\. (\d+) %", text)]
    assert shares == sorted(shares)
    assert shares[-1] <= 100


def test_kernels_of_residuals_have_values_of_their_own():
    assert repr(parse_kernel("bias(variance=1)+white(variance=1)")) == repr(Bias() + White())
