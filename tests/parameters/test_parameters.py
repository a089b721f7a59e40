# SPDX-License-Identifier: Apache-2.0
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.nn import PyroParam, PyroSample

from pyro_vgpds import VGPDS
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import ARDRBF, RBF, Kernel, MarkovRBF, Periodic, White, from_pyro
from pyro_vgpds.parameters import is_prior


def make_model(noise, temporal=None):
    parts = {"inducing": torch.zeros(2, 2), "noise": noise, "output_mean": torch.zeros(3)}
    return VGPDS(temporal or RBF(), ARDRBF(), **parts)


def test_status_of_a_kernels_parameter():
    prior = dist.LogNormal(0.0, 1.0)
    kernel = Periodic(1.0, prior, 24.0).fix("period")
    status = {}
    for name in kernel.parameter_names:
        status[name] = (kernel.is_learned(name), kernel.is_fixed(name), kernel.prior(name))
    assert status == {
        "variance": (True, False, None),
        "lengthscale": (False, False, prior),
        "period": (False, True, None),
    }
    kernel.set("lengthscale", 0.5).learn()
    assert all(map(kernel.is_learned, kernel.parameter_names))
    assert not kernel.is_learned("width")
    assert not kernel.is_fixed("width")
    assert kernel.prior("width") is None


def test_status_of_the_noise():
    assert make_model(0.1).is_learned("noise")
    assert make_model(0.1).event_dim("noise") == 0
    model = make_model([0.1, 0.2, 0.3])
    assert model.event_dim("noise") == 1
    prior = dist.LogNormal(torch.zeros(3), 1.0).to_event(1)
    model.set_noise(prior)
    assert (model.prior("noise"), model.is_learned("noise"), model.event_dim("noise")) == (prior, False, 1)
    assert "noise_unconstrained" not in model.state_dict()
    model.set_noise(0.1)
    assert model.is_learned("noise")
    assert model.prior("noise") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0),
        ([0.5, 0.7], 1),
        (dist.LogNormal(0.0, 1.0), 0),
        (PyroSample(dist.LogNormal(torch.zeros(2), 1.0).to_event(1)), 1),
        (lambda module: dist.LogNormal(torch.zeros(2), 1.0).to_event(1), 1),
        pytest.param(
            lambda module: torch.tensor(0.5),
            0,
            marks=pytest.mark.skipif(pyro.__version__ == "1.9.1", reason="functions with values need Pyro 1.9.2"),
        ),
    ],
)
def test_own_dimensions_and_what_is_read(value, expected):
    kernel = RBF(lengthscale=value)
    assert kernel.event_dim("lengthscale") == expected
    assert kernel.read("lengthscale").shape == ((2,) if expected else (1,))
    if not kernel.is_learned("lengthscale"):
        return
    kernel.fix("lengthscale")
    assert kernel.event_dim("lengthscale") == expected
    assert kernel.read("lengthscale").shape == ((2,) if expected else (1,))


def test_plates_are_not_own_dimensions():
    model = make_model(0.1, RBF(lengthscale=dist.LogNormal(0.0, 1.0)))
    with model._pyro_context, pyro.plate("draws", 4, dim=-1):
        assert model.temporal.read("lengthscale").shape == (4, 1)


def test_a_pyro_param_is_learned_and_keeps_its_constraint():
    assert not is_prior(PyroParam(torch.tensor(0.5)))
    kernel = RBF(lengthscale=PyroParam(torch.tensor(0.5), constraints.interval(0.1, 1.0)))
    assert kernel.is_learned("lengthscale")
    assert kernel.read("lengthscale").item() == pytest.approx(0.5)
    with torch.no_grad():
        kernel.lengthscale_unconstrained.fill_(100.0)
    assert kernel.read("lengthscale").item() <= 1.0


