# SPDX-License-Identifier: Apache-2.0
"""Checks of a model against its data: the unit of time of its kernels, and parameters that another model left."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import pyro
import torch
from torch import Tensor

from pyro_vgpds.data.dates import format_duration
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.kernels import Kernel

__all__ = [
    "TimeScaleWarning", "check_dated", "check_time_scales", "user_stacklevel", "warn_of_spreads", "warn_of_stored",
]  # fmt: skip

# In units of the spacing: a shorter period has no meaning (up to rounding), and with a lengthscale of a quarter all
# frames are almost independent.
_LEAST_PERIOD, _LEAST = 1.0 - 1e-5, 0.25
# In units of the span: longer ones are a path that is almost constant, or no oscillation, which may be on purpose.
_MOST_PERIOD, _MOST = 25.0, 100.0
_MOST_SPREAD = 1e3  # ratio of standard deviations of outputs


class TimeScaleWarning(UserWarning):
    """A lengthscale or period of a temporal kernel does not fit the times of the data.

    >>> import warnings
    >>> from pyro_vgpds.inference import TimeScaleWarning
    >>> from pyro_vgpds.kernels import Periodic
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always", TimeScaleWarning)
    ...     other = VGPDS.from_data(data, latent_dim=2, num_inducing=10, temporal=Periodic(period=1e-3))
    >>> print(seen[0].message)
    period=0.001 of Periodic is below the median spacing of the frames (0.104146). It is in the unit of the times.
    """


def check_dated(kernel: Kernel, data: Sequences, name: str = "temporal") -> None:
    """Raise a ValueError if a parameter of ``kernel`` was given as a duration and the data have no dates."""
    given = [(leaf, own) for leaf in kernel.leaves() for own in sorted(leaf.durations)]
    if given and data.time_origin is None:
        leaf, own = given[0]
        length = format_duration(float(_numbers(leaf, own)[0]))
        raise ValueError(
            f"{own} of {type(leaf).__name__} in {name} is a duration, {length}, which needs data with dates, "
            f"but the times are numbers. Use dates (datetime64) as times, or give {own} as a number in the unit of the "
            "times."
        )


def check_time_scales(kernel: object, data: object, warn: bool = True) -> None:
    """Compare a temporal kernel with the times of data; nothing is done if they are not a kernel and sequences.

    :param warn: warn if a period that was given is below the spacing of the frames, a lengthscale is far below it, or
        one of them is far beyond their span.
    :raises ValueError: as :func:`check_dated`.
    """
    if not isinstance(kernel, Kernel) or not isinstance(data, Sequences):
        return
    check_dated(kernel, data)
    if warn:
        _warn_of_scales(kernel, data)


def _warn_of_scales(kernel: Kernel, data: Sequences) -> None:
    parts = [data.times.t[rows] for rows in data.times.slices()]
    steps = torch.cat([part.diff() for part in parts])
    if not len(steps):
        return
    step, span = float(steps.median()), float(max(part[-1] - part[0] for part in parts))
    for leaf in kernel.leaves():
        for name in sorted(leaf.time_parameters - leaf.unset):
            if leaf.prior(name) is None:
                _warn(leaf, name, step, span, data.time_origin is not None)


def _numbers(leaf: Kernel, name: str) -> Tensor:
    value: Tensor = getattr(leaf, name)
    return value.detach().flatten()


def _warn(leaf: Kernel, name: str, step: float, span: float, dated: bool) -> None:
    def show(number: float) -> str:
        return f"{number:.6g}" + (f" s, {format_duration(number)}" if dated else "")

    value = float(_numbers(leaf, name).min())  # one of several may be long on purpose
    is_period = name in leaf.slow_parameters
    if value < (_LEAST_PERIOD if is_period else _LEAST) * step:
        fault = f"is {'' if is_period else 'far '}below the median spacing of the frames ({show(step)})"
    elif value > (_MOST_PERIOD if is_period else _MOST) * span:
        fault = f"is far beyond the span of the longest sequence ({show(span)})"
    else:
        return
    hint = "It is in the unit of the times."
    if dated:
        hint = f"The times are dates, so it is in seconds; write a duration with its unit, as in {name}='24h'."
    if name in leaf.durations:
        hint = "Check the unit."
    text = f"{name}={value:g} of {type(leaf).__name__} {fault}. {hint}"
    warnings.warn(text, TimeScaleWarning, stacklevel=user_stacklevel())


def user_stacklevel() -> int:
    """The ``stacklevel`` of a warning that shows the line outside of this package, such as that of ``from_data``."""
    package, level, frame = str(Path(__file__).parents[1]), 0, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    return level


def warn_of_spreads(data: Sequences) -> None:
    """Warn that outputs of very different spreads are not scaled: the model would learn the large ones only."""
    scales, varies = data.output_scales, data.output_variances > 0.0
    order = [i for i in scales.argsort().tolist() if bool(varies[i])]
    if not order:  # a single frame
        return
    low, high = order[0], order[-1]
    ratio = float(scales[high] / scales[low])
    if ratio > _MOST_SPREAD:
        names = data.columns or [f"output {i}" for i in range(data.num_outputs)]
        warnings.warn(
            f"scale_outputs=False, but the standard deviations of the outputs differ by a factor of {ratio:.2g}: "
            f"{float(scales[low]):.3g} of {names[low]} and {float(scales[high]):.3g} of {names[high]}. The model will "
            "learn the large ones only. Use scale_outputs=True, or other units.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )


def warn_of_stored(name: str, own: Tensor) -> None:
    """Warn before Pyro fills a new module, which has the value ``own``, from parameters of this name in its store."""
    stored = dict(pyro.get_param_store().named_parameters()).get(name, own)
    if stored is not own and not pyro.settings.get("module_local_params"):
        warnings.warn(
            "Pyro's parameter store holds parameters of an earlier model, which this model will now use. "
            "Call pyro.clear_param_store() between models.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )
