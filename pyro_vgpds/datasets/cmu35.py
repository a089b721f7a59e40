# SPDX-License-Identifier: Apache-2.0
"""The paper's motion capture data: walks and runs of CMU subject 35, as 59 features a frame."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pyro_vgpds import metrics
from pyro_vgpds.checks import as_numbers, check_choice
from pyro_vgpds.datasets.acclaim import read_asf
from pyro_vgpds.datasets.base import require
from pyro_vgpds.datasets.cache import find_file
from pyro_vgpds.datasets.mocap import CMU_TERMS, Motion
from pyro_vgpds.types import ArrayLike, PathLike

__all__ = ["CMU35", "channels_from_features", "features_from_channels", "load_cmu35"]

_JOINTS = [*range(6, 38), *range(40, 47), 48, 49, *range(52, 59), 60, 61]  # channels that become angle features
_STEP = 0.05  # time between frames, as in the authors' code (the true value is 1/30 s)
#: the features that are hidden
BLOCKS = {"legs": np.arange(7, 14), "body": np.arange(20, 50)}


@dataclass(frozen=True, repr=False)
class CMU35(Motion):
    """The training sequences (``t``, ``y``, ``channels``) and the test sequence of the paper's table 1.

    >>> from pyro_vgpds.baselines import nearest_neighbour
    >>> from pyro_vgpds.datasets import load_cmu35
    >>> walks = load_cmu35(download=True)  # doctest: +SKIP
    >>> guess = nearest_neighbour(walks.y, walks.hide(walks.test_y, "legs"))  # doctest: +SKIP
    >>> errors = walks.score(walks.test_y, guess, "legs")  # doctest: +SKIP
    >>> round(errors["SC"], 2), round(errors["RA"], 2)  # doctest: +SKIP
    (14.01, 4.11)
    """

    test_t: np.ndarray = field(kw_only=True)  #: (124,)
    test_y: np.ndarray = field(kw_only=True)  #: (124, 59), without NaN
    test_channels: np.ndarray = field(kw_only=True)  #: (124, 62)
    scale: np.ndarray = field(kw_only=True)  #: (50,) scales of the angles, for the error SC
    blocks: dict[str, np.ndarray] = field(kw_only=True)  #: the features of "legs" and of "body"

    def hide(self, y: np.ndarray, block: str) -> np.ndarray:
        """A copy of the features with a block hidden (NaN) in the second half of the rows.

        In the test sequence these are rows 62 to 123, as in the paper.

        :param y: features (N, 59).
        :param block: "legs" or "body".
        :raises ValueError: if ``block`` is not "legs" or "body".
        """
        hidden = as_numbers("y", y).copy()
        if hidden.ndim != 2 or hidden.shape[1] != 59:
            raise ValueError(f"y must be features (N, 59), but its shape is {hidden.shape}.")
        hidden[len(hidden) // 2 :, self._block(block)] = np.nan
        return hidden

    def score(self, truth: ArrayLike, prediction: ArrayLike, block: str) -> dict[str, float]:
        """The paper's errors SC and RA of a prediction of the entries that :meth:`hide` hides.

        :param truth: features (N, 59).
        :param prediction: features (N, 59).
        :param block: "legs" or "body".
        :raises ValueError: if ``block`` is not "legs" or "body", or shapes differ.
        """
        arrays = [as_numbers("truth", truth), as_numbers("prediction", prediction)]
        if arrays[0].shape != arrays[1].shape or arrays[0].shape[1:] != (59,):
            raise ValueError(f"truth and prediction must be (N, 59), but got {arrays[0].shape} and {arrays[1].shape}.")
        hidden = self._block(block)
        true, guess = (array[len(array) // 2 :, hidden] for array in arrays)
        return {"SC": metrics.sc(true, guess, self.scale[hidden]), "RA": metrics.ra(true, guess)}

    def _block(self, block: str) -> np.ndarray:
        check_choice("block", block, list(self.blocks))
        return self.blocks[block]


def load_cmu35(*, data_home: PathLike | None = None, download: bool = False) -> CMU35:
    """Load the paper's motion capture data: 31 training sequences (2613 x 59) and a test sequence (124 x 59).

    Features are those of :func:`features_from_channels`, neither centred nor scaled. Training sequences have 34 to 113
    frames. Times start at 0 in every sequence, 0.05 per frame. ``channels`` are the raw channels of the same frames.

    Terms: free to use, acknowledge mocap.cs.cmu.edu and NSF EIA-0196217 (``dataset.terms``). The files, with the
    skeleton ``35.asf``, come from SheffieldML/GPmat. Needs ``pyro_vgpds[data]`` (scipy).

    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: download missing files from a pinned URL.
    :raises FileNotFoundError: if a file is missing; the message names the file, its source and the folder.

    >>> from pyro_vgpds.datasets import load_cmu35
    >>> load_cmu35(download=True).sequences()  # doctest: +SKIP
    Sequences(31 sequences, 2613 frames, 59 outputs)
    """
    names = ("cmu35WalkJog.mat", "cmu35TaylorScaleBias.mat", "35.asf")
    data, scales, bones = (find_file(f"cmu35/{name}", data_home, download) for name in names)
    loadmat = require("scipy.io", "data").loadmat
    file = loadmat(data)
    parts = [file["Y"][column > 0].astype(np.float64) for column in file["lbls"].T]
    test = file["Ytest"][file["lblstest"][:, 1] > 0].astype(np.float64)
    y = [features_from_channels(part) for part in parts]
    test_y = features_from_channels(test)
    return CMU35(
        [_STEP * np.arange(len(part)) for part in y],
        y,
        "CMU subject 35, walking and running, 59 features",
        CMU_TERMS,
        skeleton=read_asf(bones),
        channels=[part[1:] for part in parts],
        test_t=_STEP * np.arange(len(test_y)),
        test_y=test_y,
        test_channels=test[1:],
        scale=loadmat(scales)["scale"].ravel()[9:].astype(np.float64),  # the first nine belong to the root
        blocks=dict(BLOCKS),
    )


def features_from_channels(channels: np.ndarray) -> np.ndarray:
    """The paper's 59 features (N - 1, 59) of a sequence of 62 raw channels. The first frame has no features.

    0-49: joint angles in radians, folded into [-π/2, π/2]. 50-51: step of the root on the floor, previous minus current
    position. 52: height of the root. 53-54: sine of two angles of the root. 55: sine of its heading, previous minus
    current. 56-58: as 53-55, with the cosine.

    :param channels: (N, 62), angles in degrees.
    :raises ValueError: if ``channels`` is not (N, 62) with N >= 2.

    >>> import numpy as np
    >>> from pyro_vgpds.datasets import features_from_channels
    >>> features_from_channels(np.zeros((4, 62))).shape
    (3, 59)
    """
    channels = as_numbers("channels", channels)
    if channels.ndim != 2 or channels.shape[1] != 62 or len(channels) < 2:
        raise ValueError(f"channels must be (N, 62) with N >= 2, but got {channels.shape}.")
    before, now = channels[:-1], channels[1:]
    features = [np.arcsin(np.sin(np.radians(now[:, _JOINTS]))), (before - now)[:, [0, 2]], now[:, [1]]]
    for wave in (np.sin, np.cos):
        turned, last = wave(np.radians(now[:, [3, 4, 5]])), wave(np.radians(before[:, [4]]))
        features += [turned[:, [0, 2]], last - turned[:, [1]]]
    return np.concatenate(features, 1)


def channels_from_features(features: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """Raw channels (N, 62) of features, to draw a prediction as poses.

    Steps and headings are accumulated from ``start``. Channels without a feature (thumbs, fingers) are 0.

    :param features: (N, 59), as returned by :func:`features_from_channels`.
    :param start: the raw frame (62,) before the first. Default: the origin, with heading 0.
    :raises ValueError: if ``features`` is not (N, 59) or ``start`` is not (62,).

    >>> import numpy as np
    >>> from pyro_vgpds.datasets import channels_from_features, features_from_channels
    >>> raw = np.zeros((4, 62))
    >>> raw[:, 2] = [0.0, 1.0, 3.0, 6.0]  # moves along z
    >>> channels_from_features(features_from_channels(raw), start=raw[0])[:, 2].tolist()
    [1.0, 3.0, 6.0]
    """
    features = as_numbers("features", features)
    first = np.zeros(62) if start is None else as_numbers("start", start)
    if features.ndim != 2 or features.shape[1] != 59 or first.shape != (62,):
        raise ValueError(f"features must be (N, 59) and start (62,), but got {features.shape} and {first.shape}.")
    channels = np.zeros((len(features), 62))
    channels[:, _JOINTS] = np.degrees(features[:, :50])
    channels[:, [0, 2]] = first[[0, 2]] - np.cumsum(features[:, [50, 51]], 0)
    channels[:, 1] = features[:, 52]
    channels[:, [3, 5]] = np.degrees(np.arctan2(features[:, [53, 54]], features[:, [56, 57]]))
    heading = np.radians(first[4])
    sine, cosine = np.sin(heading) - np.cumsum(features[:, 55]), np.cos(heading) - np.cumsum(features[:, 58])
    channels[:, 4] = np.degrees(np.arctan2(sine, cosine))
    return channels
