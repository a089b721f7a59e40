# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from problems import make_data, train_by_svi

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, Sequences, TemporalGP, fit
from pyro_vgpds.inference.pca import kmeans, pca
from pyro_vgpds.inference.start import Sizes
from pyro_vgpds.kernels import ARDRBF, RBF, ARDLinear, Bias, Cosine, Matern32, Periodic, White


def train(data, steps=10, **options):
    model = VGPDS.from_data(data, **options)
    guide = AutoOpperArchambeau(model)
    losses = train_by_svi(model, guide, data, steps)
    assert losses[-1] < losses[0] - 0.5
    return model, guide


def test_the_start():
    data = make_data((30, 20), outputs=8)
    data = Sequences(data.times.t.split(data.lengths), (data.y * torch.arange(1.0, 9.0)).split(data.lengths))
    scale = data.y.std(0, correction=0)
    paper = {"noise_per_output": False, "scale_outputs": False, "static_dim": 0}
    for model, y in (
        (VGPDS.from_data(data, 3, 10, **paper), data.y - data.y.mean(0)),
        (VGPDS.from_data(data, 3, 10), (data.y - data.y.mean(0)) / scale),
    ):
        u, s, _ = torch.linalg.svd(y, full_matrices=False)
        x = model.start.x
        torch.testing.assert_close((x / 50**0.5).abs(), u[:, :3].abs(), rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(x.square().mean(0), torch.ones(3))
        spread = y.var(0, correction=0).mean()
        torch.testing.assert_close(model.noise, 0.01 * spread.expand(model.noise.shape))
        share = (s[:3] / s[0]).square().clamp_min(1e-3)
        torch.testing.assert_close(model.mapping.weight / model.mapping.weight[0], share)
        # almost linear, with the variance of the outputs over the data
        total = model.mapping.weight.sum()
        assert 0.1 < total < 1.0
        torch.testing.assert_close(model.mapping.variance * -torch.expm1(-total), spread)
        torch.testing.assert_close(model.output_mean, data.y.mean(0))
        assert "variance" not in dict(model.temporal[0].named_pyro_params())
    # q(X) is the temporal prior's posterior of noisy observations of the components
    guide = AutoOpperArchambeau(model)
    prior = TemporalGP(model.temporal(), data.times, 3)
    k = prior.covariance_matrix
    expected = k @ torch.linalg.solve(k + 0.1 * torch.eye(50), x.mT.unsqueeze(-1))
    torch.testing.assert_close(prior.covariance.matmul(guide.mean_bar), expected.squeeze(-1).mT, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("lengths", "outputs"),
    [((3,), 4), ((30, 20), 8), ((100,) * 4, 30), ((50,) * 20, 30), ((2000,), 2), ((8,), 1), ((1,), 1), ((1,) * 9, 9)],
)
def test_sizes_are_chosen_for_the_data(lengths, outputs):
    data = make_data(lengths, outputs=outputs)
    latent, inducing, static = Sizes(None, None, None).chosen(data)
    assert 1 <= latent <= min(outputs, data.num_frames)
    assert min(data.num_frames, 20) <= inducing <= min(data.num_frames, 200)
    assert 0 <= static < latent
    assert static < data.num_sequences
    assert Sizes(1, 1, 0).chosen(data) == (1, 1, 0)  # what is given stays
    more = Sizes(None, None, None).chosen(make_data(tuple(4 * n for n in lengths), outputs=outputs))
    assert more[0] >= latent
    assert more[1] >= inducing


def test_the_defaults():
    data = make_data((30, 30, 25, 20), outputs=12, missing=0.1)
    model = VGPDS.from_data(data)
    q, inducing, static = Sizes(None, None, None).chosen(data)
    assert (model.latent_dim, model.num_inducing) == (q, inducing)
    assert static > 0
    (smooth, turning), level, trend, white, bias = model.temporal
    for kernel in (smooth, turning):
        assert kernel.is_fixed("variance")  # redundant with the weights of the mapping
    assert smooth.is_learned("lengthscale")
    assert (smooth.lengthscale <= turning.period).all()
    for value in (smooth.lengthscale, turning.period, level.variance, trend.variance, white.variance, bias.variance):
        assert value.shape == (q,)
    torch.testing.assert_close(model.output_scale, data.output_scales)
    assert model.noise.shape == (12,)
    assert model.least_noise > 0.0
    within = torch.stack([model.start.x[rows].var(0) for rows in data.times.slices()]).mean(0)
    assert (within < 1e-10).tolist() == [False] * (q - static) + [True] * static
    for kernel in (level, trend, white):
        assert kernel.variance[-1] < kernel.variance[0]
    shared = VGPDS.from_data(data, noise_per_output=False, scale_outputs=False, static_dim=0)
    assert shared.noise.shape == ()
    assert shared.least_noise == 0.0
    torch.testing.assert_close(shared.output_scale, torch.ones(12))
    assert (torch.stack([shared.start.x[rows].var(0) for rows in data.times.slices()]) > 1e-6).all()


@pytest.mark.parametrize(("likelihood", "oscillates"), [("student-t", True), ("poisson", False), ("bernoulli", False)])
def test_paths_of_continuous_outputs_oscillate_whatever_their_likelihood(likelihood, oscillates):
    t = torch.arange(60.0)
    wave = torch.sin(2.0 * torch.pi * t.unsqueeze(-1) / 9.0 + torch.arange(6.0)) + 0.3 * torch.randn(60, 6)
    model = VGPDS.from_data(Sequences(t, (wave > 0.0).double()), 3, likelihood=likelihood)
    # the cycle of discrete outputs has a fixed period: their paths are no oscillators
    free = [leaf for leaf in model.temporal.leaves() if isinstance(leaf, Cosine) and not leaf.is_fixed("period")]
    assert bool(free) == oscillates


def test_continuous_outputs_start_from_their_own_moments_whatever_their_likelihood():
    y = make_data((40,), outputs=6).y.clone() + 100.0 * torch.arange(6.0)  # outputs in units of their own
    y[:30, 1] = y[5:9, 3] = torch.nan
    data = Sequences(torch.arange(40.0), y)
    plain, other = VGPDS.from_data(data, 3), VGPDS.from_data(data, 3, likelihood="student-t")
    torch.testing.assert_close(other.output_mean, plain.output_mean)
    torch.testing.assert_close(other.output_scale, plain.output_scale)
    torch.testing.assert_close(other.start.x, plain.start.x)


def test_a_single_sequence_with_a_clear_cycle_has_its_period():
    t = torch.arange(120) / 10.0
    y = torch.sin(2.0 * torch.pi * t.unsqueeze(-1) / 1.5 + torch.arange(6.0)) + 0.1 * torch.randn(120, 6)
    model = VGPDS.from_data(Sequences(t, y), 3)
    (slow, waves), path, _, _, white, bias = model.temporal
    assert slow.is_fixed("variance")
    for number, turning in enumerate(waves, 1):  # the cycle and two harmonics
        torch.testing.assert_close(turning.period.detach(), torch.full((3,), 1.5 / number), rtol=0.02, atol=0.0)
        assert turning.variance.shape == (3,)
    assert (slow.lengthscale > path.lengthscale).all()
    for value in (path.variance, white.variance, bias.variance):
        assert value.shape == (3,)
    assert len(VGPDS.from_data(Sequences([t, t], [y, y]), 3).temporal) == 5  # several sequences have no common cycle


@pytest.mark.parametrize(("lengths", "outputs"), [((3,), 4), ((9,), 1), ((1,), 2), ((2, 1), 3)])
def test_the_defaults_train_on_very_few_numbers(lengths, outputs):
    data = make_data(lengths, outputs=outputs)
    model = VGPDS.from_data(data)
    guide = AutoOpperArchambeau(model)
    before = -Collapsed_ELBO().loss(model, guide, data)
    assert before < fit(model, guide, data, 10, progress=False).bound < np.inf
    assert Posterior(model, guide, data).forecast([9.0], 0).mean.isfinite().all()


def test_the_noise_never_falls_below_its_least_value():
    parts = {"inducing": torch.zeros(4, 2), "noise": 0.3, "output_mean": torch.zeros(3)}
    model = VGPDS(RBF(), ARDRBF(), least_noise=0.2, **parts)
    data = make_data((5,), outputs=3)
    torch.testing.assert_close(model.likelihood(torch.zeros(5, 2), data).noise.detach(), torch.full((1,), 0.5))
    for bad in (-1e-3, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="least_noise must be a finite number >= 0, but got"):
            VGPDS(RBF(), ARDRBF(), least_noise=bad, **parts)


def test_the_start_is_the_same_again_with_the_same_seed():
    data = make_data((30, 20), outputs=8)
    starts = []
    for seed in (1, 1, 2):
        pyro.set_rng_seed(seed)
        starts.append(VGPDS.from_data(data, 3, 10).inducing.detach())
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_pca_of_what_is_observed_finds_a_low_rank_path():
    rng = np.random.default_rng(0)
    t = np.linspace(0, 6, 60)
    latent = np.stack([np.sin(t), np.cos(2 * t)], 1) * [3.0, 1.0]
    y = latent @ rng.standard_normal((2, 25)) + 5
    hidden = rng.random(y.shape) < 0.5
    hidden[17] = True  # a frame with nothing observed
    mean, scale = torch.from_numpy(y.mean(0)), torch.ones(25)
    x, share = pca(Sequences(t, np.where(hidden, np.nan, y)), 2, mean, scale)
    full, full_share = pca(Sequences(t, y), 2, mean, scale)
    design = np.column_stack([x.numpy(), np.ones(60)])
    fit, *_ = np.linalg.lstsq(design, full.numpy(), rcond=None)
    error = (full.numpy() - design @ fit).std(0)
    assert (error < 0.1).all()  # of unit variance
    assert share[1] == pytest.approx(full_share[1].item(), rel=0.3)


def test_with_as_many_components_as_outputs_the_first_path_knows_what_missing_outputs_are():
    rng = np.random.default_rng(0)
    t = np.arange(80.0)
    y = rng.standard_normal((80, 2)).cumsum(0) @ rng.standard_normal((2, 5))
    y = (y - y.mean(0)) / y.std(0) + 0.01 * rng.standard_normal((80, 5))
    hidden = np.zeros((80, 5), dtype=bool)
    hidden[20:32, :2] = hidden[50:62, 2:4] = True
    mean, scale = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    x, _ = pca(Sequences(t, np.where(hidden, np.nan, y)), 5, mean, scale)
    seen = ~hidden.any(1)
    loadings, *_ = np.linalg.lstsq(x.numpy()[seen], y[seen], rcond=None)
    assert np.abs(loadings.T @ x.numpy().T - y.T)[hidden.T].max() < 0.3
    y[40] = np.nan  # interpolated in time
    x, _ = pca(Sequences(t, np.where(hidden, np.nan, y)), 5, mean, scale)
    torch.testing.assert_close(x[40], 0.5 * (x[39] + x[41]))


@pytest.mark.parametrize("unit", [1e-6, 1e6, 1e12])
def test_the_first_path_does_not_depend_on_the_unit_of_outputs_that_are_not_scaled(unit):
    rng = np.random.default_rng(0)
    y = rng.standard_normal((30, 1)).cumsum(0) @ np.array([[1.0, 2.0, 3.0]]) + 1e-3 * rng.standard_normal((30, 3))
    y[rng.random(y.shape) < 0.2] = np.nan
    found = [Sequences(np.arange(30.0), y * factor) for factor in (1.0, unit)]
    one, other = (pca(data, 3, data.output_means, torch.ones(3, dtype=torch.float64))[0] for data in found)
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_kmeans_draws_the_same_points_in_float32(seed):
    torch.manual_seed(seed)
    x = torch.randn(40, 2)
    found = []
    for points in (x.float(), x.double()):
        torch.manual_seed(seed)
        found.append(kmeans(points, 6).double())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_kmeans():
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    x = (centres.repeat_interleave(20, 0) + 0.1 * torch.randn(60, 2))[torch.randperm(60)]
    found = kmeans(x, 3)
    assert torch.cdist(found, centres).min(0).values.max() < 0.1
    assert torch.equal(kmeans(x, 60), x)
    same = kmeans(torch.zeros(5, 2), 3)  # fewer points than centres
    assert torch.equal(same, torch.zeros(3, 2))


def test_open_lengthscales_and_periods_come_from_the_data():
    t = np.sort(np.random.default_rng(0).uniform(0, 12, 120))
    y = np.stack([np.sin(2 * np.pi * t / 1.7 + i) for i in range(6)], 1)
    data = Sequences(t, y)
    model = VGPDS.from_data(data, 2, 10, temporal=Periodic() + Matern32() + White(0.01))
    assert model.temporal[0].period.item() == pytest.approx(1.7, rel=0.03)
    fast, slow = (
        VGPDS.from_data(Sequences(t * scale, y), 2, 10, temporal=RBF() + White(0.01)).temporal[0].lengthscale
        for scale in (1.0, 100.0)
    )
    assert fast.shape == (2,)  # one for each latent dimension
    torch.testing.assert_close(slow, 100 * fast, rtol=1e-6, atol=0)
    assert ((fast > 0.05) & (fast < 1.7)).all()
    given = VGPDS.from_data(data, 2, 10, temporal=Matern32(lengthscale=0.123) + White(0.01))
    assert given.temporal[0].lengthscale.item() == pytest.approx(0.123)


def test_kernels_that_were_given_keep_their_parameters():
    data = make_data((30, 20), outputs=8)
    mapping = ARDRBF(3.0, torch.tensor([0.5, 0.7])) + ARDLinear(0.2) + Bias(0.3) + White(0.1)
    model = VGPDS.from_data(data, 2, 8, mapping=mapping)
    assert model.mapping[0].variance.item() == pytest.approx(3.0)
    torch.testing.assert_close(model.mapping[0].weight.detach(), torch.tensor([0.5, 0.7]))
    torch.testing.assert_close(model.mapping[1].weight.detach(), torch.tensor([0.2, 0.2]))  # one each, to be learned


@pytest.mark.parametrize(
    "lengths", [(1,), (2,), (1, 1, 1), (1, 12, 1), (40,)], ids=["one frame", "two", "ones", "mixed", "long"]
)
def test_sequences_of_any_length(lengths):
    data = make_data(lengths)
    train(data, latent_dim=2, num_inducing=min(3, sum(lengths)), temporal=Matern32() + White(0.01) + Bias(0.1))


def test_missing_data_anywhere():
    rng = np.random.default_rng(0)
    t = np.linspace(0, 5, 30)
    y = np.sin(t[:, None] + np.arange(8)) + 0.05 * rng.standard_normal((30, 8))
    y[rng.random(y.shape) < 0.4] = np.nan
    y[7] = np.nan
    y[-2:, :4] = np.nan
    model, _ = train(Sequences(t, y), latent_dim=3, num_inducing=10, noise_per_output=True)
    assert model.noise.shape == (8,)


def test_scales_of_data_make_no_difference_to_the_start():
    data = make_data((20,))
    bounds = []
    for scale in (1e-4, 1.0, 1e4):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        scaled = Sequences(data.times.t, data.y * scale)
        model = VGPDS.from_data(scaled, 2, 6)
        guide = AutoOpperArchambeau(model)
        bound = -Collapsed_ELBO().loss(model, guide, scaled)
        bounds.append(bound + scaled.num_frames * scaled.num_outputs * np.log(scale))
    assert bounds == pytest.approx([bounds[1]] * 3, rel=1e-5)


@pytest.mark.parametrize("each", [True, False])
def test_constant_outputs_are_allowed_beside_others(each):
    data = make_data((15,))
    y = data.y.clone()
    y[:, 2] = 7.3
    data = Sequences(data.times.t, y)
    model, guide = train(data, latent_dim=2, num_inducing=5, noise_per_output=each)
    assert (model.noise > 0).all()
    torch.testing.assert_close(
        Posterior(model, guide, data).forecast([9.0], 0).mean[0, 2].item(), 7.3, atol=0.2, rtol=0
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent_dim": 6}, "latent_dim must be at most the number of outputs, 5, but got 6"),
        ({"latent_dim": 0}, "latent_dim must be a whole number of at least 1, but got 0"),
        ({"latent_dim": 2.0}, r"latent_dim must be a whole number of at least 1, but got 2\.0"),
        ({"latent_dim": 2, "num_inducing": 22}, "num_inducing must be at most the number of frames, 21, but got 22"),
        ({"latent_dim": 2, "num_inducing": True}, "num_inducing must be a whole number of at least 1, but got True"),
        ({"latent_dim": 2, "jitter": -1.0}, r"jitter must be a finite number >= 0 or None, but got -1\.0"),
        ({"latent_dim": 2, "jitter": float("inf")}, "jitter must be a finite number >= 0 or None, but got inf"),
        ({"latent_dim": 2, "jitter": "a"}, "jitter must be a finite number >= 0 or None, but got 'a'"),
    ],
)
def test_sizes_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        VGPDS.from_data(make_data(), **options)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float64, 1e-180), (torch.float32, 1e-25)])
def test_outputs_whose_variance_underflows_are_named(dtype, unit):
    y = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y[:, 1] *= unit
    with pytest.raises(ValueError, match=r"outputs 1 of data differ by so little that their variance is zero in torch"):
        VGPDS.from_data(Sequences(torch.arange(9.0), y, dtype=dtype))
    for constant in (0.0, unit):  # constants may be as small as they like
        y[:, 1] = constant
        VGPDS.from_data(Sequences(torch.arange(9.0), y, dtype=dtype))


