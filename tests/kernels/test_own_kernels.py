# SPDX-License-Identifier: Apache-2.0
"""Custom kernels: parameters with any constraint, their names in files, and what Pyro's tools show of them."""

import copy
import subprocess
import sys
import textwrap

import pyro
import pyro.distributions as dist
import pytest
import torch
from problems import make_data, make_model
from pyro.infer.inspect import get_model_relations
from pyro.nn import PyroParam
from torch.distributions import constraints

from pyro_vgpds import (
    AmortizedOpperArchambeau,
    Collapsed_ELBO,
    FileFormatError,
    Posterior,
    fit,
    load,
    load_posterior,
    save,
    save_posterior,
)
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.kernels import Kernel, Matern32, StationaryValue, White, lift, register_kernel
from pyro_vgpds.kernels.values import KernelValue


class TiltedValue(KernelValue):
    """k(t, t') = σ² g(t) g(t') exp(−d²/2) with g(t) = 1 + a t: a is any number."""

    def __init__(self, variance, slope, power):
        self.variance, self.slope, self.power = variance, slope, power

    def gram(self, a, b=None):
        b = a if b is None else b
        d = a.unsqueeze(-1) - b.unsqueeze(-2)
        left, right = 1 + lift(self.slope, d) * a.unsqueeze(-1), 1 + lift(self.slope, d) * b.unsqueeze(-2)
        return lift(self.variance, d) * left * right * torch.exp(-0.5 * d.abs() ** self.power)

    def diag(self, a):
        return lift(self.variance, a) * (1 + lift(self.slope, a) * a) ** 2


@register_kernel(name="tests.Tilted")
class Tilted(Kernel):
    option_names = ("power",)

    def __init__(self, variance=1.0, slope=0.0, power=2.0, mixing=0.5):
        super().__init__()
        self.add_parameter("variance", variance)
        self.add_parameter("slope", slope, constraint=constraints.real)
        self.add_parameter("mixing", mixing, constraint=constraints.interval(0.2, 0.8))
        self.power = power

    def forward(self):
        return TiltedValue(self.read("variance") * self.read("mixing"), self.read("slope"), self.power)


def make(temporal, **options):
    data = make_data()
    return (*make_model(data, temporal=temporal, **options), data)


def test_real_parameters_are_learned():
    model, guide, data = make(Tilted(slope=-0.4) + White(0.02))
    kernel = model.temporal[0]
    assert repr(kernel) == "Tilted(variance=1, slope=-0.4, mixing=0.5)"  # power has its default
    assert kernel.constraint("slope") == constraints.real
    loss = Collapsed_ELBO().differentiable_loss(model, guide, data)
    loss.backward()
    raw = kernel.slope_unconstrained
    losses = []
    pyro.clear_param_store()
    for step in (1e-5, -1e-5):
        moved = copy.deepcopy(model)
        moved.temporal[0].set("slope", float(raw.detach()) + step)
        other = type(guide)(moved, mean_bar=guide.mean_bar.detach(), lam=guide.lam.detach())
        losses.append(Collapsed_ELBO().loss(moved, other, data))
        pyro.clear_param_store()
    assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(float(raw.grad), rel=1e-5)
    result = fit(model, guide, data, num_steps=10)
    assert result.bound > -float(loss.detach())
    assert float(kernel.slope.detach()) != -0.4
    assert 0.2 < float(kernel.mixing.detach()) < 0.8
    kernel.fix("slope").learn("slope").per_dimension(2)
    assert kernel.slope.shape == (2,)
    assert kernel.constraint("slope") == constraints.real
    kernel.set("slope", [-1.0, 0.0])
    assert kernel.slope.tolist() == [-1.0, 0.0]


def test_real_parameters_can_have_priors():
    model, guide, data = make(Tilted(slope=dist.Normal(0.0, 0.5)) + White(0.02))
    assert repr(model.temporal[0]).startswith("Tilted(variance=1, slope~Normal(loc=0, scale=0.5)")
    fit(model, guide, data, num_steps=3)
    assert Posterior(model, guide, data).origin.values.keys() == {"temporal.parts.0.slope"}


