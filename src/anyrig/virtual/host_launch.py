"""How long the host takes for an operator with its launch: what is assumed, given, and measured.

::

    host   | Python, PyTorch | launch | Python, PyTorch | launch |
           '---- operator of one kernel ----'
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from ..hardware import Spec, coefficients_of, values_of

if TYPE_CHECKING:
    import torch

_LAUNCH, _OPERATOR = "host.launch_seconds", "host.operator_seconds"
# CUDA queues about a thousand launches; then the host waits for the GPU.
_OPERATORS, _ROUNDS = 500, 20


def coefficients_with(spec: Spec, host_launch_seconds: float | None) -> dict[str, list[float]]:
    """Return the coefficients of a GPU, for a host that takes so long for an operator.

    The launch takes the same part of this time as of the assumed one. None leaves both as assumed.
    """
    values = values_of(coefficients_of(spec))
    if host_launch_seconds is not None:
        factor = host_launch_seconds / assumed_seconds(spec)
        for name in (_LAUNCH, _OPERATOR):
            values[name] = [factor * values[name][0]]
    return values


def assumed_seconds(spec: Spec) -> float:
    """Return how long the host is assumed to take for an operator of one kernel."""
    values = values_of(coefficients_of(spec))
    return values[_LAUNCH][0] + values[_OPERATOR][0]


def measure_host_seconds(device: torch.device) -> float:
    """Return how long this host takes for an operator of one kernel on `device`.

    The kernel adds a number to another, so that the GPU never keeps the host waiting. The result is
    the median of some rounds.
    """
    import torch

    module = torch.get_device_module(device)
    x = torch.zeros(1, device=device)
    found = []
    for _ in range(_ROUNDS):
        module.synchronize()
        begin = time.perf_counter()
        for _ in range(_OPERATORS):
            x.add_(1.0)
        found.append((time.perf_counter() - begin) / _OPERATORS)
    module.synchronize()
    return statistics.median(found)