def test_data_that_cannot_be_trained_on():
    t, y = np.arange(4.0), np.random.default_rng(0).standard_normal((4, 3))
    unseen = y.copy()
    unseen[:, 1] = np.nan
    with pytest.raises(ValueError, match=r"outputs 1 \('b'\) of data were never observed; drop them"):
        VGPDS.from_data(Sequences(t, pd.DataFrame(unseen, columns=list("abc"))), 2)
    with pytest.raises(ValueError, match="nothing in data varies"):
        VGPDS.from_data(Sequences(t, np.full((4, 3), 0.1)), 2)
    with pytest.raises(
        ValueError, match=r"data must be Sequences\(t, y\) with outputs, but got Sequences\(1 sequence, 4 frames\)"
    ):
        VGPDS.from_data(Sequences(t), 2)
    with pytest.raises(TypeError, match=r"data must be Sequences\(t, y\), but got ndarray"):
        VGPDS.from_data(y, 2)
    with pytest.raises(ValueError, match=r"outputs 0, 1, 2, 3, 4 and 2 more of data were never observed"):
        VGPDS.from_data(Sequences(t, np.column_stack([np.full((4, 7), np.nan), y])), 2)


def test_the_model_checks_what_it_is_called_on():
    model = VGPDS.from_data(make_data(), 2, 4)
    with pytest.raises(TypeError, match=r"data must be Sequences\(t, y\), but got Tensor"):
        model(torch.zeros(3))
    with pytest.raises(ValueError, match="data has 4 outputs, but the model has 5"):
        model(make_data(outputs=4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inducing": torch.zeros(3)}, r"inducing must be \(M, Q\), but its shape is \(3,\)"),
        ({"output_mean": torch.tensor([0.0, float("nan"), 0.0])}, "output_mean must be finite"),
        ({"inducing": torch.full((4, 2), float("inf"))}, "inducing must be finite"),
        ({"mapping": ARDRBF(1.0, [1.0, 2.0, 3.0]).fix("weight")}, "weight must be one number or 2"),
        ({"output_mean": torch.zeros(3, 1)}, r"output_mean must be \(D,\), but its shape is \(3, 1\)"),
        ({"noise": -1.0}, r"noise must be positive and finite, but got -1\.0"),
        ({"noise": torch.ones(2)}, r"noise must be one number or \(3,\), but its shape is \(2,\)"),
    ],
)
def test_bad_parts(change, message):
    parts = {"inducing": torch.zeros(4, 2), "noise": 0.1, "output_mean": torch.zeros(3), "mapping": ARDRBF(), **change}
    with pytest.raises(ValueError, match=message):
        VGPDS(RBF(), **parts)