@pytest.mark.parametrize("amortised", [False, True])
@pytest.mark.parametrize("prior", [dist.Normal(0.0, 1.0), dist.Normal(torch.zeros(2), 1.0).to_event(1)])
def test_training_does_not_change_a_prior(prior, amortised):
    """The initial value of its site is its mean, which is the own tensor of a Normal."""
    model, guide, data = make(Tilted(slope=prior) + White(0.02))
    if amortised:
        guide = AmortizedOpperArchambeau(model, num_hidden=4)
    fit(model, guide, data, num_steps=3, learning_rate=0.1)
    assert guide.median(data)["temporal.parts.0.slope"].abs().min() > 0.0
    assert model.temporal[0].prior("slope").mean.abs().max() == 0.0


@pytest.mark.parametrize("slope", [-0.7, "fixed", dist.Normal(0.1, 0.5), dist.StudentT(3.0, 0.0, 1.0), [0.3, -0.2]])
def test_files(tmp_path, slope):
    kernel = Tilted(slope=0.25 if slope == "fixed" else slope, power=1.5, mixing=0.7)
    if slope == "fixed":
        kernel.fix("slope")
    model, guide, data = make(kernel + White(0.02))
    fit(model, guide, data, num_steps=2)
    post = Posterior(model, guide, data)
    save(tmp_path / "a", model, guide, data)
    save_posterior(tmp_path / "b", copy.deepcopy(post))
    kind = read_file(tmp_path / "a", "model")[0]["model"]["temporal"]["parts"][0]
    assert kind["kind"] == "tests.Tilted"
    assert kind["options"] == {"power": 1.5}
    assert kind["parameters"]["mixing"] == {"constraint": "interval", "lower_bound": 0.2, "upper_bound": 0.8}
    again = Posterior(*load(tmp_path / "a"))
    assert repr(again.origin.model.temporal) == repr(model.temporal)
    for loaded in (again, load_posterior(tmp_path / "b")):
        assert loaded.bound == post.bound
        assert loaded.forecast([3.3], 0).mean.equal(post.forecast([3.3], 0).mean)


def test_a_constraint_that_came_with_a_value_is_kept(tmp_path):
    bounded = PyroParam(torch.tensor(0.6), constraints.interval(0.5, 1.0))
    model, guide, data = make(Matern32(0.9, bounded) + White(0.02))
    save(tmp_path / "a", model, guide, data)
    kernel = load(tmp_path / "a")[0].temporal[0]
    torch.testing.assert_close(kernel.lengthscale, torch.tensor(0.6))
    model, guide, data = make(Matern32(0.9, PyroParam(torch.tensor(0.6), constraints.half_open_interval(0.5, 1.0))))
    with pytest.raises(TypeError, match="save knows the constraints real, positive, greater_than"):
        save(tmp_path / "b", model, guide, data)


OWN = """
from pyro_vgpds.kernels import Matern32, register_kernel

@register_kernel
class Rough(Matern32):
    pass
"""


def test_files_name_kernels_and_never_run_anything(tmp_path):
    """Another process: it must import the module that registers the kernel, and loading alone imports nothing."""
    (tmp_path / "mykernels.py").write_text(OWN)
    script = """
        import sys
        import torch
        from pyro_vgpds import FileFormatError, VGPDS, AutoOpperArchambeau, Sequences, load, load_posterior, save
        t = torch.linspace(0, 1, 6).double()
        data = Sequences(t, torch.stack([t.sin(), t.cos()], 1))
        if sys.argv[1] == "save":
            from mykernels import Rough
            model = VGPDS.from_data(data, 1, 3, temporal=Rough())
            save("own.safetensors", model, AutoOpperArchambeau(model), data)
        for read in (load, load_posterior):
            try:
                read("own.safetensors")
            except FileFormatError as error:
                print(error)
        print("mykernels" in sys.modules)
    """
    outputs = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), what],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for what in ("save", "load")
    ]
    assert outputs[0] == ["True"]
    message = (
        "own.safetensors has the kernel 'Rough', which is not registered. Import the module that registers it with "
        "pyro_vgpds.kernels.register_kernel, and then load the file."
    )
    assert outputs[1] == [message, message, "False"]


def test_names_of_a_file_are_only_looked_up(tmp_path):
    model, guide, data = make(Matern32(0.9, 0.5))
    save(tmp_path / "a", model, guide, data)
    for name in ("os.system", "Kernel", "register_kernel", "__import__", 7, None):
        header, tensors = read_file(tmp_path / "a", "model")
        header["model"]["temporal"]["kind"] = name
        write_file(tmp_path / "b", "model", header, tensors)
        with pytest.raises(FileFormatError, match="which is not registered"):
            load(tmp_path / "b")
    header, tensors = read_file(tmp_path / "a", "model")
    header["model"]["temporal"]["parameters"]["lengthscale"] = {"constraint": "__class__"}
    write_file(tmp_path / "b", "model", header, tensors)
    with pytest.raises(FileFormatError, match="does not describe a model"):
        load(tmp_path / "b")


def test_registration_errors(tmp_path):
    for wrong in (7, White, TiltedValue):
        if wrong is White:
            assert register_kernel(White) is White  # again
            continue
        with pytest.raises(TypeError, match="kernel must be a class that derives from Kernel"):
            register_kernel(wrong)
    with pytest.raises(TypeError, match="name must be a string"):
        register_kernel(name=3)(Tilted)
    for name in ("White", "Sum", "Product"):
        with pytest.raises(ValueError, match=f"the name '{name}' belongs to pyro_vgpds.kernels"):
            register_kernel(name=name)(Tilted)

    class Decay(StationaryValue):
        def __init__(self, variance):
            self.variance = variance

        def correlation(self, d):
            return torch.exp(-d)

    class Plain(Kernel):
        def __init__(self, size=1.0):
            super().__init__()
            self.add_parameter("variance", size)

        def forward(self):
            return Decay(self.read("variance"))

    class Needy(Plain):
        def __init__(self, table, variance=1.0):
            super().__init__(variance)

    class Heavy(Plain):
        option_names = ("table",)

        def __init__(self, variance=1.0, table=()):
            super().__init__(variance)
            self.table = table

    model, guide, data = make(Plain())
    with pytest.raises(TypeError, match=r"Register a class of your own with @pyro_vgpds.kernels.register_kernel"):
        save(tmp_path / "a", model, guide, data)
    for kind, kernel, match in (
        (Plain, Plain(), "must take its parameters and options by name, but it does not take variance"),
        (Needy, Needy([1.0]), "its constructor needs table, which is neither a parameter nor one of option_names"),
        (Heavy, Heavy(), r"its option table must be a number, a string or None, but it is \(\)"),
    ):
        register_kernel(name=f"tests.{kind.__name__}")(kind)
        model, guide, data = make(kernel)
        with pytest.raises(TypeError, match=match):
            save(tmp_path / "a", model, guide, data)


def test_constraint_errors():
    kernel = Tilted()
    with pytest.raises(ValueError, match=r"Tilted.slope must be finite and satisfy Real\(\), but got inf"):
        kernel.set("slope", float("inf"))
    with pytest.raises(ValueError, match=r"Tilted.mixing must be finite and satisfy Interval\(lower_bound=0.2"):
        Tilted(mixing=0.9)
    with pytest.raises(ValueError, match=r"Tilted.variance must be positive and finite"):
        Tilted(variance=-1.0)
    with pytest.raises(TypeError, match=r"Tilted.slope must be a number or tensor, but got 'steep'"):
        kernel.set("slope", "steep")
    for wrong in (constraints.simplex, "real"):
        with pytest.raises(TypeError, match=r"the constraint of Kernel.a must be one of single numbers"):
            Kernel().add_parameter("a", 1.0, constraint=wrong)


def test_render_model_shows_constraints():
    model, _, data = make(Tilted(slope=dist.Normal(0.0, 1.0)).fix("mixing") + White(0.02))
    shown = get_model_relations(model, (data,))["param_constraint"]
    positive = "GreaterThan(lower_bound=0.0)"
    assert shown == {
        "temporal.parts.0.variance": positive,
        "temporal.parts.1.variance": positive,
        "mapping.variance": positive,
        "mapping.weight": positive,
        "inducing": "Real()",
        "noise": positive,
    }
    graphviz = pytest.importorskip("graphviz")
    graph = pyro.render_model(model, (data,), render_distributions=True, render_params=True)
    assert isinstance(graph, graphviz.Digraph)
    assert "noise : GreaterThan(lower_bound=0.0)" in graph.source
    assert "x -> y" in graph.source
