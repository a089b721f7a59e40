# SPDX-License-Identifier: Apache-2.0
"""A small call of every public function, class and method, with a right value for each of its arguments."""

import copy
import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyro
import pyro.contrib.gp
import torch
from matplotlib.animation import Animation
from problems import make_data

import pyro_vgpds as vg
from pyro_vgpds import (
    baselines,
    data,
    datasets,
    distributed,
    evaluation,
    files,
    inference,
    kernels,
    likelihoods,
    mapping,
    metrics,
    plotting,
    prediction,
    selection,
)  # fmt: skip
from pyro_vgpds.data.parts import with_outputs
from pyro_vgpds.kernels import ARDRBF, RBF, Matern32, White
from pyro_vgpds.linalg import default_jitter
from pyro_vgpds.threads import bound_work, threads_for

PACKAGES = [
    "pyro_vgpds", "pyro_vgpds.baselines", "pyro_vgpds.data", "pyro_vgpds.datasets", "pyro_vgpds.distributed",
    "pyro_vgpds.evaluation", "pyro_vgpds.files",
    "pyro_vgpds.inference", "pyro_vgpds.kernels", "pyro_vgpds.likelihoods", "pyro_vgpds.mapping",
    "pyro_vgpds.metrics", "pyro_vgpds.plotting", "pyro_vgpds.prediction", "pyro_vgpds.selection", "pyro_vgpds.temporal",
    "pyro_vgpds.training",
]  # fmt: skip

#: classes that the library makes and users read
RECORDS = {
    "ARDLinearValue", "ARDRBFValue", "Batch", "BoundEstimate", "CMU35", "Calibration", "CaseCounts", "Chorales",
    "CollapsedGP", "Collapsed_ELBO", "ColumnGroups", "ColumnShard",
    "Combination", "Dataset", "Dual", "EmbeddedAnimation",
    "EnsemblePrediction", "ExplicitGP", "FitResult", "GLM", "GPFA", "GaussianPosterior", "GaussianPrediction",
    "FrameBatch", "HeldOut", "InducingGaussian", "InducingPrior", "IntegrateMessenger", "Latent",
    "LikelihoodValue", "Limits", "LinearDynamicalSystem", "MapGPLVM", "MixturePrediction", "Motion",
    "NegativeBinomialFactors", "Outputs", "Prediction", "Predictor", "Reaches", "Reconstruction", "Record",
    "Report", "Scored", "Shard",
    "Skeleton", "Split", "Video",
}  # fmt: skip

#: classes whose methods the library calls, in its inner loops and with tensors of its own: what own kernels,
#: likelihoods and predictors define
CALLED = {
    "ARDLinearValue", "ARDRBFValue", "BasePredictor", "Bernoulli", "Binomial", "ColumnGroups", "ColumnShard",
    "CollapsedGP", "Combination", "Dual",
    "MatrixDistribution", "ExplicitGP", "InducingGaussian", "InducingPrior", "IntegratedDistribution",
    "Gaussian",
    "GaussianPosterior", "HeldOut", "KernelValue", "Likelihood", "LikelihoodValue", "Limits",
    "MappingValue", "NegativeBinomial", "Poisson", "Predictor", "Shard", "SiteLikelihood", "SparseGP", "StateSpace",
    "StationaryValue", "StudentT", "TangentLikelihood", "Times", "_Combination", "_Logistic", "_WithScale",
}  # fmt: skip
#: and single methods of that kind
INNER = {
    "AmortizedOpperArchambeau.encode", "AmortizedOpperArchambeau.make_posterior",
    "AmortizedOpperArchambeau.posterior_of", "AutoOpperArchambeau.get_posterior", "AutoOpperArchambeau.can_skip_trace",
    "OpperArchambeauGuide.can_skip_trace",
    "AutoOpperArchambeau.make_posterior", "AutoExplicit.get_posterior", "AutoExplicit.inducing_posterior",
    "AutoExplicit.make_posterior", "AutoExplicit.sites", "MinibatchNaturalGradient.inducing_posterior",
    "MinibatchNaturalGradient.posterior", "SequenceDataset.parts", "SequenceDataset.shared_by",
    "SequenceDataset.check_indices",
    "SequenceDataset.named", "SequenceDataset.placeholder", "FrameDataset.parts", "AutoExplicit.batch_factors",
    "AutoExplicit.can_skip_trace", "VGPDS.inducing_prior", "VGPDS.outputs_on",
    *(f"ByColumn.{name}" for name in (
        "cdf", "distribution", "has_exposure", "initial", "is_valid", "kind_of", "link", "moments", "name_of", "parts",
        "prepare", "sites", "support_of", "updated")),
    *(f"FittedModel.{name}" for name in ("check_new", "need_gaussian", "predict", "predict_from", "residuals")),
    "Marginals.checked", "NaturalGradient.analytic_path", "NaturalGradient.posterior", "OpperArchambeau.covariance_of",
    "OpperArchambeau.frames",
    "OpperArchambeau.rsample", "OpperArchambeau.take_gradients", "OpperArchambeauGuide.get_posterior",
    "AutoOpperArchambeau.analytic_path", "OpperArchambeauGuide.analytic_path", "OpperArchambeauGuide.posterior_of",
    "OpperArchambeauGuide.take_hyperparameters", "ParameterModule.declare", "Report.from_dict", "Split.select",
    "TemporalGP.at", "TemporalGP.rsample", "VGPDS.functions", "VGPDS.can_skip_trace", "VGPDS.bound_and_grads",
    "VGPDS.likelihood", "masked_sum",
}  # fmt: skip


def impute(sequences: vg.Sequences) -> tuple[torch.Tensor, None]:
    """A quick baseline."""
    found = baselines.column_mean(sequences)
    return (torch.cat(found) if isinstance(found, list) else found), None


def drawn(value: Any) -> Any:
    """A result; matplotlib warns if it is an animation that is deleted before it was drawn."""
    if isinstance(value, Animation):
        value._draw_was_started = True
    return value


