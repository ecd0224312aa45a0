"""What this room uses of PyTorch that the oldest supported version does not have.

`tests/memory/test_versions_of_torch.py` fails once every supported version has a name, and says
what can go then.

==========================  =====  ==========================================================
name                        since  without it
==========================  =====  ==========================================================
`c10d.gather_into_tensor_`  2.14   `torch.distributed` has no such collective
`reset_iter_state`          2.13   a step of FSDP2 cannot be undone, and `survive` refuses it
==========================  =====  ==========================================================
"""

from __future__ import annotations

import torch
from torch.distributed.fsdp import FSDPModule


def newer_collectives() -> tuple[str, ...]:
    """Return the operators for collectives that only some supported versions have."""
    name = "gather_into_tensor_"
    return (name,) if hasattr(torch.ops.c10d, name) else ()


def fsdp_undoes_failed_steps() -> bool:
    """Return whether FSDP2 can forget a step that failed."""
    return hasattr(FSDPModule, "reset_iter_state")
