# SPDX-License-Identifier: Apache-2.0
"""A kernel object is part of one model."""

import copy
import pickle

import pyro
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, PosteriorMixture, Sequences, fit, save
from pyro_vgpds.kernels import ARDRBF, Bias, Cosine, Matern32, White
from tests.problems import make_data

DATA = make_data((12,))


def make(temporal=None, mapping=None, data=DATA):
    return VGPDS.from_data(data, latent_dim=2, num_inducing=4, temporal=temporal, mapping=mapping)


def bound(model, guide=None):
    with torch.no_grad(), pyro.get_param_store().scope():
        return -Collapsed_ELBO().loss(model, guide or AutoOpperArchambeau(model), DATA)


def test_a_kernel_of_a_model_in_use_is_refused():
    leaf = Matern32()
    model = make(leaf + White(0.1))
    guide = AutoOpperArchambeau(model)
    before = bound(model, guide)
    with pytest.raises(ValueError, match=r"part of a sum is or contains Matern32.*part of another model already; crea"):
        leaf + Bias(0.1)
    with pytest.raises(ValueError, match="part of a product is or contains Matern32"):
        Cosine() * leaf
    for kernel in (leaf, model.temporal):
        with pytest.raises(ValueError, match=r"temporal is or contains Matern32.*In a notebook, create the kernel in"):
            make(kernel)
    with pytest.raises(ValueError, match=r"mapping is or contains ARDRBF\(.*part of another model already"):
        make(mapping=model.mapping)
    assert bound(model, guide) == before


def test_a_kernel_in_two_sums_is_refused_if_the_second_becomes_a_model():
    leaf = Matern32()
    first, second = leaf + White(0.1), leaf + Bias(0.1)
    model = make(first)
    bound(model)
    with pytest.raises(ValueError, match=r"temporal is or contains Matern32.*part of another model already"):
        make(second)
    assert "temporal.parts.0.lengthscale_unconstrained" in dict(model.named_parameters())


def test_a_kernel_of_a_model_that_was_never_called_is_refused():
    kernel = Matern32() + White(0.1)
    model = make(kernel)
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        for part in (other.temporal, other.temporal[0]):
            with pytest.raises(ValueError, match=r"temporal is or contains Matern32.*part of another model already"):
                make(part)
        with pytest.raises(ValueError, match=r"mapping is or contains ARDRBF.*part of another model already"):
            make(mapping=other.mapping)
    fit(model, AutoOpperArchambeau(model), DATA, num_steps=1)


def test_a_model_that_could_not_be_made_leaves_its_kernel_free():
    kernel = Matern32() + White(0.1)
    for wrong in ({"noise": 0.1, "jitter": -1.0}, {"noise": -1.0}):
        with pytest.raises(ValueError, match="must be") as error:
            VGPDS(kernel, ARDRBF(), torch.zeros(3, 2), output_mean=torch.zeros(2), **wrong)
    assert bound(make(kernel)) < 0.0
    assert error.traceback  # exists until here


def test_a_kernel_that_was_given_to_a_second_model_by_assignment_is_an_error():
    first, second = make(Matern32()), make(Matern32())
    second.temporal = first.temporal
    with pytest.raises(ValueError, match=r"this model has lost its kernel Matern32\(.*Create new kernels for each"):
        first(DATA)


def test_a_kernel_is_free_again_when_its_model_is_gone():
    kernel = Matern32() + White(0.1)
    model = make(kernel)
    fit(model, AutoOpperArchambeau(model), DATA, num_steps=2)
    model.itself = [model]  # a cycle, which only the garbage collector finds
    del model
    again = make(kernel)
    kernel[0].fix("variance")  # the handle acts on the new model
    assert "temporal.parts.0.variance_unconstrained" not in dict(again.named_parameters())
    result = fit(again, AutoOpperArchambeau(again), DATA, num_steps=2)
    assert result.bound > -1e6


@pytest.mark.parametrize("called", [False, True])
def test_copies_are_free(called):
    model = make(Matern32() + White(0.1))
    if called:
        bound(model)
    twin = make(copy.deepcopy(model.temporal), copy.deepcopy(model.mapping))
    whole, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for each in (model, twin, whole, pickled):
        bound(each)
    before = bound(model)
    for other in (twin, whole, pickled):
        fit(other, AutoOpperArchambeau(other), DATA, num_steps=2)
    assert bound(model) == before
    with pytest.raises(ValueError, match="part of another model already"):
        make(whole.temporal)


def test_the_same_object_twice_in_one_model_is_refused():
    leaf = Matern32()
    with pytest.raises(ValueError, match="the same kernel object occurs twice in a sum or product; make two kernels"):
        leaf * Cosine() + leaf
    with pytest.raises(ValueError, match="occurs twice"):
        leaf + leaf
    shared = Bias(0.1)
    for temporal, mapping in ((shared, shared), (Matern32() + shared, ARDRBF() + shared)):
        with pytest.raises(ValueError, match="temporal and mapping are or contain the same kernel object, Bias"):
            make(temporal, mapping)


def test_a_guide_of_another_model_is_refused(tmp_path):
    first, second = make(), make()
    guide = AutoOpperArchambeau(first)
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    with pytest.raises(ValueError, match="guide was made for another model"):
        fit(second, guide, DATA, num_steps=2)
    with pytest.raises(ValueError, match="guide must be the guide of this model"):
        save(tmp_path / "model", second, guide, DATA)
    with pytest.raises(ValueError, match="guide was made for another model"):
        Posterior(second, guide, DATA)
    assert not list(tmp_path.iterdir())
    assert all(torch.equal(before[name], value) for name, value in guide.state_dict().items())


def test_a_mixture_of_models_of_different_data_is_refused():
    y = DATA.y.clone()
    posteriors = []
    hidden = y.clone()
    hidden[3, 1] = torch.nan
    for values in (y, y.clone(), y + 1.0, hidden):
        data = Sequences(DATA.times.t, values)
        model = make(data=data)
        posteriors.append(Posterior(model, AutoOpperArchambeau(model), data))
    PosteriorMixture(posteriors[:2])
    for other in posteriors[2:]:
        with pytest.raises(ValueError, match=r"same data, but the training outputs of posteriors\[1\] differ"):
            PosteriorMixture([posteriors[0], other])
    lagged = []
    for lags in ([-1], [-2]):
        data = DATA.lagged(lags)
        model = make(data=data)
        lagged.append(Posterior(model, AutoOpperArchambeau(model), data))
    PosteriorMixture(lagged)
