"""Whether processes could compute a model that was spread without a plan, and what to write.

`spread` does not choose them itself. They would give the same numbers, except where a script has
replaced code that its module calls in other imported modules: workers import that code anew, and
nothing notices (`watched_code.py`). And which is faster depends on the size of the layers.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from ....errors import SpreadError
from ...layout import Layout
from .module_state import require_sendable


def explain_processes(module: nn.Module, loss: Any, layout: Layout) -> str | None:
    """Return why a model has no processes; None where they would make no difference."""
    if layout.lead.type != "cpu":
        if len(layout.devices) == 1:
            return None
        return (
            "not used, because Replicas(processes=…) computes on the CPU; for a process for each "
            "of these devices, start the script with anyrig run"
        )
    threads = torch.get_num_threads()
    if threads == 1 or not hasattr(os, "memfd_create"):
        return None
    try:
        require_sendable(module, loss)
    except SpreadError as error:
        return f"impossible: {error}"
    return (
        f"not used unless asked for; plan=Replicas(processes=2), with up to {threads} processes, "
        f"divides each batch and the {threads} threads among them, which pays where layers are too "
        "small for several threads. The module and its loss can be sent to them. Do not use "
        "processes if the script replaces code of modules that it imports, or keeps views of "
        "parameters"
    )
