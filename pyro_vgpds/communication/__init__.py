# SPDX-License-Identifier: Apache-2.0
"""The processes that have data or train one model together, and how they exchange numbers."""

from pyro_vgpds.communication.communicator import (
    SINGLE_PROCESS,
    Communicator,
    GroupCommunicator,
    ProcessError,
    collective,
)

__all__ = ["SINGLE_PROCESS", "Communicator", "GroupCommunicator", "ProcessError", "collective"]