@pytest.mark.parametrize("noise", [0.3, [0.3], [[0.3]], torch.tensor([0.3])])
def test_one_noise_in_any_shape(noise):
    model = VGPDS(RBF(), ARDRBF(), inducing=torch.zeros(4, 2), noise=noise, output_mean=torch.zeros(3))
    assert model.noise.shape == ()
    assert model.noise.item() == pytest.approx(0.3)
    one = VGPDS(RBF(), ARDRBF(), inducing=torch.zeros(4, 2), noise=[0.3], output_mean=torch.zeros(1))
    assert one.noise.shape == (1,)  # one for each output, of which there is one


def test_kernels_that_do_not_fit():
    parts = {"inducing": torch.zeros(4, 2), "noise": 0.1, "output_mean": torch.zeros(3)}
    with pytest.raises(ValueError, match="weight must be one number or 2, one for each latent dimension, but it has 3"):
        VGPDS(RBF(), ARDRBF(1.0, torch.ones(3)), **parts)
    with pytest.raises(ValueError, match=r"ARDRBF\.variance must be one number, but its shape is \(2,\)"):
        ARDRBF(torch.ones(2))


def test_bayesian_gplvm():
    """White(1.0) as the temporal kernel: a factorised q(X), and no matrix of frames."""
    data = make_data((30,))
    _, guide = train(data, steps=40, latent_dim=2, num_inducing=8, temporal=White(1.0).fix())
    with torch.no_grad():
        guide(data)
        q = guide.get_traces()[1].nodes["x"]["fn"]
        torch.testing.assert_close(q.variance, 1 / (1 + guide.lam))
        torch.testing.assert_close(q.mean, guide.mean_bar)


