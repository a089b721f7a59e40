# SPDX-License-Identifier: Apache-2.0
"""The report: one self-contained HTML page with its figures embedded."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import pyro_vgpds
from pyro_vgpds.files.container import placed

__all__ = ["Chapter", "ReportFigure", "ReportTable", "write_report"]

_KINDS = {".png": "image/png", ".gif": "image/gif"}
_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 58rem; padding: 2rem 1.25rem 4rem; color: #222; background: #fff;
       font: 1.05rem/1.55 system-ui, "Segoe UI", "Liberation Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .5rem; padding-top: 1rem; border-top: 1px solid #ddd; }
p { margin: .7rem 0; max-width: 44rem; }
figure { margin: 1.6rem 0; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { color: #555; font-size: .93rem; margin-top: .4rem; max-width: 44rem; }
table { border-collapse: collapse; margin: 1.2rem 0; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; color: #555; font-size: .93rem; padding-top: .4rem; }
th, td { text-align: right; padding: .3rem .9rem; border-bottom: 1px solid #ddd; font-weight: normal; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: #555; }
tr.ours td { font-weight: 600; }
pre { background: #f6f5f0; padding: .8rem 1rem; overflow-x: auto; font-size: .92rem; line-height: 1.45; }
"""


@dataclass(frozen=True)
class ReportFigure:
    """A picture with its caption."""

    path: Path
    caption: str


@dataclass(frozen=True)
class ReportTable:
    """A table whose first row, the model's, is printed bold."""

    head: list[str]
    rows: list[list[str]]
    caption: str


@dataclass(frozen=True)
class Chapter:
    """Paragraphs, figures and tables in reading order, and commands to try next."""

    title: str
    parts: list[str | ReportFigure | ReportTable]
    commands: list[str] = field(default_factory=list)


def write_report(path: Path, chapters: list[Chapter], steps: int, seed: int, seconds: float) -> Path:
    """Write the page."""
    body = "\n".join(_chapter(chapter) for chapter in chapters)
    commands = "\n".join(escape(command) for chapter in chapters for command in chapter.commands)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pyro_vgpds: a demonstration</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>A pendulum and a walk</h1>
<p>This page was made by <code>pyro-vgpds demo</code> (version {pyro_vgpds.__version__}) in {seconds:.0f} seconds, with
{steps} training steps for each model and seed {seed}. A <em>variational Gaussian process dynamical system</em> learns
a few latent variables that explain how many observed outputs change together over time. With these it reconstructs
missing values, forecasts beyond the end of the data and generates new data, with a measure of uncertainty.</p>
{body}
<h2>Next steps</h2>
<p>The models and the data of this page are in the same folder. Try there:</p>
<pre>{commands}</pre>
</body>
</html>
"""
    with placed(path) as part:
        part.write_text(page, encoding="utf-8")
    return path


def _chapter(chapter: Chapter) -> str:
    return "\n".join([f"<h2>{escape(chapter.title)}</h2>", *map(_part, chapter.parts)])


def _part(part: str | ReportFigure | ReportTable) -> str:
    if isinstance(part, ReportFigure):
        content = base64.b64encode(part.path.read_bytes()).decode("ascii")
        source = f"data:{_KINDS[part.path.suffix]};base64,{content}"
        caption = escape(part.caption)
        return f'<figure><img src="{source}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
    if isinstance(part, ReportTable):
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in part.head)
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in part.rows]
        rows = [f'<tr class="ours">{rows[0]}</tr>', *(f"<tr>{row}</tr>" for row in rows[1:])]
        caption = f"<caption>{escape(part.caption)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<p>{escape(part)}</p>"
