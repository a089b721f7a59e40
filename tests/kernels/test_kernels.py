# SPDX-License-Identifier: Apache-2.0
import math

import pyro
import pyro.contrib.gp as gp
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroSample

from pyro_vgpds import VGPDS, TemporalGP
from pyro_vgpds.kernels import (
    ARDRBF,
    RBF,
    ARDLinear,
    ARDLinearValue,
    Bias,
    Cosine,
    KernelValue,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    White,
    from_pyro,
)
from pyro_vgpds.kernels.values import SumValue
from pyro_vgpds.mapping import MappingValue, register_psi2

T = torch.tensor([0.0, 0.3, 0.35, 1.7, 2.0])

# each kernel, and k(t, t') written out for one pair of times
FORMULAS = {
    "RBF": (RBF(1.3, 0.7), lambda a, b: 1.3 * math.exp(-0.5 * (a - b) ** 2 / 0.49)),
    "Matern12": (Matern12(1.3, 0.7), lambda a, b: 1.3 * math.exp(-abs(a - b) / 0.7)),
    "Matern32": (
        Matern32(1.3, 0.7),
        lambda a, b: 1.3 * (1 + math.sqrt(3) * abs(a - b) / 0.7) * math.exp(-math.sqrt(3) * abs(a - b) / 0.7),
    ),
    "Matern52": (
        Matern52(1.3, 0.7),
        lambda a, b: (
            1.3
            * (1 + math.sqrt(5) * abs(a - b) / 0.7 + 5 * (a - b) ** 2 / (3 * 0.49))
            * math.exp(-math.sqrt(5) * abs(a - b) / 0.7)
        ),
    ),
    "Periodic": (
        Periodic(1.3, 0.7, 1.1),
        lambda a, b: 1.3 * math.exp(-2 * math.sin(math.pi * (a - b) / 1.1) ** 2 / 0.49),
    ),
    "Cosine": (Cosine(1.3, 1.1), lambda a, b: 1.3 * math.cos(2 * math.pi * (a - b) / 1.1)),
    "Linear": (Linear(1.3), lambda a, b: 1.3 * a * b),
    "Bias": (Bias(1.3), lambda a, b: 1.3),
    "White": (White(1.3), lambda a, b: 1.3 * (a == b)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_gram_is_the_formula(name):
    kernel, formula = FORMULAS[name]
    expected = torch.tensor([[formula(float(a), float(b)) for b in T] for a in T])
    value = kernel()
    torch.testing.assert_close(value.gram(T)[0], expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(value.diag(T)[0], expected.diagonal(), rtol=1e-13, atol=1e-13)
    other = T[:3] + 0.01
    cross = torch.tensor([[formula(float(a), float(b)) for b in other] for a in T])
    torch.testing.assert_close(value.gram(T, other)[0], cross, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", FORMULAS)
def test_gram_takes_batches_of_times_and_of_parameters(name):
    kernel, _ = FORMULAS[name]
    batch = torch.stack([T, T * 1.5 + 0.1])
    together = kernel().gram(batch)
    assert together.shape == (1, 2, 5, 5)
    for i in range(2):
        torch.testing.assert_close(together[:, i], kernel().gram(batch[i]))
        torch.testing.assert_close(kernel().diag(batch)[:, i], kernel().diag(batch[i]))
    many = type(kernel)(torch.tensor([0.5, 1.3, 2.0]))  # one variance for each of three latent dimensions
    single = type(kernel)(1.3)
    assert many().gram(batch).shape == (3, 2, 5, 5)
    torch.testing.assert_close(many().gram(batch)[1:2], single().gram(batch))
    torch.testing.assert_close(many().diag(batch)[1:2], single().diag(batch))


def test_sums_and_products():
    a, b, c = RBF(1.1, 0.4), Periodic(0.8, 1.2, 0.9), White(0.1)
    expected = a().gram(T) * b().gram(T) + c().gram(T)
    kernel = RBF(1.1, 0.4) * Periodic(0.8, 1.2, 0.9) + White(0.1)
    torch.testing.assert_close(kernel().gram(T), expected)
    torch.testing.assert_close(kernel().diag(T), expected.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(kernel().gram(T, T + 1), a().gram(T, T + 1) * b().gram(T, T + 1))
    flat = RBF() + (Bias() + White())
    assert len(flat) == 3
    assert [type(k) for k in flat] == [RBF, Bias, White] == [type(k) for k in flat.leaves()]
    assert type(flat[1]) is Bias


def test_which_kernels_are_diagonal():
    assert White()().is_diagonal
    assert (White() + White())().is_diagonal
    assert (White() * RBF())().is_diagonal
    assert not (White() + RBF())().is_diagonal


def test_parameters_are_learned_fixed_or_random():
    kernel = Matern32(2.0, 0.5)
    assert {name for name, _ in kernel.named_parameters()} == {"variance_unconstrained", "lengthscale_unconstrained"}
    kernel.fix("variance")
    assert {name for name, _ in kernel.named_parameters()} == {"lengthscale_unconstrained"}
    assert kernel.variance.item() == 2.0
    assert "variance" in kernel.state_dict()
    kernel.learn("variance")
    assert kernel.variance.item() == pytest.approx(2.0)
    assert len(list(kernel.parameters())) == 2
    both = (RBF() + White()).fix()
    assert not list(both.parameters())
    assert len(list(both.learn().parameters())) == 3
    for prior in (
        dist.LogNormal(0.0, 1.0),
        PyroSample(dist.LogNormal(0.0, 1.0)),
        lambda self: dist.LogNormal(0.0, 1.0),
    ):
        random = Matern32(lengthscale=prior)
        assert random().lengthscale != random().lengthscale
    with pytest.raises(ValueError, match=r"Matern32\.lengthscale has a prior"):
        random.fix("lengthscale")
    random.set("lengthscale", 0.3).fix()
    assert random().lengthscale.item() == pytest.approx(0.3)


def test_one_value_of_a_random_parameter_in_a_trace():
    kernel = Matern32(lengthscale=dist.LogNormal(0.0, 1.0)) + White(0.1)
    model = VGPDS(kernel, ARDRBF(), inducing=torch.zeros(2, 1), noise=0.1, output_mean=torch.zeros(1))

    def run():
        with model._pyro_context:
            value = model.temporal()
            return value.parts[0].lengthscale, model.temporal[0].lengthscale

    trace = poutine.trace(run).get_trace()
    first, second = trace.nodes["_RETURN"]["value"]
    assert first.item() == second.item() == trace.nodes["temporal.parts.0.lengthscale"]["value"].item()


def test_a_kernel_can_be_used_before_it_is_part_of_a_model():
    kernel = Matern32(1.0, 1.0)
    kernel().gram(T)
    total = kernel + White(0.1)
    total().gram(T)
    model = VGPDS(total, ARDRBF(), inducing=torch.zeros(2, 1), noise=0.1, output_mean=torch.zeros(1))
    assert model.temporal[0] is kernel


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RBF(-1.0), r"RBF\.variance must be positive and finite, but got -1\.0"),
        (lambda: RBF(1.0, float("nan")), r"RBF\.lengthscale must be positive"),
        (lambda: ARDRBF(1.0, torch.zeros(3)), r"ARDRBF\.weight must be positive"),
        (lambda: White(torch.tensor([])), r"White\.variance must be positive"),
        (lambda: RBF().set("width", 1.0), r"RBF has no parameter 'width'; it has variance, lengthscale"),
        (
            lambda: (RBF() + White()).fix("variance"),
            r"use a part: kernel\[0\]\.fix\('variance'\)",
        ),
        (lambda: (lambda k: k + k)(RBF()), "same kernel object occurs twice"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_kernels_combine_only_with_kernels():
    with pytest.raises(TypeError, match="combines only with kernels, but got float"):
        RBF() + 1.0


def test_wrong_number_of_latent_dimensions():
    with pytest.raises(ValueError, match="has parameters for 3 latent dimensions, but latent_dim is 2"):
        TemporalGP(RBF(torch.ones(3))(), T, 2)


@pytest.mark.parametrize(
    "kernel",
    [
        gp.kernels.RBF(1, variance=torch.tensor(1.3), lengthscale=torch.tensor(0.7)),
        gp.kernels.Sum(
            gp.kernels.Matern52(1, lengthscale=torch.tensor(0.7)), gp.kernels.WhiteNoise(1, variance=torch.tensor(0.1))
        ),
    ],
)
def test_kernels_of_pyro_contrib_gp(kernel):
    ours = RBF(1.3, 0.7) if isinstance(kernel, gp.kernels.RBF) else Matern52(1.0, 0.7) + White(0.1)
    batch = torch.stack([T, T + 0.5])
    adapted = from_pyro(kernel)
    model = VGPDS(adapted, ARDRBF(), inducing=torch.zeros(2, 1), noise=0.1, output_mean=torch.zeros(1))
    value = model.temporal()
    torch.testing.assert_close(value.gram(batch), ours().gram(batch), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(value.gram(T, T + 1), ours().gram(T, T + 1), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(value.diag(batch), ours().diag(batch), rtol=1e-6, atol=1e-5)
    assert "from_pyro" in repr(adapted)
    assert any("lengthscale" in name for name, _ in model.named_parameters())


def test_what_the_adapter_refuses():
    with pytest.raises(TypeError, match=r"must be a pyro\.contrib\.gp kernel, but got RBF"):
        from_pyro(RBF())
    with pytest.raises(ValueError, match="its input_dim is 2"):
        from_pyro(gp.kernels.RBF(2))


@pytest.mark.parametrize(
    ("prior", "text"),
    [
        (dist.LogNormal(-3.0, 1.0), "LogNormal(loc=-3, scale=1)"),
        (dist.Gamma(2.0, 0.5), "Gamma(concentration=2, rate=0.5)"),
        (dist.Uniform(0.0, 2.0), "Uniform(low=0, high=2)"),
        (dist.HalfCauchy(2.0), "HalfCauchy(scale=2)"),
        (dist.LogNormal(torch.tensor([0.0, 1.0]), 1.0).to_event(1), "LogNormal(loc=[0, 1], scale=[1, 1])"),
        (dist.FoldedDistribution(dist.Normal(0.0, 1.0)), "FoldedDistribution(Normal(loc=0, scale=1))"),
        (PyroSample(dist.LogNormal(-3.0, 1.0)), "LogNormal(loc=-3, scale=1)"),
        (lambda kernel: dist.LogNormal(0.0, 1.0), "<lambda>"),
    ],
)
def test_repr_of_a_prior(prior, text):
    assert repr(RBF(lengthscale=prior)) == f"RBF(variance=1, lengthscale~{text})"


def test_repr_says_what_is_learned_fixed_and_random():
    kernel = RBF(1.0, 0.5).fix("variance") + White(0.25) * Matern12(lengthscale=dist.LogNormal(0.0, 1.0))
    assert repr(kernel).startswith("RBF(variance=1 (fixed), lengthscale=0.5) + White(variance=0.25) * Matern12(")
    assert repr(kernel).endswith("Matern12(variance=1, lengthscale~LogNormal(loc=0, scale=1))")
    assert repr(ARDLinear(torch.tensor([1.0, 2.0]))) == "ARDLinear(weight=[1, 2])"
    pyro.clear_param_store()


def test_a_method_that_a_kernel_does_not_define_is_named():
    class Nothing(KernelValue, MappingValue):
        pass

    calls = {
        "gram": (None,), "diag": (None,), "stationary_covariance": (), "observation_model": (None,),
        "design_matrix": (), "cov": (None, None), "cov_diag": (None,), "psi0": (None, None, None),
        "psi1": (None, None, None), "psi2": (None, None, None, None),
    }  # fmt: skip
    for method, arguments in calls.items():
        with pytest.raises(NotImplementedError, match=rf"Nothing must define {method}\("):
            getattr(Nothing(), method)(*arguments)


def test_a_cross_term_that_is_not_registered_is_named():
    class Lonely(MappingValue):
        def psi2(self, mean, variance, z, mask):
            return torch.zeros(1, len(z), len(z))

    points = torch.zeros(2, 1)
    value = SumValue([Lonely(), ARDRBF()()])
    with pytest.raises(TypeError, match="the cross term of Lonely and ARDRBFValue in a sum is not registered"):
        value.psi2(points, points, points, None)
    with pytest.raises(TypeError, match=r"first must be a class derived from MappingValue, but got .*ARDRBF"):
        register_psi2(ARDRBF, ARDLinearValue)


def test_a_shared_parameter_stays_one_number():
    kernel = ARDRBF().per_dimension(3)
    assert kernel.variance.shape == ()
    assert kernel.weight.shape == (3,)


@pytest.mark.parametrize("extra", [Bias([1.0, 2.0]), White([1.0, 2.0]), ARDRBF().set("variance", [1.0, 2.0])])
def test_a_variance_of_the_mapping_is_one_number(extra):
    with pytest.raises(ValueError, match=r"a variance must be one number, but got .*\(variance=\[1, 2\]"):
        VGPDS(RBF(), ARDRBF() + extra, torch.zeros(3, 2), 0.1, torch.zeros(2))


def test_parameters_that_are_durations():
    """A lengthscale of the periodic kernel is relative to its period, and no duration."""
    kernel = Periodic() * Matern32() + White() + Linear()
    assert [sorted(leaf.time_parameters) for leaf in kernel.leaves()] == [["period"], ["lengthscale"], [], []]
