# SPDX-License-Identifier: Apache-2.0
"""How ``make docs`` builds the pages. They need no network, neither to be built nor to be read."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import pyro_vgpds
from pyro_vgpds.cli.parser import make_parser
from pyro_vgpds.formatting import Default

# of all of MathJax the one file that needs no other, and no fonts
MATHJAX = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax" / "tex-svg.js"

project = "pyro_vgpds"
author = "The pyro_vgpds developers"
release = version = pyro_vgpds.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"pyro_vgpds {release}"
html_static_path = ["_static", str(MATHJAX)]
mathjax_path = MATHJAX.name
html_css_files = ["pages.css"]
html_show_sphinx = html_show_copyright = html_copy_source = False

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False  # those of torch and Pyro are their own
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
python_use_unqualified_type_names = True

# every reference must lead somewhere, but for those to other packages, which are not looked up
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(collections|np|numpy|os|pandas|pathlib|pyro|torch)\..*"),
    (
        "py:class",
        r"ArrayLike|DataLike|Default|PathLike|PyroModule|SequenceLike|Start|Tensor|TextIO|TorchDistribution|pyro_vgpds\.kernels\.base\.K",
    ),
]


class Help(SphinxDirective):
    """``.. command-help:: fit`` is what ``pyro-vgpds fit --help`` prints, and without an argument, all commands."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "100"
        parser = make_parser()
        for name in self.arguments:
            choices = next(a.choices for a in parser._actions if a.dest == "command")
            parser = choices[name]
        text = parser.format_help()
        return [nodes.literal_block(text, text, language="none")]


def show_defaults(app: Any, what: str, name: str, member: Any, options: Any, signature: Any, returns: Any) -> Any:
    """Write a :class:`~pyro_vgpds.formatting.Default` in words, which stands in the source by a private name."""
    values = getattr(member, "__globals__", {})
    for private in re.findall(r"= (_\w+)", signature or ""):
        if isinstance(values.get(private), Default):
            signature = signature.replace(f"= {private}", f"= {values[private]}")
    return signature, returns


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", show_defaults)
    app.add_directive("command-help", Help)