class Things:
    """What the calls need, made once and never changed by them."""

    def __init__(self, folder: Path) -> None:
        pyro.set_rng_seed(0)
        self.folder = folder
        self.data = make_data((12, 9), missing=0.05)
        self.model = vg.VGPDS.from_data(self.data, latent_dim=2, num_inducing=4)
        self.guide = vg.AutoOpperArchambeau(self.model)
        self.post = vg.Posterior(self.model, self.guide, self.data)
        self.forecast = self.post.forecast([4.0, 5.0], 0)
        self.t, self.y = [4.0, 5.0], np.ones((2, 5))
        self.split = evaluation.hold_out(self.data, "forecast", horizon=2)
        self.held_out = self.split.predict(self.post.condition(self.split.train, list(self.split.kept)))
        self.mixture = vg.PosteriorMixture([self.post, self.post])
        self.ensemble = self.post.calibrate("forecast", horizon=2)
        self.baseline = baselines.BaselinePosterior(impute, self.data)
        self.events = with_outputs(self.data, self.data.read().abs().round())
        self.event_baseline = baselines.OutputBaseline("common level", self.events, "negative-binomial")
        self.skeleton = datasets.stick_figure()
        self.motion = datasets.make_gait(1, (8, 9))
        self.amortized = vg.AmortizedOpperArchambeau(self.model, num_hidden=3)
        self.frames = np.arange(3 * 4 * 4).reshape(3, 4, 4) % 256
        self.video = datasets.make_pendulum_video(num_frames=6, height=8, width=8)
        self.likelihood = self.model.likelihood(self.guide.posterior(self.data).mean, self.data)
        self.prior = vg.TemporalGP(RBF()(), self.data.times, 2)
        self.path = vg.OpperArchambeau(self.prior, torch.zeros(21, 2), torch.ones(21, 2))
        (folder / "a.bvh").write_text(BVH)
        (folder / "a.asf").write_text(ASF)
        (folder / "a.amc").write_text(AMC)
        np.savez(folder / "a.npz", frames=self.frames)
        np.save(folder / "y.npy", np.ones((6, 2)))
        vg.save(folder / "model", self.model, self.guide, self.data)
        vg.save_posterior(folder / "posterior", self.post)

    def fresh(self) -> tuple[Any, Any]:
        """A model and a guide that a call may change."""
        pyro.clear_param_store()
        return copy.deepcopy((self.model, self.guide))

    @functools.cached_property
    def animation(self) -> Any:
        return drawn(plotting.animate_frames({"film": self.frames}))

    @functools.cached_property
    def lds(self) -> Any:
        return baselines.LinearDynamicalSystem.fit(self.data, num_steps=2)

    @functools.cached_property
    def gplvm(self) -> Any:
        return baselines.MapGPLVM.fit(self.fresh()[0], self.data, num_steps=2)

    @functools.cached_property
    def gpfa(self) -> Any:
        return baselines.GPFA.fit(self.data, num_factors=1, num_steps=2)

    @functools.cached_property
    def counts(self) -> Any:
        """Counts of two kinds, modelled as Poisson and yes/no."""
        rng = np.random.default_rng(0)
        y = np.stack([rng.poisson(2.0, 12), rng.integers(0, 2, 12)], -1)
        sequences = vg.Sequences(np.arange(12.0), y)
        model = vg.VGPDS.from_data(sequences, 1, 3, likelihood={"poisson": [0], "bernoulli": [1]})
        return vg.Posterior(model, vg.AutoOpperArchambeau(model), sequences)


def cmu35() -> datasets.CMU35:
    """The data set without its data."""
    return datasets.CMU35(
        [np.arange(2.0)], [np.ones((2, 59))], "", skeleton=datasets.stick_figure(), channels=[np.zeros((2, 62))],
        test_t=np.arange(2.0), test_y=np.ones((2, 59)), test_channels=np.zeros((2, 62)), scale=np.ones(59),
        blocks={"legs": np.arange(8)},
    )  # fmt: skip


def reaches() -> datasets.Reaches:
    """The same, of another."""
    trials = [np.ones((2, 4))] * 6
    return datasets.Reaches(
        [np.arange(2.0)] * 6, trials, "", velocity=trials, position=trials, condition=np.arange(6), bin_ms=20
    )


def fitted(things: Things) -> dict[str, Any]:
    model, guide = things.fresh()
    return {"model": model, "guide": guide, "data": things.data}


def batch_stepped(things: Things) -> vg.MinibatchNaturalGradient:
    """After a backward pass on a batch."""
    model, guide = things.fresh()
    explicit = vg.AutoExplicit.from_collapsed(guide, things.data)
    natural = vg.MinibatchNaturalGradient(explicit)
    with natural:
        vg.Collapsed_ELBO().loss_and_grads(model, explicit, vg.SequenceDataset(things.data).batch([0]))
        kept = natural.q, natural.u
    natural.q, natural.u = kept
    return natural


def stepped(things: Things) -> vg.NaturalGradient:
    """After a backward pass."""
    model, guide = things.fresh()
    natural = vg.NaturalGradient(guide, things.data)
    natural.__enter__()
    vg.Collapsed_ELBO().loss_and_grads(model, guide, things.data)
    return natural


_NEW = {"t": [4.0, 5.0], "y": np.ones((2, 5))}
_ASKED = {"interval": {"probability": 0.9}, "sample": {"num_samples": 2}, "log_prob": {"y": np.ones((2, 5))}}
_SOLVER = vg.Solver(num_starts=1, num_steps=2)
_BASE = {"t": [0.0, 1.0, 2.0, 3.0], "y": np.array([[1.0, 2.0], [2.0, np.nan], [1.0, 4.0], [0.0, 3.0]])}
_COUNTS = {"t": [0.0, 1.0, 2.0, 3.0], "y": np.array([[1.0, 2.0], [2.0, 0.0], [1.0, 4.0], [0.0, 3.0]])}
_TRAIN, _TEST = np.random.default_rng(0).standard_normal((6, 3)), np.array([[1.0, np.nan, 2.0]])
_CDF = {"truth": [1.0, 2.0], "below": [0.1, 0.2], "at_most": [0.3, 0.4]}


def _frame() -> pandas.DataFrame:
    return pandas.DataFrame({"t": [0.0, 1.0, 0.0, 1.0], "who": ["a", "a", "b", "b"], "x": [1.0, 2.0, 3.0, 4.0]})


def _kernels() -> dict[str, Callable[[Things], tuple[Callable[..., Any], dict[str, Any]]]]:
    found = {}
    for name in ("ARDRBF", "RBF", "ARDLinear", "Bias", "Cosine", "Linear", "MarkovRBF", "Matern12", "Matern32",
                 "Matern52", "Periodic", "White"):  # fmt: skip
        kind = getattr(kernels, name)
        values = {
            p: 6 if p == "order" else 1e-3 if p == "accuracy" else 1.0 for p in inspect.signature(kind).parameters
        }
        found[name] = lambda things, kind=kind, values=values: (kind, values)
    return found


