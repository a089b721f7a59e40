# SPDX-License-Identifier: Apache-2.0
"""``pyro-vgpds evaluate``: a comparison of models and baselines on held-out data, as a page with pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from pyro_vgpds.cli.choosing import check_choice, choose, report_of
from pyro_vgpds.cli.errors import OK
from pyro_vgpds.cli.layout import Layout
from pyro_vgpds.cli.lazy import PAGES, write_comparison
from pyro_vgpds.cli.likelihoods import read_likelihood
from pyro_vgpds.cli.outputs import check_output
from pyro_vgpds.cli.progress import PATIENCE, say, working
from pyro_vgpds.cli.reading import introduce, read_data

__all__ = ["run_evaluate"]


def run_evaluate(args: argparse.Namespace) -> int:
    target: Path = args.output or args.file.with_name(f"{args.file.stem}_report.html")
    check_output(target, args.force, PAGES, inputs=(args.file,))
    likelihood = None if read_likelihood(args) is None else args.likelihood
    check_choice(args, likelihood)
    torch.set_num_threads(args.threads)
    table, data = read_data(args.file, Layout.of(args))
    introduce(args, table, data)
    report = report_of(choose(args, data, refit=False, likelihood=likelihood))
    with working(args, "drawing the report ...", PATIENCE):
        write_comparison(target, report, table, data)
    print(report)
    say(args, f"report: {target} (open it in a browser)")
    return OK
