# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration for ``make docs``. The pages can be built and read offline."""

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

# the one MathJax file that needs no other files and no fonts
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
autodoc_inherit_docstrings = False  # docstrings of torch and Pyro are not repeated
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
python_use_unqualified_type_names = True

# every reference must resolve, except those to other packages
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(collections|datetime|matplotlib|np|numpy|os|pandas|pathlib|pyro|torch|types)\..*"),
    (
        "py:class",
        r"(Array|Count|Data|Dataset|Likelihood|Path|Progress|Sequence)Like|OneSequence|Axes|Default|Encode|Excess|Filled|FilledPair|Find|FuncAnimation|Labels|LatentPaths|HasMoments|Moments",
    ),
    (
        "py:class",
        r"ComponentPrediction|Motions|Path|PyroModule|Shape|Start|StationaryKernel|Tensor|TextIO|TorchDistribution|TrainingRun",
    ),
    (
        "py:class",
        r"pyro_vgpds\.(kernels\.((base|names)\.K|programs\.Program)|mapping\.(psi\.Psi|explicit\.ExpectedGP|group_terms\.ValueAndGrads)|data\.map_style\.Items|inference\.natural\.Tracked|prediction\.conditioning\.P)",
    ),
    ("py:class", r"Values|pyro_vgpds\.(parameters\.declared\.P|likelihoods\.names\.L)"),
    (
        "py:class",
        r"PathMarginals|pyro_vgpds\.(mapping\.sparse_gp\.PathMarginals|temporal\.(path_gradients\.(MarkovPath|PathSource|DiagonalPath)|path_reader\.(PathReader|KernelReader)))",
    ),
]


class Help(SphinxDirective):
    """``.. command-help:: fit`` shows the output of ``pyro-vgpds fit --help``; the argument is optional."""

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
    """Show the text of a :class:`~pyro_vgpds.formatting.Default` instead of its name in the source."""
    values = getattr(member, "__globals__", {})
    for constant in re.findall(r"= ([A-Z_]\w+)", signature or ""):
        if isinstance(values.get(constant), Default):
            signature = signature.replace(f"= {constant}", f"= {values[constant]}")
    return signature, returns


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", show_defaults)
    app.add_directive("command-help", Help)