BVH = """HIERARCHY
ROOT Hips
{ OFFSET 0 0 0
  CHANNELS 4 Xposition Yposition Zposition Zrotation
  End Site
  { OFFSET 0 2 0 }
}
MOTION
Frames: 2
Frame Time: 0.5
0 1 0 0
0 1 0 90"""
ASF = """:version 1.10
:units
  length 0.5
  angle deg
:root
   order TX TY TZ RX RY RZ
   axis XYZ
   position 0 1 0
   orientation 0 0 0
:bonedata
  begin
     id 1
     name hand
     direction 0 0 1
     length 2
     axis 0 0 0 XYZ
     dof rx rz
  end
:hierarchy
  begin
    root hand
  end
"""
AMC = """:FULLY-SPECIFIED
:DEGREES
1
root 0 0 0 0 0 0
hand 1 2
2
root 0 0 0 0 0 0
hand 3 4
"""


class _First(mapping.MappingValue):
    """A kind of kernel, for register_psi2."""


class _Second(mapping.MappingValue):
    """Another."""


#: name ↦ a function and the values of its arguments
CALLS: dict[str, Callable[[Things], tuple[Callable[..., Any], dict[str, Any]]]] = {
    **_kernels(),
    "VGPDS": lambda k: (vg.VGPDS, {
        "temporal": RBF(), "mapping": ARDRBF(), "inducing": torch.zeros(4, 2), "noise": 0.1, "likelihood": None,
        "output_mean": torch.zeros(5), "output_scale": torch.ones(5), "least_noise": 0.01, "jitter": 1e-6,
        "structure": "dense"}),
    "VGPDS.from_data": lambda k: (vg.VGPDS.from_data, {
        "data": k.data, "latent_dim": 2, "num_inducing": 4, "temporal": RBF() + White(), "mapping": ARDRBF(),
        "likelihood": None, "static_dim": 1, "noise_per_output": True, "scale_outputs": True, "jitter": 1e-6,
        "structure": "dense"}),
    "VGPDS.relevance": lambda k: (k.model.relevance, {"guide": k.guide, "data": k.data}),
    "VGPDS.path_prior": lambda k: (k.model.path_prior, {"data": k.data}),
    "VGPDS.set_noise": lambda k: (k.fresh()[0].set_noise, {"noise": 0.2}),
    "AmortizedOpperArchambeau": lambda k: (vg.AmortizedOpperArchambeau, {
        "model": k.model, "data": k.data, "network": None, "num_hidden": 3}),
    "AmortizedOpperArchambeau.gap": lambda k: (k.amortized.gap, {
        "data": k.data, "num_steps": 1, "natural_rate": 0.5, "tolerance": 0.1}),
    "AmortizedOpperArchambeau.refine": lambda k: (k.amortized.refine, {
        "data": k.data, "num_steps": 1, "natural_rate": 0.5, "tolerance": 0.1}),
    "AutoOpperArchambeau": lambda k: (vg.AutoOpperArchambeau, {
        "model": k.model, "mean_bar": torch.zeros(21, 2), "lam": torch.ones(21, 2)}),
    "AutoOpperArchambeau.set": lambda k: (k.fresh()[1].set, {"mean_bar": torch.zeros(21, 2), "lam": torch.ones(21, 2)}),
    "BayesClassifier": lambda k: (vg.BayesClassifier, {"posteriors": {"a": k.post}, "prior": {"a": 1.0}}),
    **{f"BayesClassifier.{name}": lambda k, name=name: (
        getattr(vg.BayesClassifier({"a": k.post, "b": k.post}), name), {**_NEW, "solver": _SOLVER})
       for name in ("log_joint", "predict", "predict_proba")},
    "Ensemble": lambda k: (vg.Ensemble, {
        "members": k.ensemble.members, "combinations": k.ensemble.combinations, "names": ["a"]}),
    "Ensemble.combination": lambda k: (k.ensemble.combination, {"task": "forecast"}),
    "Ensemble.condition": lambda k: (k.ensemble.condition, {"data": k.data, "sequences": [0, 1]}),
    "Ensemble.extended": lambda k: (k.ensemble.extended, {**_NEW, "sequence": 0}),
    "Ensemble.forecast": lambda k: (k.ensemble.forecast, {"t": k.t, "sequence": 0, "given": np.full((2, 5), np.nan)}),
    "Ensemble.impute": lambda k: (k.ensemble.impute, {"fill": True}),
    "Ensemble.reconstruct": lambda k: (k.ensemble.reconstruct, {
        **_NEW, "sequence": None, "fill": True, "progress": False}),
    "FitResult.plot": lambda k: (vg.fit(**fitted(k), num_steps=1).plot, {"ax": None}),
    "NaturalGradient": lambda k: (lambda guide: vg.NaturalGradient(guide, k.data), {"guide": k.guide}),
    "NaturalGradient.step": lambda k: (stepped(k).step, {"rate": 0.5}),
    "Posterior": lambda k: (vg.Posterior, {
        "model": k.model, "guide": k.guide, "data": k.data, "noise_variance": 0.1, "output_scale": torch.ones(5),
        "residual": Matern32() + White(), "widening": True}),
    "Posterior.as_model": lambda k: (k.post.as_model, {"sequence": 0, "include_noise": True}),
    "Posterior.calibrate": lambda k: (k.post.calibrate, {"task": "forecast", "share": 0.1, "horizon": 2, "seed": 0}),
    "Posterior.condition": lambda k: (k.post.condition, {"data": k.data, "sequences": [0, 1]}),
    "Posterior.extended": lambda k: (k.post.extended, {**_NEW, "sequence": 0, "free": False, "solver": _SOLVER}),
    "Posterior.forecast": lambda k: (k.post.forecast, {
        "t": k.t, "sequence": 0, "given": np.full((2, 5), np.nan), "include_noise": True, "full_cov": False}),
    "Posterior.generate": lambda k: (k.post.generate, {
        "t": k.t, "num_samples": 1, "sequence": 0, "include_noise": True}),
    "Posterior.hidden_variance": lambda k: (k.post.hidden_variance, {
        "share": 0.5, "num_sequences": 1, "num_frames": 3, "solver": _SOLVER, "progress": False}),
    "Posterior.impute": lambda k: (k.post.impute, {"fill": True, "include_noise": True}),
    "Posterior.log_density": lambda k: (k.post.log_density, {**_NEW, "solver": _SOLVER}),
    "Posterior.project": lambda k: (k.post.project, {**_NEW, "sequence": None}),
    "Posterior.reconstruct": lambda k: (k.post.reconstruct, {
        **_NEW, "sequence": None, "factorised": False, "free": False, "encode": False, "trust": 1.0, "fill": False,
        "include_noise": True, "solver": _SOLVER, "progress": False}),
    "PosteriorMixture": lambda k: (vg.PosteriorMixture, {"posteriors": [k.post, k.post], "weights": [0.5, 0.5]}),
    "PosteriorMixture.condition": lambda k: (k.mixture.condition, {"data": k.data, "sequences": [0, 1]}),
    "PosteriorMixture.extended": lambda k: (
        lambda t, y: k.mixture.extended(t, y, 0, solver=_SOLVER), {"t": k.t, "y": k.y}),
    "PosteriorMixture.forecast": lambda k: (lambda t: k.mixture.forecast(t, 0), {"t": k.t}),
    "PosteriorMixture.generate": lambda k: (k.mixture.generate, {
        "t": k.t, "num_samples": 1, "sequence": 0, "include_noise": True}),
    "PosteriorMixture.log_density": lambda k: (k.mixture.log_density, {**_NEW, "solver": _SOLVER}),
    "PosteriorMixture.reconstruct": lambda k: (
        lambda t, y: k.mixture.reconstruct(t, y, None, solver=_SOLVER), {"t": k.t, "y": k.y}),
    **{f"{kind}.{name}": lambda k, of=of, name=name: (getattr(of(k), name), _ASKED[name])
       for kind, of, names in (
           ("Prediction", lambda k: k.forecast, ("sample", "log_prob")),
           ("EnsemblePrediction", lambda k: k.ensemble.forecast([4.0, 5.0], 0), ("interval", "sample")),
           ("GaussianPrediction", lambda k: k.baseline.forecast([4.0, 5.0], 0), ("sample",)),
           ("Marginals", lambda k: k.baseline.forecast([4.0, 5.0], 0), ("interval", "log_prob")),
           ("MixturePrediction", lambda k: k.mixture.forecast([4.0, 5.0], 0), tuple(_ASKED)),
           ("Outputs", lambda k: k.forecast, ("sample",)))
       for name in names},
    "Prediction.with_noise": lambda k: (k.forecast.with_noise, {"include_noise": False}),
    "MixturePrediction.with_exposure": lambda k: (
        prediction.MixturePrediction([k.event_baseline.forecast([4.0, 5.0], 0)], torch.ones(1)).with_exposure,
        {"exposure": np.ones((2, 5))}),
    "MixturePrediction.with_noise": lambda k: (
        k.mixture.forecast([4.0], 0).with_noise, {"include_noise": False}),
    "Outputs.to_file": lambda k: (k.forecast.to_file, {
        "path": k.folder / "table.csv", "interval": 0.9, "sequence": ["a", "a"], "frame_shape": None, "fps": None}),
    "Outputs.to_pandas": lambda k: (k.forecast.to_pandas, {"what": "mean"}),
    "Outputs.select": lambda k: (k.forecast.select, {"rows": slice(0, 1)}),
    "Sequences": lambda k: (vg.Sequences, {
        **_NEW, "columns": list("abcde"), "names": ["one"], "exposure": np.ones((2, 5)), "dtype": torch.float64,
        "device": "cpu"}),
    "Sequences.from_frame": lambda k: (vg.Sequences.from_frame, {"frame": _frame(), "time": "t", "sequence": "who"}),
    "Sequences.joined": lambda k: (k.data.joined, {"other": k.data}),
    "Sequences.lagged": lambda k: (k.data.lagged, {"lags": [-1, 1]}),
    "Sequences.read": lambda k: (k.data.read, {"start": 0, "stop": 3}),
    "Solver": lambda k: (vg.Solver, {"num_starts": 1, "num_steps": 2, "natural_rate": 0.5, "tolerance": 0.1}),
    "auto": lambda k: (vg.auto, {
        "data": k.data, "task": "forecast", "likelihood": None, "candidates": [],
        "baselines": ["column mean", "last value"], "horizon": 2, "hidden": None,
        "seconds": 100.0, "seed": 0, "processes": 1, "folder": None, "refit": False, "progress": False}),
    "join": lambda k: (lambda timeout: distributed.join(timeout).__enter__(), {"timeout": 1.0}),
    "shard": lambda k: (distributed.shard, {"data": k.data, "group": None, "columns": True}),
    "share": lambda k: (distributed.share, {"data": k.data, "group": None, "columns": True}),
    "gather": lambda k: (distributed.gather, {"guide": k.guide, "data": k.data}),
    "same": lambda k: (distributed.same, {"model": k.model, "guide": k.guide, "data": k.data}),
    "fit": lambda k: (vg.fit, {
        **fitted(k), "num_steps": 1, "method": "natural", "learning_rate": 0.1, "natural_rate": 0.5, "warmup": 0,
        "tolerance": 0.1, "num_restarts": 0, "processes": 1, "progress": False, "callback": None,
        "checkpoint": k.folder / "state", "checkpoint_steps": 1, "checkpoint_seconds": 1.0, "resume": None,
        "batch_size": None, "epochs": None, "schedule": "cosine", "inducing_rate": None, "full_steps": None}),
    "AutoExplicit": lambda k: (vg.AutoExplicit, {
        "model": k.model, "data": k.data, "start": None, "store": None, "free": False}),
    "AutoExplicit.collect": lambda k: (vg.AutoExplicit(k.model, k.data).collect, {"batch_size": 2}),
    "AutoExplicit.from_collapsed": lambda k: (vg.AutoExplicit.from_collapsed, {
        "guide": k.guide, "data": k.data, "store": None}),
    "AutoExplicit.part": lambda k: (vg.AutoExplicit(k.model, k.data).part, {"sequences": [0]}),
    "AutoExplicit.from_sample": lambda k: (vg.AutoExplicit.from_sample, {
        "guide": k.guide, "sample": k.data, "data": k.data, "store": None}),
    "MappedSequences": lambda k: (data.MappedSequences, {"y": k.folder / "y.npy", "lengths": [2, 4], "t": 0.1}),
    "MinibatchNaturalGradient": lambda k: (vg.MinibatchNaturalGradient, {
        "guide": vg.AutoExplicit(k.model, k.data), "inducing_rate": 0.5}),
    "MinibatchNaturalGradient.step": lambda k: (batch_stepped(k).step, {"rate": 0.5}),
    "SequenceDataset": lambda k: (vg.SequenceDataset, {
        "source": [([0.0, 1.0], [[1.0], [2.0]])], "lengths": [2], "columns": ["a"], "dtype": torch.float64,
        "device": "cpu"}),
    "SequenceDataset.batch": lambda k: (vg.SequenceDataset(k.data).batch, {"indices": [1]}),
    "SequenceDataset.batches": lambda k: (
        lambda **options: list(vg.SequenceDataset(k.data).batches(**options)),
        {"batch_size": 1, "order": torch.tensor([1, 0])}),
    "SequenceDataset.num_batches": lambda k: (vg.SequenceDataset(k.data).num_batches, {"batch_size": 1}),
    "FrameDataset": lambda k: (data.FrameDataset, {"source": vg.SequenceDataset(k.data).sequences([0])}),
    "FrameDataset.batch": lambda k: (
        data.FrameDataset(vg.SequenceDataset(k.data).sequences([0])).batch, {"indices": [1]},
    ),
    "FrameDataset.batches": lambda k: (
        lambda **options: list(data.FrameDataset(vg.SequenceDataset(k.data).sequences([0])).batches(**options)),
        {"batch_size": 20, "order": torch.arange(k.data.lengths[0])},
    ),
    "SequenceDataset.rows": lambda k: (vg.SequenceDataset(k.data).rows, {"indices": [1]}),
    "SequenceDataset.sequences": lambda k: (vg.SequenceDataset(k.data).sequences, {"indices": [1]}),
    "Subsampled": lambda k: (vg.Subsampled, {"model": k.model, "batch_size": 1}),
    "lagged": lambda k: (vg.lagged, {"y": np.ones((4, 2)), "lags": [-1, 1]}),
    "load": lambda k: (vg.load, {"path": k.folder / "model", "device": "cpu", "dtype": torch.float64}),
    "load_metadata": lambda k: (vg.load_metadata, {"path": k.folder / "model"}),
    "load_posterior": lambda k: (vg.load_posterior, {
        "path": k.folder / "posterior", "device": "cpu", "dtype": torch.float64}),
    "save": lambda k: (vg.save, {
        "path": k.folder / "new", "model": k.model, "guide": k.guide, "data": k.data, "metadata": {"a": 1}}),
    "save_posterior": lambda k: (vg.save_posterior, {
        "path": k.folder / "new", "posterior": k.post, "metadata": {"a": 1}}),
    "DeclaredParameters.fix": lambda k: (lambda names: RBF().fix(names), {"names": "variance"}),
    "Kernel.learn": lambda k: (lambda names: RBF().learn(names), {"names": "variance"}),
    "Kernel.per_dimension": lambda k: (lambda latent_dim, names: RBF().per_dimension(latent_dim, names), {
        "latent_dim": 2, "names": "lengthscale"}),
    "Kernel.set": lambda k: (RBF().set, {"name": "variance", "value": 2.0}),
    "Sum": lambda k: (lambda kernels: vg.kernels.Sum(RBF(), kernels), {"kernels": White()}),
    "Product": lambda k: (lambda kernels: vg.kernels.Product(RBF(), kernels), {"kernels": White()}),
    "from_pyro": lambda k: (kernels.from_pyro, {"kernel": pyro.contrib.gp.kernels.RBF(1)}),
    "lift": lambda k: (kernels.lift, {"parameter": torch.ones(2), "like": torch.ones(3)}),
    "parse_kernel": lambda k: (kernels.parse_kernel, {"text": "rbf + white"}),
    "parse_mapping": lambda k: (kernels.parse_mapping, {"text": "rbf + linear"}),
    "register_kernel": lambda k: (kernels.register_kernel, {"kernel": None, "name": "own"}),
    "coverage": lambda k: (metrics.coverage, {"truth": [1.0, 2.0], "lower": [0.0, 0.0], "upper": [3.0, 3.0]}),
    **{name: lambda k, name=name: (getattr(metrics, name), {"truth": [1.0, 2.0], "prediction": [0.0, 0.0]})
       for name in ("mae", "mse", "ra")},
    "nlpd": lambda k: (metrics.nlpd, {"truth": [1.0, 2.0], "mean": [0.0, 0.0], "variance": [1.0, 1.0]}),
    "sc": lambda k: (metrics.sc, {"truth": [[1.0, 2.0]], "prediction": [[0.0, 0.0]], "scale": [1.0, 1.0]}),
    "CMU35.hide": lambda k: (cmu35().hide, {"y": np.ones((2, 59)), "block": "legs"}),
    "CMU35.score": lambda k: (cmu35().score, {
        "truth": np.ones((2, 59)), "prediction": np.zeros((2, 59)), "block": "legs"}),
    "Motion.positions": lambda k: (k.motion.positions, {"sequence": 0}),
    "Skeleton.positions": lambda k: (k.skeleton.positions, {"channels": k.motion.channels[0]}),
    "Video.to_frames": lambda k: (k.video.to_frames, {"y": k.video.y[0]}),
    "channels_from_features": lambda k: (datasets.channels_from_features, {
        "features": np.zeros((3, 59)), "start": np.zeros(62)}),
    "features_from_channels": lambda k: (datasets.features_from_channels, {"channels": np.zeros((3, 62))}),
    "data_folder": lambda k: (datasets.data_folder, {"data_home": k.folder}),
    "find_file": lambda k: (datasets.find_file, {"name": "model", "data_home": k.folder, "download": False}),
    "load_bvh": lambda k: (datasets.load_bvh, {"paths": k.folder / "a.bvh", "every": 1, "metres": 1.0}),
    "load_clip": lambda k: (datasets.load_clip, {"name": "mouse", "data_home": k.folder, "download": False}),
    **{name: lambda k, name=name: (getattr(datasets, name), {"data_home": k.folder, "download": False})
       for name in ("load_cmu35", "load_french", "load_missa", "load_robot_wireless", "load_flu", "load_jsb")},
    "load_cmu_mocap": lambda k: (datasets.load_cmu_mocap, {
        "subject": "07", "trials": [1], "folder": None, "every": 1, "fps": 120.0, "data_home": k.folder,
        "download": False}),
    "load_spellman": lambda k: (datasets.load_spellman, {
        "experiment": "cdc15", "complete": True, "data_home": k.folder, "download": False}),
    "load_video": lambda k: (datasets.load_video, {
        "path": k.folder / "a.npz", "factor": 1, "start": 0, "stop": 3, "every": 1}),
    "read_amc": lambda k: (datasets.read_amc, {
        "path": k.folder / "a.amc", "skeleton": datasets.read_asf(k.folder / "a.asf")}),
    "read_asf": lambda k: (datasets.read_asf, {"path": k.folder / "a.asf"}),
    "read_bvh": lambda k: (datasets.read_bvh, {"path": k.folder / "a.bvh"}),
    "make_gait": lambda k: (datasets.make_gait, {
        "num_sequences": 1, "length": (8, 9), "styles": ["walk"], "noise": 1.0, "fps": 30.0, "seed": 0}),
    "make_pendulum_video": lambda k: (datasets.make_pendulum_video, {
        "num_frames": 4, "height": 8, "width": 8, "period": 24.0, "swing": 50.0, "noise": 4.0, "seed": 0}),
    "make_sensors": lambda k: (datasets.make_sensors, {
        "num_days": 7, "num_sensors": 3, "noise": 1.0, "dropouts": True, "seed": 0}),
    "make_sequences": lambda k: (datasets.make_sequences, {
        "num_sequences": 1, "num_outputs": 3, "length": (5, 6), "noise": 0.1, "missing": 0.1, "seed": 0}),
    "BaselinePosterior": lambda k: (baselines.BaselinePosterior, {
        "imputer": impute, "data": k.data, "variance": torch.ones(5)}),
    "BaselinePosterior.condition": lambda k: (k.baseline.condition, {"data": k.data, "sequences": [0, 1]}),
    "BaselinePosterior.extended": lambda k: (k.baseline.extended, {**_NEW, "sequence": 0}),
    "BaselinePosterior.forecast": lambda k: (k.baseline.forecast, {"t": k.t, "sequence": 0}),
    "BaselinePosterior.impute": lambda k: (k.baseline.impute, {"fill": True}),
    "BaselinePosterior.reconstruct": lambda k: (k.baseline.reconstruct, {
        **_NEW, "sequence": None, "fill": True, "progress": False}),
    "OutputBaseline": lambda k: (baselines.OutputBaseline, {
        "name": "mean count", "data": k.events, "likelihood": "negative-binomial"}),
    "LinearDynamicalSystem.fill": lambda k: (k.lds.fill, {**_NEW, "return_variance": True}),
    "LinearDynamicalSystem.fit": lambda k: (baselines.LinearDynamicalSystem.fit, {
        **_BASE, "num_states": 1, "num_steps": 2, "tolerance": 0.1}),
    "MapGPLVM.fit": lambda k: (baselines.MapGPLVM.fit, {"model": k.fresh()[0], "data": k.data, "num_steps": 1}),
    "MapGPLVM.reconstruct": lambda k: (k.gplvm.reconstruct, {**_NEW, "num_steps": 1}),
    **{name: lambda k, name=name: (getattr(baselines, name), _BASE)
       for name in ("column_mean", "column_median", "cubic_spline", "last_value", "last_value_with_drift",
                    "linear_interpolation")},
    "autoregression": lambda k: (baselines.autoregression, {**_BASE, "period": 0.0, "return_variance": True}),
    "damped_trend": lambda k: (baselines.damped_trend, {**_BASE, "return_variance": True}),
    "estimate_period": lambda k: (baselines.estimate_period, {
        "t": np.arange(20.0), "y": np.sin(np.arange(20.0))[:, None], "longer": False}),
    "gp_interpolation": lambda k: (baselines.gp_interpolation, {**_BASE, "kernel": Matern32, "return_variance": True}),
    "kernel_ridge": lambda k: (baselines.kernel_ridge, {"train": _TRAIN, "test": _TEST, "lags": [], "kernel": "rbf"}),
    "linear_dynamical_system": lambda k: (baselines.linear_dynamical_system, {
        **_BASE, "num_states": 1, "num_steps": 2, "return_variance": True}),
    "nearest_neighbour": lambda k: (baselines.nearest_neighbour, {
        "train": _TRAIN, "test": _TEST, "k": 1, "scaled": True}),
    **{name: lambda k, name=name: (getattr(baselines, name), {
        **_BASE, "num_components": 1, "num_iterations": 2, "tolerance": 0.1}) for name in ("pca", "ppca")},
    "repeat_cycle": lambda k: (baselines.repeat_cycle, {**_BASE, "period": 2.0, "drift": True}),
    "ridge_regression": lambda k: (baselines.ridge_regression, {
        **_BASE, "lags": [-1, 1], "penalty": 1.0, "return_variance": True}),
    "calibrate_intervals": lambda k: (prediction.calibrate_intervals, {
        "held_out": k.held_out, "num_outputs": 5, "checked": k.held_out, "gap_length": 1.0,
        "group": torch.zeros(len(k.held_out.truth)), "num_errors": 3.0}),
    "condition": lambda k: (prediction.condition, {
        "posterior": k.post, "data": k.data, "sequences": [0, 1], "num_steps": 2}),
    "Configuration": lambda k: (selection.Configuration, {
        "name": "a", "mapping": "rbf", "temporal": "rbf", "latent_dim": 1, "num_inducing": 3, "static_dim": 0,
        "noise_per_output": True, "scale_outputs": True, "lags": (), "num_steps": 2, "likelihood": "poisson"}),
    "Configuration.check": lambda k: (selection.Configuration("a").check, {"data": k.data}),
    "Configuration.fit": lambda k: (selection.Configuration("a", num_steps=1).fit, {"data": k.data, "seed": 0}),
    "animate_frames": lambda k: (plotting.animate_frames, {"films": {"a": k.frames}, "labels": ["a"] * 3, "fps": 12.0}),
    "animate_poses": lambda k: (plotting.animate_poses, {
        "skeleton": k.skeleton, "motions": {"a": k.motion.positions(0)}, "view": "side", "overlay": False,
        "fps": 12.0}),
    "embed_animation": lambda k: (plotting.embed_animation, {
        "animation": k.animation, "fps": 12.0, "dpi": 20, "density": 1}),
    "save_animation": lambda k: (plotting.save_animation, {
        "animation": k.animation, "path": k.folder / "a.gif", "fps": 12.0, "dpi": 20}),
    "plot_forecast": lambda k: (plotting.plot_forecast, {
        "prediction": k.forecast, "output": 0, "ax": None, "history": ([0.0], np.ones((1, 5))),
        "truth": ([4.0], np.ones((1, 5))), "levels": [0.5]}),
    "plot_frames": lambda k: (plotting.plot_frames, {
        "films": {"a": k.frames}, "frames": [0, 1], "axes": None, "labels": ["a", "b"]}),
    "plot_latent": lambda k: (plotting.plot_latent, {
        "posterior": k.post, "dimensions": [0], "axes": None, "names": ["a", "b"]}),
    "plot_plane": lambda k: (plotting.plot_plane, {
        "posterior": k.post, "dimensions": [0, 1], "ax": None, "names": ["a", "b"]}),
    "plot_poses": lambda k: (plotting.plot_poses, {
        "skeleton": k.skeleton, "motions": {"a": k.motion.positions(0)}, "frames": [0, 1], "ax": None, "view": "side",
        "labels": ["a", "b"]}),
    "plot_reconstruction": lambda k: (plotting.plot_reconstruction, {
        "prediction": k.forecast, "output": 0, "ax": None, "truth": np.ones((2, 5)),
        "baseline": np.ones((2, 5)), "seen": np.ones((2, 5), bool), "level": 0.9}),
    "plot_relevance": lambda k: (plotting.plot_relevance, {"after": [1.0, 0.5], "before": [1.0, 1.0], "ax": None}),
    "plot_training": lambda k: (plotting.plot_training, {"result": vg.fit(**fitted(k), num_steps=1), "ax": None}),
    "write_film": lambda k: (files.write_film, {"path": k.folder / "f.gif", "frames": k.frames, "fps": 12.0}),
    "write_table": lambda k: (files.write_table, {
        "path": k.folder / "t.csv", "t": np.arange(2.0), "y": np.ones((2, 2)), "stddev": np.ones((2, 2)),
        "interval": (np.zeros((2, 2)), np.ones((2, 2))), "columns": ["a", "b"], "sequence": ["s", "s"],
        "frame_shape": None, "fps": None, "zone": None}),
    "Table": lambda k: (evaluation.Table, {"rows": [{"a": 1}]}),
    "backtest": lambda k: (evaluation.backtest, {"posterior": k.post, "horizon": 2, "num_origins": 1, "step": 1}),
    "cross_validate": lambda k: (evaluation.cross_validate, {
        "model_factory": lambda data: baselines.BaselinePosterior(impute, data), "data": k.data,
        "task": "impute", "num_folds": 2, "share": 0.1, "horizon": None, "pattern": "entries", "hidden": None,
        "seed": 0, "processes": 1, "progress": False}),
    "hold_out": lambda k: (evaluation.hold_out, {
        "data": k.data, "task": "forecast", "share": 0.1, "horizon": 2, "skip": 0, "pattern": None, "hidden": None,
        "seed": 0}),
    "score": lambda k: (evaluation.score, {"held_out": k.held_out, "scale": torch.ones(5)}),
    "score_predictor": lambda k: (evaluation.score_predictor, {
        "predictor": k.post, "split": k.split, "scale": torch.ones(5)}),
    "VGPDS.forward": lambda k: (k.model, {"data": k.data}),
    **{f"ParameterModule.{name}": lambda k, name=name: (getattr(RBF(), name), {"name": "variance"})
       for name in ("constraint", "event_dim", "is_fixed", "is_learned", "prior")},
    "ParameterModule.assign": lambda k: (RBF().assign, {"name": "variance", "value": 2.0}),
    **{f"Collapsed_ELBO.{name}": lambda k, name=name: (
        lambda model, guide: getattr(vg.Collapsed_ELBO(), name)(model, guide, k.data),
        {"model": k.model, "guide": k.guide}) for name in ("loss", "loss_and_grads", "differentiable_loss")},
    "TemporalGP": lambda k: (vg.TemporalGP, {
        "kernel": RBF()(), "times": torch.arange(5.0), "latent_dim": 2, "jitter": 1e-6, "structure": "dense"}),
    "TemporalGP.log_prob": lambda k: (k.prior.log_prob, {"value": torch.zeros(21, 2)}),
    "OpperArchambeau": lambda k: (vg.OpperArchambeau, {
        "prior": k.prior, "mean_bar": torch.zeros(21, 2), "lam": torch.ones(21, 2), "validate_args": None}),
    "OpperArchambeau.from_natural": lambda k: (vg.OpperArchambeau.from_natural, {
        "prior": k.prior, "eta": torch.zeros(21, 2), "lam": torch.ones(21, 2)}),
    "OpperArchambeau.forecast": lambda k: (k.path.forecast, {"t": torch.tensor([4.0]), "sequence": 0}),
    "OpperArchambeau.log_prob": lambda k: (k.path.log_prob, {"value": torch.zeros(21, 2)}),
    "SparseGP": lambda k: (vg.SparseGP, {
        "x": torch.zeros(21, 2), "kernel": ARDRBF(1.0, torch.ones(2))(), "inducing": torch.randn(4, 2),
        "noise": torch.ones(1), "mean": torch.zeros(5), "scale": torch.ones(5), "data": k.data, "jitter": 1e-6}),
    "Times": lambda k: (data.Times, {"t": torch.arange(5.0), "lengths": [2, 3]}),
    "Sequences.groups": lambda k: (k.data.groups, {
        "mean": torch.zeros(5), "scale": torch.ones(5), "columns": True}),
    "FittedModel.inducing_covariance": lambda k: (k.post.inducing_covariance, {"output": 0}),
    "Prediction.write": lambda k: (k.forecast.write, {"mean": np.zeros((2, 5)), "variance": np.zeros((2, 5))}),
    **{f"Marginals.{name}": lambda k, name=name: (getattr(k.counts.forecast([12.0]), name), {"y": np.ones((1, 2))})
       for name in ("cdf", "log_probs")},
    **{f"MixturePrediction.{name}": lambda k, name=name: (
        getattr(vg.PosteriorMixture([k.counts]).forecast([12.0]), name), {"y": np.ones((1, 2))})
       for name in ("cdf", "log_probs")},
    "Outputs.kind_of": lambda k: (k.forecast.kind_of, {"output": 0}),
    "MixturePrediction.kind_of": lambda k: (k.mixture.forecast([4.0], 0).kind_of, {"output": 0}),
    "bound_with_spread": lambda k: (inference.bound_with_spread, {
        "model": k.model, "guide": k.guide, "data": k.data, "num_sets": 2, "num_draws": 2, "seed": 0}),
    "Calibration.none": lambda k: (prediction.Calibration.none, {"num_outputs": 3}),
    "Calibration.width": lambda k: (prediction.Calibration.none(3).width, {"probability": 0.9}),
    "Split.predict": lambda k: (k.split.predict, {"predictor": k.post}),
    "Split.outputs": lambda k: (k.split.outputs, {"predictor": k.post}),
    "Split.held_out": lambda k: (k.split.held_out, {"found": k.split.outputs(k.post)}),
    "GLM.fit": lambda k: (baselines.GLM.fit, {
        "x": np.arange(6.0)[:, None], "y": np.array([[0.0], [1.0], [2.0], [1.0], [0.0], [3.0]]), "family": "poisson",
        "penalty": 1.0, "offset": np.zeros((6, 1)), "num_steps": 2}),
    "GLM.predict": lambda k: (baselines.GLM(torch.ones(1, 1), torch.ones(1), "poisson").predict, {
        "x": np.ones((2, 1)), "offset": np.zeros((2, 1))}),
    "GLM.log_prob": lambda k: (baselines.GLM(torch.ones(1, 1), torch.ones(1), "poisson").log_prob, {
        "x": np.ones((2, 1)), "y": np.ones((2, 1)), "offset": np.zeros((2, 1))}),
    "GPFA.fit": lambda k: (baselines.GPFA.fit, {
        **_BASE, "num_factors": 1, "num_steps": 1, "lengthscale": 1.0}),
    **{f"GPFA.{name}": lambda k, name=name: (getattr(k.gpfa, name), _NEW) for name in ("latent", "predict", "fill")},
    "NegativeBinomialFactors.fit": lambda k: (baselines.NegativeBinomialFactors.fit, {
        **_COUNTS, "num_factors": 1, "persistence": 0.9, "exposure": 1.0, "num_steps": 2, "seed": 0}),
    "NegativeBinomialFactors.log_prob": lambda k: (
        baselines.NegativeBinomialFactors.fit(**_COUNTS, num_factors=1, num_steps=1).log_prob, {"y": _COUNTS["y"]}),
    "Chorales.part": lambda k: (
        datasets.Chorales([np.arange(2.0)], [np.ones((2, 3))], "", parts={"train": slice(0, 1)}).part,
        {"name": "train"}),
    "Reaches.fold": lambda k: (reaches().fold, {"fold": 0, "num_folds": 2}),
    "Reaches.take": lambda k: (reaches().take, {"trials": [0, 1]}),
    **{f"Reaches.{name}": lambda k, name=name: (getattr(reaches(), name), {"fold": 0})
       for name in ("training", "partial", "truth")},
    "load_mc_maze": lambda k: (datasets.load_mc_maze, {"bin_ms": 20, "data_home": k.folder, "download": False}),
    "DeclaredParameters.add_parameter": lambda k: (RBF().add_parameter, {
        "name": "own", "value": None, "default": 2.0, "constraint": torch.distributions.constraints.positive}),
    "Kernel.read": lambda k: (RBF(1.0, 1.0).read, {"name": "variance"}),
    "Binomial": lambda k: (likelihoods.Binomial, {"total": 3}),
    "ByColumn": lambda k: (likelihoods.ByColumn, {"groups": [(likelihoods.Poisson(), [0, 1])]}),
    "ByColumn.meet": lambda k: (likelihoods.ByColumn([(likelihoods.Poisson(), ["a", 1])]).meet, {
        "num_outputs": 2, "columns": ["a", "b"]}),
    "ByColumn.fix": lambda k: (
        lambda names: likelihoods.ByColumn([(likelihoods.Gaussian(), [0])]).fix(names), {"names": "scale"}),
    "Gaussian": lambda k: (likelihoods.Gaussian, {"scale": 1.0}),
    "NegativeBinomial": lambda k: (likelihoods.NegativeBinomial, {"dispersion": 1.0}),
    "StudentT": lambda k: (likelihoods.StudentT, {"scale": 1.0, "df": 5.0}),
    "Likelihood.add_parameter": lambda k: (likelihoods.Gaussian().add_parameter, {
        "name": "own", "value": None, "default": 2.0, "constraint": torch.distributions.constraints.positive,
        "per_output": False}),
    "Likelihood.choose": lambda k: (likelihoods.Gaussian().choose, {"name": "scale", "value": 2.0}),
    "parse_likelihood": lambda k: (likelihoods.parse_likelihood, {"likelihood": "poisson"}),
    "register_likelihood": lambda k: (likelihoods.register_likelihood, {"likelihood": None, "name": "own"}),
    "register_psi2": lambda k: (mapping.register_psi2, {"first": _First, "second": _Second}),
    "bits_per_spike": lambda k: (metrics.bits_per_spike, {
        "truth": [[1.0, 2.0]], "mean": [[1.0, 1.0]], "base_rate": [1.0, 1.0], "floor": 0.1}),
    "brier_score": lambda k: (metrics.brier_score, {"truth": [1.0, 0.0], "probability": [0.5, 0.5]}),
    "log_score": lambda k: (metrics.log_score, {"truth": [1.0, 2.0], "log_prob": [-1.0, -1.0]}),
    "poisson_log_prob": lambda k: (metrics.poisson_log_prob, {"truth": [1.0, 2.0], "mean": [1.0, 1.0], "floor": 0.1}),
    "randomized_pit": lambda k: (metrics.randomized_pit, {**_CDF, "seed": 0}),
    "discrete_coverage": lambda k: (metrics.discrete_coverage, {**_CDF, "probability": 0.5}),
    "sample_cdf": lambda k: (metrics.sample_cdf, {"truth": [1.0, 2.0], "samples": np.ones((3, 2))}),
    "plot_raster": lambda k: (plotting.plot_raster, {
        "data": k.data, "prediction": None, "axes": None, "outputs": [0, 1], "largest": 3.0}),
    "default_jitter": lambda k: (default_jitter, {"dtype": torch.float64}),
    "threads_for": lambda k: (lambda work: threads_for(work).__enter__(), {"work": 1.0}),
    "bound_work": lambda k: (bound_work, {
        "num_frames": 3, "num_outputs": 2, "latent_dim": 2, "num_inducing": 2, "dense": [3], "pair_work": 2}),
}  # fmt: skip


