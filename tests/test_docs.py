# SPDX-License-Identifier: Apache-2.0
"""The code in the README and the docs runs, block after block, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from pyro_vgpds.datasets import make_sequences

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/extending.md"])
def test_code_blocks(page, capsys, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as a reader has it
    monkeypatch.chdir(tmp_path)
    try:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        assert len(blocks) >= 3
        namespace: dict = {}
        for i, block in enumerate(blocks):
            exec(compile(block, f"{page}, block {i}", "exec"), namespace)
    finally:
        torch.set_default_dtype(torch.float64)
        plt.close("all")
    assert np.isfinite(float(namespace["loss"]))
    if page == "README.md":
        assert "bound" in capsys.readouterr().out
        assert namespace["draws"]["y"].shape == (3, 100, 20)


def test_generated_sequences():
    dataset = make_sequences(num_sequences=3, num_outputs=4, length=(5, 9), missing=0.3, seed=1)
    data = dataset.sequences()
    assert data.num_sequences == 3
    assert all(5 <= n <= 9 for n in data.lengths)
    assert 0 < data.num_missing < data.num_frames * 4
    again = make_sequences(num_sequences=3, num_outputs=4, length=(5, 9), missing=0.3, seed=1)
    np.testing.assert_array_equal(np.concatenate(dataset.y), np.concatenate(again.y))
    clean = np.concatenate(make_sequences(noise=0.0).y)
    np.testing.assert_allclose(clean.std(0), 1.0)
    with pytest.raises(ValueError, match="sizes must be positive, but got num_sequences=0"):
        make_sequences(num_sequences=0)
    with pytest.raises(ValueError, match=r"missing must be in \[0, 1\)"):
        make_sequences(missing=1.0)
