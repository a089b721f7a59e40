# SPDX-License-Identifier: Apache-2.0
"""The tutorials run from beginning to end without data or network, and their notebooks are those of the scripts."""

import base64
import importlib.util
import io
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image

FOLDER = Path(__file__).parents[1] / "tutorials"
_spec = importlib.util.spec_from_file_location("tutorials_build", FOLDER / "_build.py")
build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build)

SCRIPTS = build.scripts()
every_tutorial = pytest.mark.parametrize("script", SCRIPTS, ids=[path.stem for path in SCRIPTS])


def test_there_are_tutorials():
    assert SCRIPTS
    page = (FOLDER / "README.md").read_text()
    assert [path.stem for path in SCRIPTS if f"({path.stem}.ipynb)" not in page] == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@every_tutorial
def test_runs_in_smoke_mode(script, tmp_path, monkeypatch):
    """In this process, with the defaults of a new one: to start Python would take longer than most of them."""
    monkeypatch.setenv("CI", "1")
    monkeypatch.delenv("PYRO_VGPDS_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    with plt.rc_context():
        runpy.run_path(str(script), run_name="__main__")
        plt.close("all")
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


@every_tutorial
def test_notebook_is_that_of_the_script(script):
    wanted, found = build.read(script), build.read(script.with_suffix(".ipynb"))
    assert [(cell.cell_type, cell.source) for cell in found.cells] == [
        (cell.cell_type, cell.source) for cell in wanted.cells
    ], "make tutorials"


@every_tutorial
def test_notebook_has_its_figures_and_nothing_else(script):
    path = script.with_suffix(".ipynb")
    assert path.stat().st_size < 5_000_000
    cells = [cell for cell in build.read(path).cells if cell.cell_type == "code"]
    first = cells[0].execution_count  # 2 where the licence had a cell of its own
    assert [cell.execution_count for cell in cells] == list(range(first, first + len(cells)))
    outputs = [output for cell in cells for output in cell.outputs]
    kinds = {output.output_type for output in outputs}
    assert "error" not in kinds
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for output in outputs:
        if shown := output.get("metadata", {}).get("image/png"):  # sharp: two pixels for each pixel of the page
            with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))) as picture:
                assert picture.width == pytest.approx(2 * shown["width"], abs=1)
        text = output.get("text", "") or output.get("data", {}).get("text/plain", "")
        assert output.get("name") != "stderr", text  # warnings, progress bars
        assert not re.search(r"/(home|root|tmp|work|Users|var|opt)/|[Ww]arning", text), text
        assert "are used instead" not in text  # synthetic data


@pytest.mark.parametrize("name", ["motion_capture", "video"])
def test_animations_are_in_the_notebook(name):
    cells = build.read(FOLDER / f"{name}.ipynb").cells
    outputs = [output for cell in cells if "embed_animation(" in cell.source for output in cell.get("outputs", [])]
    assert len(outputs) == 2
    for output in outputs:
        found = re.match(r'<img src="data:image/gif;base64,([^"]+)"', "".join(output.data["text/html"]))
        with Image.open(io.BytesIO(base64.b64decode(found[1]))) as film:
            assert film.n_frames > 10


def test_smaller_pictures():
    """Flat colours are unchanged, and a picture does not become larger."""
    pixels = np.zeros((40, 60, 3), dtype=np.uint8)
    pixels[10:20], pixels[:, 30:] = (0, 114, 178), (213, 94, 0)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    before = base64.b64encode(file.getvalue()).decode("ascii")
    after = build.smaller(before)
    assert len(after) <= len(before)
    with Image.open(io.BytesIO(base64.b64decode(after))) as picture:
        np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), pixels)


@every_tutorial
def test_follows_the_conventions(script):
    text = script.read_text()
    for line in (
        'smoke_test = "CI" in os.environ',
        'assert pyro.__version__.startswith("1.9")',
        "pyro.set_rng_seed(",
        "torch.set_num_threads(1)",
        "# ## What next",
    ):
        assert line in text, line
    known = re.findall(r"\]\((\w+\.ipynb)\)", (FOLDER / "README.md").read_text())
    assert set(re.findall(r"\]\((\w+\.ipynb)\)", text)) <= set(known)
