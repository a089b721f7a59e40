# SPDX-License-Identifier: Apache-2.0
"""Held-out data: what to hide, how well it is predicted, cross-validation and backtests."""

from pyro_vgpds.evaluation.scores import Table, score, score_predictor
from pyro_vgpds.evaluation.splits import HeldOut, Predictor, Split, hold_out
from pyro_vgpds.evaluation.validation import backtest, cross_validate

__all__ = [
    "HeldOut",
    "Predictor",
    "Split",
    "Table",
    "backtest",
    "cross_validate",
    "hold_out",
    "score",
    "score_predictor",
]