def test_repr():
    text = repr(VGPDS.from_data(make_data(), 2, 4))
    assert "latent_dim=2, num_inducing=4, num_outputs=5" in text
    assert "White(variance=[0.01, 0.01])" in text
    assert "Matern32(variance=1 (fixed), lengthscale=[" in text
    assert "White(variance=0.01)" in repr(VGPDS.from_data(make_data(), 2, 4, RBF() + White(1e-2), static_dim=0))


def test_a_memmap_with_many_columns_trains(tmp_path):
    rng = np.random.default_rng(0)
    t = np.linspace(0, 3, 12)
    y = (np.sin(t[:, None] + rng.uniform(0, 6, 20_000)) * 100 + 128).astype(np.uint8)
    y.tofile(tmp_path / "video.dat")
    mapped = np.memmap(tmp_path / "video.dat", dtype=np.uint8, mode="r", shape=y.shape)
    bounds = []
    for source in (y, mapped):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        data = Sequences(t, source)
        model = VGPDS.from_data(data, 3, 6)
        bounds.append(Collapsed_ELBO().loss(model, AutoOpperArchambeau(model), data))
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_static_dimensions_start_constant_in_each_sequence(missing):
    rng = np.random.default_rng(0)
    t = [np.arange(n) * 0.1 for n in (20, 15, 25)]
    loadings, styles = rng.standard_normal((2, 12)), 2.0 * rng.standard_normal((3, 12))
    y = [np.stack([np.sin(5 * a), np.cos(5 * a)], 1) @ loadings + style for a, style in zip(t, styles, strict=True)]
    y = [np.where(rng.random(part.shape) < missing, np.nan, part) for part in y]
    data = Sequences(t, y)
    model = VGPDS.from_data(data, 4, 20, Matern32() + White(1e-2) + Bias(0.1), static_dim=2)
    x = model.start.x
    within = torch.stack([x[s].var(0) for s in data.times.slices()]).mean(0)
    assert (within[2:] < 1e-10).all()
    assert (within[:2] > 0.5).all()
    matern, white, bias = model.temporal
    assert matern.lengthscale.shape == (4,)
    assert (matern.lengthscale[2:] > matern.lengthscale[:2].max()).all()
    assert bias.variance[2] == 1.0 > bias.variance[0]
    assert white.variance[2] < white.variance[0]
    guide = AutoOpperArchambeau(model)
    before = -Collapsed_ELBO().loss(model, guide, data)
    assert fit(model, guide, data, 20, progress=False).bound > before


def test_static_dimensions_need_sequences():
    data = make_data(lengths=(9, 8))
    for bad in (-1, 3, 1.5, True):
        with pytest.raises(ValueError, match="static_dim must be a whole number from 0 to latent_dim - 1"):
            VGPDS.from_data(data, 3, 5, static_dim=bad)
    with pytest.raises(ValueError, match="static_dim=2 needs more than 2 sequences, but data has 2"):
        VGPDS.from_data(data, 3, 5, static_dim=2)
