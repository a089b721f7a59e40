# SPDX-License-Identifier: Apache-2.0
"""``python tests/conformance.py FILE.npz``: evaluate a reference file and print the results as one JSON object.

The file holds data, parameters and reference values of the authors' code (``tests/golden/`` has two). Model and guide
are set to its parameters through the public API; with them the values, the gradients of the bound, and the
predictions at the file's new times are printed.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, Sequences
from pyro_vgpds.kernels import (
    ARDRBF,
    RBF,
    ARDLinear,
    Bias,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    White,
)

# The file's parameter is `ours ** power`, so that d/d log(theirs) = d/d log(ours) / power.
INVERSE_SQUARE = -2.0
TEMPORAL: dict[str, tuple[Callable[..., Kernel], dict[str, tuple[str, float]]]] = {
    "rbf": (RBF, {"variance": ("variance", 1.0), "inverse_width": ("lengthscale", INVERSE_SQUARE)}),
    "rbfperiodic": (
        Periodic,
        {"variance": ("variance", 1.0), "inverse_width": ("lengthscale", INVERSE_SQUARE), "period": ("period", 1.0)},
    ),
    "matern12": (Matern12, {"variance": ("variance", 1.0), "lengthscale": ("lengthscale", 1.0)}),
    "ou": (Matern12, {"variance": ("variance", 1.0), "lengthscale": ("lengthscale", 1.0)}),
    "matern32": (Matern32, {"variance": ("variance", 1.0), "lengthscale": ("lengthscale", 1.0)}),
    "matern52": (Matern52, {"variance": ("variance", 1.0), "lengthscale": ("lengthscale", 1.0)}),
    "linear": (Linear, {"variance": ("variance", 1.0)}),
    "white": (White, {"variance": ("variance", 1.0)}),
    "bias": (Bias, {"variance": ("variance", 1.0)}),
}


def total(kernels: list[Kernel]) -> Kernel:
    result = kernels[0]
    for kernel in kernels[1:]:
        result = result + kernel
    return result


def names(text: Any) -> list[str]:
    return str(text).replace(" ", "").split("+")


def temporal_kernel(file: Any) -> Kernel:
    parts = []
    for name in names(file["dyn_kernel"]):
        make, parameters = TEMPORAL[name]
        parts.append(make(**{ours: float(file[f"dyn_{name}_{theirs}"]) ** (1.0 / power)
                             for theirs, (ours, power) in parameters.items()}))  # fmt: skip
    return total(parts)


def mapping_kernel(file: Any) -> Kernel:
    make: dict[str, Callable[[], Kernel]] = {
        "rbfard2": lambda: ARDRBF(float(file["sigma_ard2"]), file["w"]),
        "linard2": lambda: ARDLinear(file["w"]),
        "bias": lambda: Bias(float(file["mapping_bias_variance"])),
        "white": lambda: White(float(file["mapping_white_variance"])),
    }
    return total([make[name]() for name in names(file["mapping_kernel"])])


def build(file: Any) -> tuple[VGPDS, AutoOpperArchambeau, Sequences, Tensor]:
    """The model, guide and data of a reference file, and where each of its rows is among ours."""
    seq_id = file["seq_id"]
    rows = [seq_id == i for i in np.unique(seq_id)]
    data = Sequences([file["times"][r] for r in rows], [file["Y"][r] for r in rows])
    order = np.concatenate([np.flatnonzero(r) for r in rows])
    model = VGPDS(
        temporal_kernel(file),
        mapping_kernel(file),
        inducing=torch.from_numpy(file["Z"]),
        noise=1.0 / float(file["beta"]),
        output_mean=torch.from_numpy(file["Y_mean"]),
        jitter=float(file["jitter_Kuu"]),
    )
    guide = AutoOpperArchambeau(
        model, mean_bar=torch.from_numpy(file["mu_bar"][order]), lam=torch.from_numpy(file["lam"][order])
    )
    return model, guide, data, torch.from_numpy(np.argsort(order))


def evaluate(file: Any) -> dict[str, Any]:
    pyro.clear_param_store()
    model, guide, data, file_order = build(file)
    elbo = Collapsed_ELBO()
    loss = elbo.differentiable_loss(model, guide, data)
    loss.backward()

    guide(data)
    model_trace, guide_trace = guide.get_traces()
    q = guide_trace.nodes["x"]["fn"]
    likelihood = model_trace.nodes["y"]["fn"].integrate(q)
    kl = torch.distributions.kl_divergence(q, model_trace.nodes["x"]["fn"])
    kernel = model.mapping()
    everything = kernel.psi0(q.mean, q.variance, None).squeeze(-1)
    psi1 = kernel.psi1(q.mean, q.variance, model.inducing)
    psi2 = kernel.psi2(q.mean, q.variance, model.inducing, None).squeeze(-3)

    def gradient(parameter: Any) -> Tensor:
        return -parameter.unconstrained().grad  # of the log, for a positive one

    result = {
        "mu": q.mean, "S_diag": q.variance, "Psi0": everything, "Psi1": psi1, "Psi2": psi2,
        "F_hat": likelihood.log_prob(data.y), "KL_exact": kl, "bound_exact": -loss,
        "grad_mu_bar": gradient(guide.mean_bar), "grad_log_lambda": gradient(guide.lam),
        "grad_Z": gradient(model.inducing), "grad_log_beta": -gradient(model.noise),
    }  # fmt: skip
    for name, kernel in zip(names(file["mapping_kernel"]), model.mapping.leaves(), strict=True):
        if name == "rbfard2":
            result["grad_log_sigma_ard2"] = gradient(kernel.variance)
        if name in ("rbfard2", "linard2"):
            result["grad_log_w"] = gradient(kernel.weight)
        else:
            result[f"grad_log_mapping_{name}_variance"] = gradient(kernel.variance)
    for name, kernel in zip(names(file["dyn_kernel"]), model.temporal.leaves(), strict=True):
        for theirs, (ours, power) in TEMPORAL[name][1].items():
            result[f"grad_log_dyn_{name}_{theirs}"] = gradient(getattr(kernel, ours)) / power
    for name in ("mu", "S_diag", "Psi1", "grad_mu_bar", "grad_log_lambda"):
        result[name] = result[name][file_order]
    if "t_star" in file:
        result |= predictions(Posterior(model, guide, data), file["t_star"])
    return {name: value.detach().tolist() for name, value in result.items()}


def predictions(posterior: Posterior, t: np.ndarray) -> dict[str, Tensor]:
    """Moments at new times; several sequences make a last axis, which says to which of them the times belong."""
    parts = []
    for sequence in range(posterior.data.num_sequences):
        y = posterior.forecast(t, sequence)
        f = y.with_noise(False)
        parts.append({
            "Xstar_mean": y.latent.mean, "Xstar_var": y.latent.variance, "Ystar_mean": y.mean,
            "Ystar_var_incl_noise": y.variance, "Fstar_var": f.variance,
        })  # fmt: skip
    stacked = {name: torch.stack([part[name] for part in parts], -1) for name in parts[0]}
    return stacked if len(parts) > 1 else parts[0]


def main(path: str) -> None:
    torch.set_default_dtype(torch.float64)
    with np.load(path, allow_pickle=False) as file:
        print(json.dumps(evaluate(dict(file))))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
