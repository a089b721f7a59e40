# SPDX-License-Identifier: Apache-2.0
"""The processes that have data or train one model together, and how they exchange numbers."""

from pyro_vgpds.team.team import ALONE, ProcessError, ProcessTeam, Team, announced

__all__ = ["ALONE", "ProcessError", "ProcessTeam", "Team", "announced"]
