# SPDX-License-Identifier: Apache-2.0
"""The automatic choice of models and baselines for data and a task."""

from pyro_vgpds.selection.api import auto
from pyro_vgpds.selection.configuration import Configuration
from pyro_vgpds.selection.files import register_files
from pyro_vgpds.selection.report import Report, Scored

__all__ = ["Configuration", "Report", "Scored", "auto"]

register_files()