def test_one_value_for_each_latent_dimension():
    kernel = RBF([1.0, 2.0, 3.0], 0.5) * Periodic(period=2.0).fix("period") + White(dist.LogNormal(0.0, 1.0))
    assert kernel.per_dimension(3) is kernel
    smooth, periodic, white = kernel.leaves()
    assert smooth.variance.tolist() == pytest.approx([1.0, 2.0, 3.0])
    assert smooth.lengthscale.tolist() == [0.5] * 3
    assert periodic.variance.shape == periodic.lengthscale.shape == (3,)
    assert periodic.is_fixed("period")
    assert periodic.period.dim() == 0
    assert white.prior("variance") is not None
    assert RBF().per_dimension(3, "variance").lengthscale.dim() == 0
    with pytest.raises(ValueError, match="RBF has no parameter 'width'"):
        RBF().per_dimension(3, "width")
    with pytest.raises(ValueError, match=r"use a part: kernel\[0\]\.per_dimension\(3, 'variance'\)"):
        kernel.per_dimension(3, "variance")


def test_what_was_set_is_not_chosen_from_the_data():
    prior = dist.LogNormal(0.0, 1.0)
    data = make_sequences(num_outputs=4, seed=0).sequences()
    kernel = RBF().set("lengthscale", prior) + Periodic().set("period", 7.0) + RBF()
    temporal = VGPDS.from_data(data, 2, 5, kernel).temporal
    assert temporal[0].prior("lengthscale") is prior
    assert temporal[1].period.item() == pytest.approx(7.0)
    assert temporal[2].lengthscale.shape == (2,)
    assert (temporal[2].lengthscale != 1.0).all()


class Growth(Kernel):
    def __init__(self, name="rate", value=None, default=None):
        super().__init__()
        self.add_parameter(name, value, default)


def test_a_parameter_that_was_not_given_has_its_default_and_is_unset():
    kernel = Growth(default=2.0)
    assert (kernel.rate.item(), kernel.unset, kernel.parameter_names) == (2.0, {"rate"}, ("rate",))
    assert Growth(value=3.0, default=2.0).unset == set()
    assert kernel.set("rate", 3.0).unset == set()
    kernel.set("rate", 2.0).add_parameter("order", 4.0)
    assert repr(kernel) == "Growth(rate=2, order=4)"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Growth("prior", 1.0), ValueError, "Growth already has an attribute 'prior'; choose another"),
        (lambda: Growth(value=1.0).add_parameter("rate", 1.0), ValueError, "Growth already has an attribute 'rate'"),
        (lambda: Growth(), TypeError, r"Growth\.rate must be a positive number or tensor, but got None"),
        (lambda: RBF("short"), TypeError, r"RBF\.variance must be a positive number or tensor, but got 'short'"),
        (lambda: RBF().set("variance", [1.0, -2.0]), ValueError, r"RBF\.variance must be positive and finite"),
        (lambda: make_model("low"), TypeError, "noise must be a positive number or tensor, but got 'low'"),
        (lambda: Growth(value=1.0)(), NotImplementedError, "Growth must define forward"),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_value_that_is_refused_changes_nothing():
    kernel = RBF(2.0).fix("variance")
    with pytest.raises(ValueError, match="positive"):
        kernel.set("variance", -1.0)
    assert kernel.is_fixed("variance")
    assert kernel.variance.item() == 2.0


def test_options_are_not_parameters():
    assert MarkovRBF(order=4).option_names == ("order",)
    assert "order" not in MarkovRBF().parameter_names
    assert RBF().option_names == ()
    assert (RBF() + White()).parameter_names == ()
    assert from_pyro(pyro.contrib.gp.kernels.RBF(1)).parameter_names == ()


def test_a_parameter_with_a_prior_cannot_be_fixed():
    kernel = RBF(lengthscale=dist.LogNormal(0.0, 1.0))
    with pytest.raises(ValueError, match=r"RBF\.lengthscale has a prior; give it a number first, with \.assign\("):
        kernel.fix()
    kernel.assign("lengthscale", 2.0)
    assert kernel.fix("lengthscale").is_fixed("lengthscale")
