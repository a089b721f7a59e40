# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages with embedded figures and tables."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from pyro_vgpds.files.atomic import atomic_write

__all__ = ["Chapter", "Highlight", "ReportFigure", "ReportTable", "save_page"]

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
td.text, th.text { text-align: left; }
tr.ours td { font-weight: 600; }
p.highlight { background: #f6f5f0; border-left: 4px solid #D55E00; padding: .6rem .9rem; }
pre { background: #f6f5f0; padding: .8rem 1rem; overflow-x: auto; font-size: .92rem; line-height: 1.45; }
"""


@dataclass(frozen=True)
class ReportFigure:
    """A picture, as a file or as the content of a png file, with its caption."""

    picture: Path | bytes
    caption: str


@dataclass(frozen=True)
class ReportTable:
    """A table whose first row, the model's, is printed bold."""

    head: list[str]
    rows: list[list[str]]
    caption: str
    bold: bool = True  #: whether the first row is printed bold
    text: int = 1  #: number of columns that are aligned to the left


@dataclass(frozen=True)
class Highlight:
    """A paragraph that stands out."""

    text: str


@dataclass(frozen=True)
class Chapter:
    """Paragraphs, figures and tables in reading order, and commands to try next."""

    title: str
    parts: list[str | Highlight | ReportFigure | ReportTable]
    commands: list[str] = field(default_factory=list)


def save_page(path: Path, title: str, heading: str, lead: str, chapters: Sequence[Chapter], end: str = "") -> Path:
    """Write a page: window title, heading, a first paragraph as HTML, the chapters, and HTML at the end."""
    body = "\n".join(_chapter(chapter) for chapter in chapters)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(heading)}</h1>
<p>{lead}</p>
{body}
{end}</body>
</html>
"""
    with atomic_write(path) as part:
        part.write_text(page, encoding="utf-8")
    return path


def _chapter(chapter: Chapter) -> str:
    return "\n".join([f"<h2>{escape(chapter.title)}</h2>", *map(_part, chapter.parts)])


def _part(part: str | Highlight | ReportFigure | ReportTable) -> str:
    if isinstance(part, ReportFigure):
        given = part.picture
        kind, content = ("image/png", given) if isinstance(given, bytes) else (_KINDS[given.suffix], given.read_bytes())
        source = f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
        caption = escape(part.caption)
        return f'<figure><img src="{source}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
    if isinstance(part, ReportTable):
        return _table(part)
    if isinstance(part, Highlight):
        return f'<p class="highlight">{escape(part.text)}</p>'
    return f"<p>{escape(part)}</p>"


def _table(table: ReportTable) -> str:
    aligned = [' class="text"' if i < table.text else "" for i in range(len(table.head))]
    head = "".join(f'<th scope="col"{c}>{escape(cell)}</th>' for cell, c in zip(table.head, aligned, strict=True))
    rows = ["".join(f"<td{c}>{escape(cell)}</td>" for cell, c in zip(row, aligned, strict=True)) for row in table.rows]
    first = ' class="ours"' if table.bold else ""
    body = f"<tr{first}>{rows[0]}</tr>" + "".join(f"<tr>{row}</tr>" for row in rows[1:])
    caption = f"<caption>{escape(table.caption)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
