"""The user's settings of the clock: the host's time for a launch, and older libraries.

::

    host   | Python, PyTorch | launch | Python, PyTorch | launch |
           '---- operator of one kernel ----'
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..hardware import Spec, additions_of, coefficients_of, read_libraries, values_of

if TYPE_CHECKING:
    import torch

_LAUNCH, _OPERATOR = "host.launch_seconds", "host.operator_seconds"
# CUDA queues about a thousand launches; then the host waits for the GPU.
_OPERATORS, _ROUNDS = 500, 20


@dataclass(frozen=True)
class ClockSettings:
    """What the user says about the clock.

    Attributes:
        host_launch_seconds: how long the host takes for an operator of one kernel; None for what is
            assumed. The launch keeps its share of that time.
        libraries: the versions by whose kernels to time, such as ``"torch=1.7"``; None for those of
            today.
    """

    host_launch_seconds: float | None = None
    libraries: str | None = None

    def coefficients(self, spec: Spec) -> dict[str, list[float]]:
        """Return the coefficients of a GPU by full name."""
        values = values_of(coefficients_of(spec))
        if self.host_launch_seconds is not None:
            factor = self.host_launch_seconds / assumed_seconds(spec)
            for name in (_LAUNCH, _OPERATOR):
                values[name] = [factor * values[name][0]]
        if self.libraries is not None:
            for name, added in additions_of(read_libraries(self.libraries)).items():
                values[name] = [value + added for value in values[name]]
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
