# SPDX-License-Identifier: Apache-2.0
"""Generated measurements of weather stations, with dates and drop-outs."""

from __future__ import annotations

import numpy as np

from pyro_vgpds.checks import check_count, check_flags, check_not_negative, check_seed
from pyro_vgpds.datasets.base import Dataset

__all__ = ["make_sensors"]

_KINDS = ("temperature", "humidity", "light", "wind")
_RANGE = {"temperature": (-50.0, 50.0), "humidity": (0.0, 100.0), "light": (0.0, 1500.0), "wind": (0.0, 60.0)}
_NOISE = {"temperature": 0.5, "humidity": 2.5, "light": 12.0, "wind": 0.4}  # standard deviations, median sensor


def make_sensors(
    num_days: int = 21, num_sensors: int = 24, noise: float = 1.0, dropouts: bool = True, seed: int = 0
) -> Dataset:
    """Hourly measurements of weather stations: temperature (°C), humidity (%), light (W/m²) and wind (m/s).

    All sensors follow the hour of the day and two slow processes that they share, cloudiness and the mass of air, but
    in nonlinear ways: light is zero at night and is dimmed by clouds, humidity saturates below 100 %, and wind is the
    exponential of its causes. The stations differ in height, delay and exposure, and the sensors in their noise.
    Numbers outside the range of an instrument, such as light below 0 because of noise, become the end of the range.

    Drop-outs are of three kinds: 2 % of single entries, two days of every fifth sensor, and one day of all sensors.
    ``dates`` has the date of each frame, ``t`` the hours since the first, and ``latent`` (N, 4) the sine and cosine of
    the daily cycle and the two slow processes. The same call with ``noise=0.0, dropouts=False`` gives the truth.

    :param num_days: number of days, with 24 frames each.
    :param num_sensors: number of outputs D; there are four at each station.
    :param noise: factor of the standard deviations of the noise.
    :param dropouts: whether entries are missing.
    :param seed: random seed.
    :raises ValueError: if there are fewer than 7 days or fewer than one sensor, or ``noise`` is negative.

    >>> from pyro_vgpds.datasets import make_sensors
    >>> sensors = make_sensors()
    >>> sensors.sequences()
    Sequences(1 sequence, 504 frames, 24 outputs, 8.47 % missing)
    >>> sensors.columns[:4], str(sensors.dates[0][0])
    (['temperature 1', 'humidity 1', 'light 1', 'wind 1'], '2024-05-06T00')
    """
    check_count("num_days", num_days, 7)
    check_count("num_sensors", num_sensors)
    check_not_negative("noise", noise)
    check_flags(dropouts=dropouts)
    check_seed(seed)
    rng = np.random.default_rng(seed)
    hours = np.arange(24.0 * num_days)
    clouds, air = _slow(len(hours), 24.0, rng), _slow(len(hours), 40.0, rng)
    columns = [f"{_KINDS[d % 4]} {d // 4 + 1}" for d in range(num_sensors)]
    stations = [_station(hours, clouds, air, rng) for _ in range(-(-num_sensors // 4))]
    y = np.stack([stations[d // 4][_KINDS[d % 4]] for d in range(num_sensors)], 1)
    kinds = [_KINDS[d % 4] for d in range(num_sensors)]
    spread = np.array([_NOISE[kind] for kind in kinds]) * rng.uniform(0.6, 1.6, num_sensors)
    y = y + noise * spread * rng.standard_normal(y.shape)
    y = y.clip(*np.array([_RANGE[kind] for kind in kinds]).T)  # what the instruments can show
    if dropouts:
        y[_missing(y.shape, rng)] = np.nan
    angle = 2.0 * np.pi * hours / 24.0
    return Dataset(
        [hours],
        [y],
        f"{num_sensors} sensors of {len(stations)} weather stations, hourly for {num_days} days",
        "Generated.",
        columns=columns,
        latent=[np.stack([np.sin(angle), np.cos(angle), clouds, air], 1)],
        dates=[np.datetime64("2024-05-06T00", "h") + hours.astype(np.int64)],
    )


def _slow(count: int, hours: float, rng: np.random.Generator) -> np.ndarray:
    """A smooth stationary process of unit variance: white noise filtered three times."""
    decay, start = np.exp(-1.0 / hours), int(8 * hours)
    x = rng.standard_normal(count + start)
    for _ in range(3):
        for i in range(1, len(x)):
            x[i] = decay * x[i - 1] + (1.0 - decay) * x[i]
    x = x[start:]
    return (x - x.mean()) / x.std()


def _station(hours: np.ndarray, clouds: np.ndarray, air: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    height, shade = rng.uniform(0.0, 1.0), rng.uniform(0.6, 1.0)  # in kilometres; share of the light
    delay, swing = rng.uniform(1.0, 3.0), rng.uniform(4.0, 7.0)
    dampness, exposure = rng.uniform(-0.5, 0.5), rng.uniform(0.7, 1.5)
    sun = np.maximum(0.0, -np.cos(2.0 * np.pi * (hours - 0.5) / 24.0) + 0.25)  # highest half an hour after noon
    clear = 1.0 / (1.0 + np.exp(2.0 * clouds))  # between 0 and 1
    warm = -np.cos(2.0 * np.pi * (hours - 0.5 - delay) / 24.0)
    temperature = 15.0 - 6.0 * height + 3.0 * air + swing * (0.35 + 0.65 * clear) * warm
    wet = 0.6 + dampness + 1.0 * clouds - 0.14 * (temperature - 15.0 + 6.0 * height)
    gusts = 0.8 + 0.45 * exposure * air + 0.35 * warm - 0.3 * clouds + 0.4 * height
    return {
        "temperature": temperature,
        "humidity": 25.0 + 73.0 / (1.0 + np.exp(-wet)),
        "light": 640.0 * shade * sun * (0.15 + 0.85 * clear),
        "wind": np.exp(np.minimum(gusts, 3.0)),
    }


def _missing(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    frames, outputs = shape
    gone = rng.random(shape) < 0.02
    gone[24 * (frames // 48) : 24 * (frames // 48 + 1)] = True  # one day of all sensors
    for d in range(0, outputs, 5):
        start = int(rng.integers(24, frames - 3 * 24))
        gone[start : start + 48, d] = True
    return gone