#: calls that fail although all arguments are right: their files are not there
UNAVAILABLE = {
    "load_clip", "load_cmu35", "load_cmu_mocap", "load_flu", "load_french", "load_jsb", "load_mc_maze", "load_missa",
    "load_robot_wireless", "load_spellman",
}  # fmt: skip


def public() -> dict[str, Callable[..., Any]]:
    """Every public function, class and method that has arguments, by its name.

    These are the names in ``__all__`` of the packages that are documented, and the methods of public classes, by the
    name of the class that defines them. :data:`RECORDS`, :data:`CALLED` and :data:`INNER` are not for users to call,
    except methods of :data:`CALLED` that have a call.
    """
    found: dict[str, Callable[..., Any]] = {
        "default_jitter": default_jitter, "threads_for": threads_for, "bound_work": bound_work
    }  # fmt: skip
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            value = getattr(package, name)
            if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
                continue
            if name not in RECORDS | INNER:
                found[name] = value
            for _, member in inspect.getmembers(value, callable) if inspect.isclass(value) else ():
                method = inspect.unwrap(getattr(member, "__func__", member))
                if inspect.isfunction(method) and method.__module__.startswith("pyro_vgpds"):
                    owner, _, last = method.__qualname__.rpartition(".")
                    inner = owner in CALLED and method.__qualname__ not in CALLS
                    if not (last.startswith("_") or inner or method.__qualname__ in INNER):
                        found[method.__qualname__] = method
    return {name: function for name, function in found.items() if arguments(function)}


def arguments(function: Callable[..., Any]) -> set[str]:
    """The names of a function's arguments."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} - {"self", "cls", "args"}
