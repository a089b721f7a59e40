# SPDX-License-Identifier: Apache-2.0
"""Makes the notebooks: runs each percent script of this folder in a new kernel and saves it with its outputs.

python tutorials/_build.py            # all tutorials
python tutorials/_build.py video      # one tutorial
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from PIL import Image

FOLDER = Path(__file__).parent


def scripts() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))


def read(path: Path) -> Any:
    """Read a script or a notebook, without the cell that only has the license."""
    notebook = nbformat.read(path, 4) if path.suffix == ".ipynb" else jupytext.read(path, fmt="py:percent")
    if notebook.cells and notebook.cells[0].source.strip().startswith("# SPDX-"):
        notebook.cells = notebook.cells[1:]
    return notebook


def build(script: Path) -> Path:
    """Run ``script`` and write its notebook. From run to run only the outputs can differ."""
    from nbclient import NotebookClient  # imported here because reading does not need Jupyter

    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # Pyro warns about progress bars that are not shown
    notebook = read(script)
    name = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.NotebookNode(kernelspec=name)
    NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--InlineBackend.figure_formats=retina"],  # two pixels for each pixel of the page
        resources={"metadata": {"path": str(FOLDER)}},
    ).execute()
    for i, cell in enumerate(notebook.cells):
        cell.metadata = nbformat.NotebookNode()
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
        cell.id = hashlib.sha256(f"{i} {cell.source}".encode()).hexdigest()[:8]
    notebook.metadata = nbformat.NotebookNode(kernelspec=name, language_info={"name": "python"})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    target = script.with_suffix(".ipynb")
    nbformat.validate(notebook)
    nbformat.write(notebook, target)
    return target


def smaller(picture: str) -> str:
    """A png picture, in base64, with at most 256 colours: a third of the size, and no visible difference."""
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        file = io.BytesIO()
        few.save(file, "png", optimize=True)
    text = base64.b64encode(file.getvalue()).decode("ascii")
    return text if len(text) < len(picture) else picture


def main(names: list[str]) -> None:
    chosen = [path for path in scripts() if not names or path.stem in names]
    if unknown := set(names) - {path.stem for path in chosen}:
        raise SystemExit(f"unknown tutorial: {', '.join(sorted(unknown))}")
    for script in chosen:
        began = time.monotonic()
        target = build(script)
        print(f"{target.name}: {time.monotonic() - began:.0f} s, {target.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
