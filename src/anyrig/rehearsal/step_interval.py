"""The interval of a step's time on real GPUs, from the errors of programs of its kind."""

from __future__ import annotations

from collections.abc import Sequence

from ..hardware import StepErrors, coefficients_of, specs, step_errors_of, values_of
from .facts import DeviceFacts, StepInterval, TypicalStep
from .step_kind import kind_of_step
from .work_log import StepWorks

# The programs that were compared kept their GPUs busy.
_LEAST_BUSY = 0.75


def interval_of_step(
    typical: TypicalStep | None,
    devices: Sequence[DeviceFacts],
    works: Sequence[StepWorks],
    *,
    host_launch_is_given: bool = False,
) -> StepInterval | None:
    """Return the interval of a typical step, or why none is known; None without a typical step.

    With several GPU models, the widest interval counts.

    Args:
        typical: the typical step.
        devices: the devices that the program used.
        works: what the kernels of one step of each process computed.
        host_launch_is_given: whether the user said how long the host takes for a launch.
    """
    if typical is None or not devices:
        return None
    gpus = dict.fromkeys(device.gpu for device in devices)
    if not set(gpus) <= set(specs()):
        return _unknown("a GPU that is given by its memory size alone has no known speed")
    if not works:
        return _unknown("kernels are recorded from the second step on, and none were recorded")
    busy = max(device.busy_share or 0.0 for device in devices)
    if busy < _LEAST_BUSY:
        return _unknown(
            f"kernels run in {100 * busy:.0f} % of it, and no program was compared that is "
            "limited by the host, copies or collectives"
            + ("" if host_launch_is_given else f"; {_describe_host(next(iter(gpus)))}")
        )
    kinds = {kind_of_step(one.columns, specs()[gpu]) for gpu in gpus for one in works}
    errors = [None if kind is None else step_errors_of(kind) for kind in kinds]
    known = [one for one in errors if one is not None]
    if len(known) < len(errors):
        return _unknown("neither this GPU nor a similar one was measured")
    return _known(typical.seconds, known)


def _describe_host(gpu: str) -> str:
    """Return the launch times that the clock assumes for the host, and their source."""
    values = values_of(coefficients_of(specs()[gpu]))
    launch, operator = (
        1e6 * values[name][0] for name in ("host.launch_seconds", "host.operator_seconds")
    )
    return (
        f"the host is assumed to take {launch:.0f} us for a launch and {operator:.0f} us more for "
        "an operator (in public traces, a launch takes a median of 4 to 10 us)"
    )


def _known(seconds: float, errors: Sequence[StepErrors]) -> StepInterval:
    widest = max(errors, key=lambda one: one.high / one.low)
    gpus = "" if widest.kind.gpu else f" ({', '.join(widest.gpus)})"
    apart = [one.apart for one in errors if one.apart is not None]
    return StepInterval(
        min(one.low for one in errors) * seconds,
        max(one.high for one in errors) * seconds,
        widest.programs,
        f"{widest.kind}{gpus}",
        max(apart) if len(apart) == len(errors) else None,
    )


def _unknown(reason: str) -> StepInterval:
    return StepInterval(None, None, 0, reason, None)
