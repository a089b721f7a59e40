# SPDX-License-Identifier: Apache-2.0
"""Different likelihoods for groups of outputs, several functions for each output, and exposures of counts."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Sequences, fit
from pyro_vgpds.data.parts import make_like, take_frames, with_outputs
from pyro_vgpds.files.models import build_data, describe_data
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White
from pyro_vgpds.likelihoods import (
    Bernoulli,
    Binomial,
    ByColumn,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    SiteLikelihood,
    StudentT,
    parse_likelihood,
)
from pyro_vgpds.likelihoods.factors import Moments
from pyro_vgpds.likelihoods.guess import guess
from pyro_vgpds.mapping.latent_gp import LatentGP

NAN = math.nan
T = np.arange(5.0)


class TwoFunctions(SiteLikelihood):
    num_functions = 2

    def distribution(self, f, p):
        return dist.Normal(f[..., 0], (0.5 * f[..., 1]).exp())


def mixed() -> ByColumn:
    return ByColumn([(Poisson(), [3, 0]), (TwoFunctions(), [1]), (StudentT([0.3]), [2])])


def test_every_part_is_that_of_its_own_likelihood():
    value, y = mixed()(), torch.tensor([[2.0, 0.3, -0.4, 1.0], [0.0, NAN, 1.2, 3.0]])
    f = torch.randn(2, 8)
    own = {0: (Poisson(), [0, 3]), 1: (TwoFunctions(), [1]), 2: (StudentT([0.3]), [2])}
    places = {0: [0, 6], 1: [2, 3], 2: [4]}
    moments = Moments(f, f.square() + 0.5)
    found = value.sites(y, value.updated(y, value.initial(y, f), moments, 0.7))
    for key, (likelihood, outputs) in own.items():
        part, functions = likelihood(), places[key]
        torch.testing.assert_close(value.log_prob(f, y)[:, outputs], part.log_prob(f[:, functions], y[:, outputs]))
        inner = Moments(f[:, functions], moments.square[:, functions])
        state = part.updated(y[:, outputs], part.initial(y[:, outputs], f[:, functions]), inner, 0.7)
        for whole, each in zip(found, part.sites(y[:, outputs], state), strict=True):
            torch.testing.assert_close(whole[:, functions], each)
        for whole, each in zip(value.moments(f), part.moments(f[:, functions]), strict=True):
            torch.testing.assert_close(whole[:, outputs], each)
    assert (found.weight[:, [1, 5, 7]] == 0.0).all()  # functions that nothing uses
    assert guess(value, y, (2,)).shape == (2, 8)
    assert value.distribution(f).sample((3,)).shape == (3, 2, 4)
    assert value.distribution(f).mean.shape == value.distribution(f).variance.shape == (2, 4)


def test_mixed_columns_are_separate_models_of_one_path():
    """At fixed factors, the bound is the sum of the bounds of each group."""
    y = np.random.default_rng(0).poisson(2.0, (5, 3)).astype(float)
    state, bounds = {}, []
    for columns in ([0, 1, 2], [0], [1, 2]):
        pyro.clear_param_store()
        groups = [(StudentT([0.5]), [0])] if 0 in columns else []
        if 1 in columns:
            groups.append((Poisson(), [len(columns) - 2, len(columns) - 1]))
        model = VGPDS(
            Matern32() + White(0.1), ARDRBF(1.0, [0.5, 0.5]), torch.linspace(-1, 1, 6).reshape(3, 2), None,
            torch.zeros(len(columns)), likelihood=ByColumn(groups),
        )  # fmt: skip
        guide = AutoOpperArchambeau(model, mean_bar=torch.ones(5, 2), lam=torch.ones(5, 2))
        data = Sequences(T, y[:, columns])
        bounds.append(-Collapsed_ELBO().loss(model, guide, data))
        q = guide.posterior(data)
        state[tuple(columns)] = float(torch.distributions.kl_divergence(q, q.prior).sum().detach())
    assert bounds[0] == pytest.approx(bounds[1] + bounds[2] + state[(0,)], abs=1e-8)


def test_names_of_columns_and_dictionaries():
    columns = ["hip", "knee", "steps"]
    y = np.random.default_rng(0).poisson(3.0, (30, 3)).astype(float)
    data = Sequences(np.arange(30.0), y, columns=columns)
    model = VGPDS.from_data(data, 2, 5, likelihood={"Gaussian": ["knee", 0], "poisson": ["steps"]})
    assert repr(model.output_likelihood).endswith(": ['knee', 0], Poisson(): ['steps'])")
    assert model.output_likelihood.place.tolist() == [0, 0, 1]
    assert set(model.state_dict()) >= {"output_likelihood.place", "output_likelihood.likelihoods.0.scale_unconstrained"}


@pytest.mark.parametrize("name", ["poisson", "Negative_Binomial", "student-t", "StudentT", "BERNOULLI", "gaussian"])
def test_likelihoods_by_name(name):
    assert isinstance(parse_likelihood(name), Likelihood)


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        ([], ValueError, "at least one likelihood"),
        ([(Poisson(), [0]), (Gaussian(), [0, 1])], ValueError, r"ByColumn has output 0 more than once"),
        ([(Poisson(), [0]), (Gaussian(), [2])], ValueError, r"no likelihood for output 1"),
        ([(Poisson(), [0, -1])], ValueError, r"has the column -1, but columns are numbered from 0 to 0"),
        ([(Poisson(), [])], ValueError, r"columns of Poisson\(\) are an empty list"),
        ([(Poisson(), "ab")], TypeError, r"must be a list of indices or names, but got 'ab'"),
        ([(Poisson(), [1.5])], TypeError, r"must be indices or names, but got 1.5"),
        ([("poisson", [0])], TypeError, r"groups must have likelihoods such as Poisson\(\), but got 'poisson'"),
        ([Poisson()], TypeError, r"groups must be pairs of a likelihood and its columns, but got Poisson\(\)"),
    ],
)
def test_bad_groups(groups, error, message):
    with pytest.raises(error, match=message):
        ByColumn(groups)


def test_a_likelihood_twice():
    poisson = Poisson()
    with pytest.raises(ValueError, match="the same likelihood twice"):
        ByColumn([(poisson, [0]), (poisson, [1])])


DATA = Sequences(T, np.eye(5, 2), columns=["a", "b"])


@pytest.mark.parametrize(
    ("data", "likelihood", "error", "message"),
    [
        (DATA, ByColumn([(Poisson(), ["a"])]), ValueError, r"no likelihood for output 1 \('b'\)"),
        (DATA, {"poisson": ["a", "c"]}, ValueError, r"has the column 'c', but the outputs do not: there are 'a', 'b'"),
        (Sequences(T, np.eye(5, 2)), {"poisson": ["a"]}, ValueError, "names of columns, but the outputs have none"),
        (DATA, ByColumn([(Poisson(), [0, 1, 2])]), ValueError, "ByColumn has 3 columns, but there are 2 outputs"),
        (DATA, ByColumn([(StudentT([1.0, 2.0]), [0]), (Poisson(), [1])]), ValueError, r"outputs \[0\]: StudentT"),
        (DATA, StudentT([1.0, 2.0, 3.0]), ValueError, "StudentT.scale has 3 values, but there are 2 outputs"),
        (DATA, Binomial([1, 2, 3]), ValueError, "Binomial.total has 3 values, but there are 2 outputs"),
        (DATA, "poison", ValueError, "there is no likelihood 'poison'; there are bernoulli, gaussian"),
        (DATA, 3, TypeError, r"must be one of pyro_vgpds.likelihoods, such as NegativeBinomial\(\), a name"),
        (DATA, {"gaussian": "a"}, TypeError, "must be a list of indices or names, but got 'a'"),
    ],
)  # fmt: skip
def test_bad_likelihoods_of_data(data, likelihood, error, message):
    with pytest.raises(error, match=message):
        VGPDS.from_data(data, 1, 3, likelihood=likelihood)


def test_the_entry_that_its_likelihood_does_not_allow():
    y = np.ones((5, 2))
    y[3, 1] = 0.5
    data = Sequences([T[:2], T[:3]], [y[:2], y[2:]], columns=["a", "b"])
    with pytest.raises(
        ValueError, match=r"0.5 in output 1 \('b'\), frame 1 of sequence 1, but Poisson outputs must be a"
    ):
        VGPDS.from_data(data, 1, 3, likelihood={"gaussian": ["a"], "poisson": ["b"]})


def test_functions_that_do_not_fit():
    with pytest.raises(ValueError, match=r"output_mean must have 2 values for each output, .* but got 3"):
        VGPDS(Matern32(), ARDRBF(1.0, [1.0]), torch.zeros(2, 1), None, torch.zeros(3), likelihood=TwoFunctions())


def test_fix_and_parameters():
    fixed = ByColumn([(StudentT(), [0]), (NegativeBinomial(), [1])]).fix("df")
    assert "df=10 (fixed)" in repr(fixed)
    assert len(list(fixed.parameters())) == 2
    assert not list(fixed.fix().parameters())
    with pytest.raises(ValueError, match="has a parameter 'noise'"):
        fixed.fix("noise")


# exposures


def exposed_models(likelihood, exposure):
    """A model with an exposure, and one whose functions have its log in their means."""
    y = np.random.default_rng(1).poisson(3.0, (5, 2)).astype(float)
    y[0, 1] = NAN
    found = []
    for by_mean in (False, True):
        pyro.clear_param_store()
        mean = torch.tensor([0.2, -0.3])
        model = VGPDS(
            Matern32() + White(0.1), ARDRBF(1.0, [0.5, 0.5]) + Bias(0.1), torch.linspace(-1, 1, 6).reshape(3, 2), None,
            mean + torch.tensor(exposure).log() if by_mean else mean, likelihood=likelihood(),
        )  # fmt: skip
        guide = AutoOpperArchambeau(model, mean_bar=torch.ones(5, 2), lam=torch.ones(5, 2))
        data = Sequences(T, y, exposure=None if by_mean else exposure)
        found.append(-Collapsed_ELBO().loss(model, guide, data))
        for _ in range(120):  # to the fixed point of the factors
            Collapsed_ELBO().loss_and_grads(model, guide, data)
        found.append(-Collapsed_ELBO().loss(model, guide, data))
    return found


@pytest.mark.parametrize("likelihood", [Poisson, lambda: NegativeBinomial(3.0)])
def test_an_exposure_is_a_shift_of_the_function(likelihood):
    _, shifted, _, expected = exposed_models(likelihood, [2.0, 0.3])
    assert shifted == pytest.approx(expected, abs=1e-7)


def test_exposure_of_each_entry_in_the_joint_model():
    exposure = torch.rand(5, 2) + 0.5
    data = Sequences(T, torch.poisson(3.0 * torch.ones(5, 2)).numpy(), exposure=exposure.numpy())
    model = VGPDS(Matern32(), ARDRBF(1.0, [1.0]), torch.zeros(2, 1), None, torch.zeros(2), likelihood=Poisson())
    f = torch.randn(5, 2)
    conditioned = pyro.condition(model, {"x": torch.randn(5, 1), "f": f})
    trace = pyro.poutine.trace(conditioned).get_trace(data)
    expected = dist.Poisson(exposure * f.exp()).log_prob(data.y).sum()
    torch.testing.assert_close(trace.nodes["y"]["fn"].log_prob(data.y), expected)


@pytest.mark.long
def test_exposure_explains_counts():
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 6.0, 80)
    rate = np.exp(np.sin(t)[:, None] * np.linspace(-1.0, 1.0, 4))
    exposure = rng.uniform(0.2, 5.0, (80, 4))
    y = rng.poisson(rate * exposure).astype(float)
    bounds = []
    for given in (None, exposure):
        pyro.clear_param_store()
        data = Sequences(t, y, exposure=given)
        model = VGPDS.from_data(data, 1, 8, temporal=Matern32() + White(1e-2), likelihood=Poisson())
        bounds.append(fit(model, AutoOpperArchambeau(model), data, num_steps=15).bound)
    assert bounds[1] > bounds[0] + 20.0


def test_exposures_survive_joins_and_selection():
    e = np.arange(1.0, 11.0).reshape(5, 2)
    data = Sequences([T[:3], T[:2]], [np.ones((3, 2)), np.ones((2, 2))], exposure=[e[:3], e[3:]])
    assert data.exposure.tolist() == e.tolist()
    assert take_frames(data, [slice(1, 3), slice(0, 0)]).exposure.tolist() == e[1:3].tolist()
    assert with_outputs(data, torch.zeros(5, 2)).exposure.tolist() == e.tolist()
    same = Sequences(T[:1], np.ones((1, 2)), exposure=[2.0, 3.0])
    assert data.joined(same).exposure.tolist() == [*e.tolist(), [2.0, 3.0]]
    assert same.joined(same).exposure.tolist() == [2.0, 3.0]
    plain = Sequences(T[:1], np.ones((1, 2)))
    assert plain.joined(same).exposure.tolist() == [[1.0, 1.0], [2.0, 3.0]]
    assert plain.joined(plain).exposure is None
    assert make_like(same, [torch.ones(1)], [torch.ones(1, 2)]).exposure.tolist() == [2.0, 3.0]
    header, tensors = describe_data(data)
    assert build_data(header, tensors).exposure.tolist() == e.tolist()


@pytest.mark.parametrize(
    ("exposure", "error", "message"),
    [
        ([1.0, 0.0], ValueError, "exposure must be positive and finite, but it is 0.0 for output 1"),
        (np.where(np.eye(5, 2), -1.0, 1.0), ValueError, "it is -1.0 for output 0, frame 0 of sequence 0"),
        (np.full((5, 2), NAN), ValueError, "it is nan for output 0"),
        ([1.0, math.inf], ValueError, "it is inf for output 1"),
        ([1.0, 2.0, 3.0], ValueError, r"with N = 5 frames and D = 2 outputs, but its shape is \(3,\)"),
        (2.0, ValueError, r"its shape is \(\)"),
        ({"a": 1}, TypeError, "exposure must be numbers"),
    ],
)
def test_bad_exposures(exposure, error, message):
    with pytest.raises(error, match=message):
        Sequences(T, np.ones((5, 2)), exposure=exposure)


def test_exposures_name_the_sequence_and_its_frame():
    e = np.ones((5, 2))
    e[4, 1] = 0.0
    with pytest.raises(ValueError, match="for output 1, frame 1 of sequence 1"):
        Sequences([T[:3], T[:2]], [np.ones((3, 2)), np.ones((2, 2))], exposure=e)
    with pytest.raises(ValueError, match="t has 2 sequences, but exposure has 1"):
        Sequences([T[:3], T[:2]], [np.ones((3, 2)), np.ones((2, 2))], exposure=[e])


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (None, r"an exposure for output 1 \('b'\), whose likelihood is Gaussian: only counts"),
        ("bernoulli", r"output 1 \('b'\), whose likelihood is Bernoulli"),
        ({"poisson": ["a"], "student-t": ["b"]}, r"output 1 \('b'\), whose likelihood is StudentT"),
    ],
)
def test_exposures_of_outputs_that_are_no_counts(likelihood, message):
    data = Sequences(T, np.eye(5, 2), columns=["a", "b"], exposure=[1.0, 2.0])
    with pytest.raises(ValueError, match=message):
        VGPDS.from_data(data, 1, 3, likelihood=likelihood)


def test_functions_are_an_exact_gp():
    """LatentGP.log_prob against a multivariate normal, and its gradients."""
    kernel = ARDRBF(1.2, [0.7, 0.4])()
    mean, scale = torch.tensor([0.3, -0.2]), torch.tensor([0.5, 2.0])
    x, f = torch.randn(4, 2), torch.randn(4, 2)
    gp = LatentGP(x, kernel, inducing=x, mean=mean, scale=scale)
    cov = kernel.cov(x, x) + 1.5e-8 * 1.2 * torch.eye(4)
    expected = sum(dist.MultivariateNormal(mean[d].expand(4), scale[d] ** 2 * cov).log_prob(f[:, d]) for d in range(2))
    torch.testing.assert_close(gp.log_prob(f), expected, rtol=1e-6, atol=1e-6)
    inputs = tuple(part.clone().requires_grad_() for part in (x, f, scale))
    assert torch.autograd.gradcheck(
        lambda x, f, scale: LatentGP(x, kernel, inducing=x, mean=mean, scale=scale).log_prob(f), inputs
    )
    assert Bernoulli().num_functions == 1
