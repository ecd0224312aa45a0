"""The arguments of PyTorch's `DistributedDataParallel` that a caller of `spread` can set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import SpreadError

_ALLOWED = ("bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")
_DECIDED = {
    "module": "it is the first argument of spread",
    "device_ids": "the module is on the rank's device",
    "output_device": "outputs stay on the rank's device",
    "dim": "it is an argument of spread",
    "process_group": "all ranks of the default group take part",
    "device_mesh": "all ranks of the default group take part",
    "broadcast_buffers": "buffers travel in the backward pass, from a rank that has samples",
    "forward_sync_buffers": "buffers travel in the backward pass, from a rank that has samples",
    "init_sync": "rank 0's parameters and buffers are broadcast",
}


def check_ddp_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as keyword arguments for DDP.

    Raises:
        SpreadError: `spread` does not take one of the options.
    """
    for name in options:
        if name in _ALLOWED:
            continue
        why = f"spread decides it: {_DECIDED[name]}" if name in _DECIDED else "it is not supported"
        raise SpreadError(f"ddp= does not take {name!r}: {why}. It takes {', '.join(_ALLOWED)}")
    return dict(options)
