# SPDX-License-Identifier: Apache-2.0
"""Models whose outputs are not Gaussian, in files: models, posteriors, mixtures, ensembles and checkpoints."""

import copy
import json
import re

import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    FileFormatError,
    Posterior,
    PosteriorMixture,
    Sequences,
    fit,
    load,
    load_posterior,
    save,
    save_posterior,
)
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.files.likelihoods import build_likelihood, describe_likelihood
from pyro_vgpds.likelihoods import (
    Bernoulli,
    Binomial,
    ByColumn,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
    register_likelihood,
)
from pyro_vgpds.prediction.combination import Combination
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.intervals import Calibration


def functions(num_outputs: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    t = torch.linspace(0.0, 4.0, 18)
    return t, torch.stack([torch.sin(t), torch.cos(1.3 * t)], 1) @ torch.randn(2, num_outputs)


def outputs(likelihood: Likelihood, hide: bool = True) -> Sequences:
    t, f = functions()
    likelihood.meet(4, ["a", "b", "c", "d"])
    y = likelihood().distribution(f).sample().double()
    if hide:
        y[3, 1] = torch.nan
    return Sequences([t[:10], t[:8]], [y[:10], y[10:]], columns=["a", "b", "c", "d"])


def trained(likelihood: Likelihood, data: Sequences | None = None, num_steps: int = 4, **options):
    data = outputs(likelihood) if data is None else data
    model = VGPDS.from_data(data, 2, 5, likelihood=likelihood, **options)
    guide = AutoOpperArchambeau(model)
    if num_steps:
        fit(model, guide, data, num_steps, progress=False)
    return model, guide, data


LIKELIHOODS = {
    "negative binomial": NegativeBinomial,
    "fixed": lambda: NegativeBinomial(3.0).fix(),
    "bernoulli": Bernoulli,
    "binomial": lambda: Binomial(5),
    "totals": lambda: Binomial([5, 6, 7, 8]),
    "poisson": Poisson,
    "columns": lambda: ByColumn([(Binomial([2, 3]), [0, 3]), (StudentT(0.2).fix("df"), [1, 2])]),
    "names of columns": lambda: ByColumn([(NegativeBinomial(), ["d", "b"]), (Gaussian(), ["a", "c"])]),
    "student": StudentT,
    "student fixed": lambda: StudentT(0.2, 3.0).fix("df"),
    "student per output": lambda: StudentT([0.2, 0.3, 0.4, 0.5], torch.full((4,), 3.0)),
}


def same(a, b) -> None:
    """Predictions of two posteriors, bit for bit."""
    assert a.bound == b.bound
    for ours, theirs in ((a.forecast([4.3, 4.5], 0), b.forecast([4.3, 4.5], 0)), (a.impute(), b.impute())):
        assert torch.equal(ours.mean, theirs.mean)
        assert torch.equal(ours.variance, theirs.variance)
        for one, other in zip(ours.interval(0.9), theirs.interval(0.9), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_predictions_after_loading_are_the_same(tmp_path, name):
    model, guide, data = trained(LIKELIHOODS[name]())
    post = Posterior(model, guide, data)
    save(tmp_path / "m", model, guide, data)
    again, its_guide, its_data = load(tmp_path / "m")
    assert repr(again) == repr(model)
    assert again.output_likelihood.unset == set() or not again.output_likelihood.parameter_names
    assert {n for n, _ in again.named_parameters()} == {n for n, _ in model.named_parameters()}
    assert torch.equal(again.sites.state, model.sites.state)
    same(post, Posterior(again, its_guide, its_data))
    same(post, load_posterior(tmp_path / "m"))
    assert fit(again, its_guide, its_data, 2, progress=False).bound >= post.bound - 1e-9  # and goes on being trained


def test_a_model_that_has_not_met_data(tmp_path):
    model, guide, data = trained(NegativeBinomial(), num_steps=0)
    save(tmp_path / "m", model, guide, data)
    again, its_guide, its_data = load(tmp_path / "m")
    assert not again.sites.state.numel()
    same(Posterior(model, guide, data), Posterior(again, its_guide, its_data))


def test_priors_of_parameters(tmp_path):
    model, guide, data = trained(StudentT(dist.LogNormal(-1.0, 0.5), dist.Gamma(4.0, 1.0)))
    save(tmp_path / "m", model, guide, data)
    again = load(tmp_path / "m")[0]
    assert isinstance(again.output_likelihood.prior("df"), dist.Gamma)
    same(Posterior(model, guide, data), load_posterior(tmp_path / "m"))


@pytest.mark.parametrize("how", ["fixed", "prior"])
def test_scales_that_are_not_learned(tmp_path, how):
    model, guide, data = trained(Bernoulli(), num_steps=0)
    if how == "fixed":
        scale = model.output_scale.detach().clone()
        del model.output_scale
        model.register_buffer("output_scale", scale)
    else:
        model.assign("output_scale", dist.LogNormal(torch.zeros(4), 0.1).to_event(1))
        guide = AutoOpperArchambeau(model)
    fit(model, guide, data, 3, progress=False)
    save(tmp_path / "m", model, guide, data)
    again = load(tmp_path / "m")[0]
    assert again.is_fixed("output_scale") == (how == "fixed")
    assert (again.prior("output_scale") is None) == (how == "fixed")
    same(Posterior(model, guide, data), load_posterior(tmp_path / "m"))


@pytest.mark.parametrize("likelihood", [NegativeBinomial(), StudentT()])
def test_another_dtype_keeps_the_state(tmp_path, likelihood):
    model, guide, data = trained(likelihood)
    save(tmp_path / "m", model, guide, data)
    small = load_posterior(tmp_path / "m", dtype=torch.float32)
    assert small.origin.model.sites.state.dtype == torch.float64
    assert torch.equal(small.origin.model.sites.state, model.sites.state)
    post = Posterior(model, guide, data)
    assert small.bound == pytest.approx(post.bound, rel=1e-4)
    assert small.data.dtype == torch.float32


def test_mixtures_and_ensembles_are_saved(tmp_path):
    model, guide, data = trained(NegativeBinomial())
    other, its_guide, _ = trained(NegativeBinomial(2.0), data)
    posts = [Posterior(model, guide, data), Posterior(other, its_guide, data)]
    save_posterior(tmp_path / "mixture", PosteriorMixture(posts, [0.25, 0.75]))
    again = load_posterior(tmp_path / "mixture")
    assert again.weights.tolist() == [0.25, 0.75]
    for mine, theirs in zip(posts, again.posteriors, strict=True):
        same(mine, theirs)
    one = Combination(torch.full((2, 4), 0.5), Calibration.none(4))
    save_posterior(tmp_path / "ensemble", Ensemble(posts, {"impute": one}, ["first", "second"]))
    for mine, theirs in zip(posts, load_posterior(tmp_path / "ensemble").members, strict=True):
        same(mine, theirs)


def test_a_posterior_of_other_data(tmp_path):
    model, guide, data = trained(Binomial(5))
    post = Posterior(model, guide, data).extended([1.0], torch.tensor([[1.0, 2.0, torch.nan, 5.0]]), None)
    save_posterior(tmp_path / "m", post)
    same(post, load_posterior(tmp_path / "m"))


# training


@pytest.mark.parametrize("method", ["natural", "adam", "lbfgs"])
def test_resumed_training_is_that_of_a_run_that_never_stopped(tmp_path, method):
    untrained, _, data = trained(NegativeBinomial(), num_steps=0)
    whole, stopped, resumed = (copy.deepcopy(untrained) for _ in range(3))
    guides = [AutoOpperArchambeau(model) for model in (whole, stopped, resumed)]
    options = {"method": method, "warmup": 2, "progress": False, "tolerance": 0.0}
    first, all_steps = (12, 24) if method == "lbfgs" else (3, 7)
    result = fit(whole, guides[0], data, all_steps, **options)
    fit(stopped, guides[1], data, first, checkpoint=tmp_path / "c", **options)
    again = fit(resumed, guides[2], data, all_steps, resume=tmp_path / "c", **options)
    assert again.bound == result.bound
    assert torch.equal(resumed.sites.state, whole.sites.state)
    same(Posterior(whole, guides[0], data), Posterior(resumed, guides[2], data))


def test_a_checkpoint_of_another_likelihood(tmp_path):
    data = outputs(NegativeBinomial())
    model, guide, _ = trained(NegativeBinomial(), data, 0)
    fit(model, guide, data, 2, progress=False, checkpoint=tmp_path / "c")
    other, its_guide, _ = trained(StudentT(), data, 0)
    with pytest.raises(ValueError, match="Cannot resume: the checkpoint's parameters are not those of this model"):
        fit(other, its_guide, data, 4, progress=False, resume=tmp_path / "c")


@pytest.mark.parametrize("processes", [1, 2])
def test_the_best_restart_has_its_own_state(processes):
    """The bound of the result is that of the parameters and the state that are left in the model."""
    model, guide, data = trained(NegativeBinomial(), num_steps=0)
    result = fit(model, guide, data, 6, num_restarts=2, processes=processes, progress=False)
    assert Posterior(model, guide, data).bound == pytest.approx(result.bound, abs=1e-8)


# custom classes, and nested ones


@register_likelihood(name="tests.Groups")
class Groups(Likelihood):
    """Others for groups of columns; with a dictionary and pairs, as an own class may have them."""

    option_names = ("groups", "extra", "label", "level")

    def __init__(self, groups, extra=None, label=None, level=0.5):
        super().__init__()
        self.inner = nn.ModuleList([likelihood for likelihood, _ in groups])
        self.more = nn.ModuleList((extra or {}).values())
        self.groups, self.extra = [tuple(group) for group in groups], extra
        self.label, self.level = label, level


def test_nested_likelihoods():
    inner = Groups([(Binomial([3, 4]), [0, 2])], label="deep")
    whole = Groups(
        [(StudentT(0.7, 5.0).fix("df"), [0, 1]), (inner, torch.tensor([2, 3]))],
        extra={"one": NegativeBinomial(dist.LogNormal(0.0, 1.0)), "two": Gaussian([0.1, 0.2])},
    )
    about = json.loads(json.dumps(describe_likelihood(whole)))
    tensors = {f"model.{name}": value for name, value in whole.state_dict().items()}
    again = build_likelihood(about, tensors, torch.float64, "model.")
    again.load_state_dict(whole.state_dict())
    assert list(again.state_dict()) == list(whole.state_dict())
    first, second = (group[0] for group in again.groups)
    assert repr(first) == "StudentT(scale=0.7, df=5 (fixed))"
    assert again.groups[0][1] == [0, 1]
    assert again.groups[1][1] == [2, 3]
    assert second.label == "deep"
    assert second.groups[0][0].total.tolist() == [3, 4]
    assert again.label is None
    assert again.level == 0.5
    assert isinstance(again.extra["one"].prior("dispersion"), dist.LogNormal)
    assert torch.allclose(again.extra["two"].scale, torch.tensor([0.1, 0.2]))


def test_nested_likelihoods_that_cannot_be_saved():
    whole = Groups([(Bernoulli(), [0])])
    whole.groups = [(StudentT(), [0])]
    with pytest.raises(TypeError, match=re.escape("Groups.groups cannot be saved: StudentT(scale=0.1, df=10)")):
        describe_likelihood(whole)
    for wrong in (object(), float("nan"), torch.tensor([1.0, torch.inf]), {1, 2}):
        with pytest.raises(
            TypeError, match=r"Groups\.level cannot be saved: an option must be a number, a string, None"
        ):
            describe_likelihood(Groups([], level=wrong))


class Unregistered(NegativeBinomial):
    pass


class Needs(NegativeBinomial):
    def __init__(self, where, dispersion=None):
        super().__init__(dispersion)


class Renamed(NegativeBinomial):
    def __init__(self, r=None):
        super().__init__(r)


def test_classes_of_ones_own(tmp_path):
    model, guide, data = trained(Unregistered())
    message = re.escape("save knows the likelihoods Bernoulli, Binomial, ByColumn, Gaussian, Ne")
    with pytest.raises(TypeError, match=message):
        save(tmp_path / "m", model, guide, data)
    with pytest.raises(TypeError, match=re.escape("with @pyro_vgpds.likelihoods.register_likelihood. Or save")):
        save_posterior(tmp_path / "m", Posterior(model, guide, data))
    assert register_likelihood(Unregistered) is Unregistered
    save(tmp_path / "m", model, guide, data)
    same(Posterior(model, guide, data), load_posterior(tmp_path / "m"))
    assert type(load(tmp_path / "m")[0].output_likelihood) is Unregistered


def test_registration_errors():
    for wrong in (7, Posterior, NegativeBinomial()):
        with pytest.raises(TypeError, match="likelihood must be a class that derives from Likelihood in register"):
            register_likelihood(wrong)
    for wrong in ("", 7):
        with pytest.raises(TypeError, match="name must be a string that is not empty, but got"):
            register_likelihood(name=wrong)(Unregistered)
    message = (
        "the name 'StudentT' belongs to pyro_vgpds.likelihoods.families.StudentT already. Choose another one: "
        "register_likelihood(name='mylab.StudentT')."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        register_likelihood(name="StudentT")(Unregistered)
    register_likelihood(Needs)
    with pytest.raises(TypeError, match="Needs cannot be saved: its constructor needs where, which is neither a para"):
        describe_likelihood(Needs("here"))
    register_likelihood(Renamed)
    with pytest.raises(TypeError, match="its constructor must take its parameters and options by name, but it does no"):
        describe_likelihood(Renamed())


# crafted files


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "m.safetensors"
    torch.manual_seed(0)
    save(path, *trained(Binomial([5, 6, 7, 8])))
    return path


def crafted(file, tmp_path, change):
    header, tensors = read_file(file, "model")
    tensors = {name: value.clone() for name, value in tensors.items()}
    change(header, tensors)
    path = tmp_path / "crafted.safetensors"
    write_file(path, "model", header, tensors)
    return path


@pytest.mark.parametrize("name", ["os.system", "Likelihood", "register_likelihood", "__import__", 7, None])
def test_names_are_only_looked_up(file, tmp_path, name):
    path = crafted(file, tmp_path, lambda header, _: header["model"]["likelihood"].update(kind=name))
    message = (
        f"{path} has the likelihood {str(name)!r}, which is not registered. Import the module that registers it with "
        "pyro_vgpds.likelihoods.register_likelihood, and then load the file."
    )
    for read in (load, load_posterior):
        with pytest.raises(FileFormatError, match=re.escape(message)):
            read(path)


def put(*keys):
    def change(header, tensors):
        *inner, last, value = keys
        part = header["model"]
        for key in inner:
            part = part[key]
        part[last] = value

    return change


def tensor(name, value):
    return lambda header, tensors: tensors.update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        put("likelihood", 7),
        put("likelihood", "parameters", {"total": "fixed"}),
        put("likelihood", "options", {}),
        put("likelihood", "options", {"total": 5, "more": 1}),
        put("likelihood", "options", "total", {"x": [1]}),
        put("likelihood", "options", "total", {"l": [1], "d": []}),
        put("likelihood", "options", "total", {"l": [0.5, 1, 1, 1]}),
        put("likelihood", "options", "total", {"l": [1, 1, 1, 1, 1]}),
        put("likelihood", "options", "total", {"likelihood": {"kind": "Bernoulli"}, "at": 7}),
        put("likelihood", {"kind": "StudentT", "parameters": {"df": "learned"}}),
        put("output_scale", {"constraint": "__class__"}),
        lambda header, _: header["model"].pop("likelihood"),
        lambda header, _: header["model"].pop("output_scale"),
        lambda _, tensors: tensors.pop("model.sites.state"),
        tensor("model.sites.state", torch.zeros(2, 17, 4)),
        tensor("model.sites.state", torch.zeros(3)),
        tensor("model.sites.state", torch.full((2, 18, 4), torch.nan)),
        tensor("model.sites.mark", torch.zeros(5)),
        tensor("model.output_likelihood.total", torch.ones(4)),  # the data have larger counts
        tensor("model.output_likelihood.total", torch.ones(5)),
        tensor("model.output_scale_unconstrained", torch.full((4,), torch.nan)),
        tensor("data.y", torch.full((18, 4), 0.5)),
    ],
)
def test_crafted_files(file, tmp_path, change):
    path = crafted(file, tmp_path, change)
    with pytest.raises(FileFormatError, match=re.escape(f"{path} does not describe a model: ")):
        load(path)
    with pytest.raises(FileFormatError, match=re.escape(f"{path} does not describe a posterior: ")):
        load_posterior(path)


def test_the_header_of_gaussian_models_is_as_before(tmp_path):
    data = outputs(StudentT())
    model = VGPDS.from_data(data, 2, 5)
    save(tmp_path / "m", model, AutoOpperArchambeau(model), data)
    header, tensors = read_file(tmp_path / "m", "model")
    assert header["model"]["noise"] == "learned"
    assert "likelihood" not in header["model"]
    assert not any("sites" in name for name in tensors)
