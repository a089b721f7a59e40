# SPDX-License-Identifier: Apache-2.0
"""Parts of sequences keep names, dates, lags and dtype."""

import numpy as np
import torch

from pyro_vgpds import Sequences
from pyro_vgpds.data.parts import base_outputs, make_like, split_outputs, take_frames, with_outputs, without_lags


def make():
    start = np.datetime64("2024-03-01")
    t = [start + np.arange(6) * np.timedelta64(1, "D"), start + np.arange(4) * np.timedelta64(2, "D")]
    y = [np.arange(12.0).reshape(6, 2), -np.arange(8.0).reshape(4, 2)]
    y[0][2, 1] = np.nan
    return Sequences(t, y, columns=["a", "b"], dtype=torch.float32)


def test_lagged_copies_are_not_outputs():
    data = make()
    wide = data.lagged([-1])
    torch.testing.assert_close(base_outputs(wide), data.y, equal_nan=True)
    assert without_lags(data) is data
    plain = without_lags(wide)
    assert (plain.lags, plain.columns, plain.num_outputs) == ((), ["a", "b"], 2)
    torch.testing.assert_close(plain.y, data.y, equal_nan=True)
    t, y = split_outputs(wide)
    assert [part.shape for part in y] == [(6, 2), (4, 2)]
    torch.testing.assert_close(torch.cat(t), data.times.t)


def test_parts_are_like_the_whole():
    for data in (make(), make().lagged([-1, 2])):
        same = make_like(data, *split_outputs(data))
        assert (same.columns, same.lags, same.dtype) == (data.columns, data.lags, data.dtype)
        assert same.time_origin == data.time_origin
        torch.testing.assert_close(same.y, data.y, equal_nan=True)
        filled = with_outputs(data, torch.zeros(10, 2))
        assert filled.lengths == data.lengths
        assert (base_outputs(filled) == 0).all()


def test_frames_are_taken_by_slices_masks_and_indices():
    data = make()
    some = take_frames(data, [slice(1, 4), torch.tensor([True, False, False, True])])
    assert some.lengths == (3, 2)
    torch.testing.assert_close(some.times.t, data.times.t[[1, 2, 3, 6, 9]])
    torch.testing.assert_close(some.y, data.y[[1, 2, 3, 6, 9]], equal_nan=True)
    one = take_frames(data, [slice(0, 0), torch.tensor([0, 1])])
    assert one.lengths == (2,)  # a sequence without frames is dropped
    torch.testing.assert_close(one.y, data.y[6:8])
