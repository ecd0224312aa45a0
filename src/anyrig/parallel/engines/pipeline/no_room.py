"""The error for blocks that do not fit the devices."""

from __future__ import annotations

from ....errors import SpreadError
from ....units import format_bytes
from .partition_problem import Problem

_MOST_DEVICES = 1024


def explain_no_room(problem: Problem) -> SpreadError:
    """Return the error for blocks that do not fit the devices in any division.

    The error names the missing bytes, and how many devices like the largest would suffice.
    """
    largest = max(range(len(problem.devices)), key=lambda d: problem.memory[d])
    room, count = problem.memory[largest], len(problem.blocks)
    fewest = problem.in_flight(0)
    for block in range(count):
        size = problem.stage_bytes(block, block + 1, fewest)
        if size > room:
            parts = _list_parts(problem, block, block + 1, fewest)
            return SpreadError(
                f"block {block} needs {format_bytes(size)}{parts}, and the largest device, "
                f"{problem.devices[largest].name}, has room for {format_bytes(int(room))}: "
                f"{format_bytes(size - int(room))} are missing. A block cannot be divided further; "
                "use smaller micro-batches, recompute activations, or a larger device"
            )
    needed = problem.stage_bytes(0, count, fewest)
    offered = int(sum(problem.memory))
    missing = max(needed - offered, _count_left_over(problem))
    parts = _list_parts(problem, 0, count, fewest)
    left_free = missing - (needed - offered)
    unused = f", of which whole blocks leave {format_bytes(left_free)} free" if left_free else ""
    number = _count_devices(problem, largest)
    device = problem.devices[largest].name
    remedy = (
        f"{number} devices like {device} with {format_bytes(int(room))} would do"
        if number
        else f"no number of devices like {device} would do, because earlier stages hold more "
        "micro-batches; use smaller or fewer micro-batches, or recompute activations"
    )
    return SpreadError(
        f"the blocks need {format_bytes(needed)} or more{parts}, "
        f"and do not fit the {len(problem.devices)} devices with {format_bytes(offered)}"
        f"{unused}: {format_bytes(missing)} are missing; {remedy}"
    )


def _list_parts(problem: Problem, start: int, end: int, held: int) -> str:
    """Return what the bytes of blocks are for, in parentheses; nothing for parameters alone."""
    blocks = problem.blocks[start:end]
    parts = {
        "parameters and buffers": sum(block.parameter_bytes for block in blocks),
        "gradients": sum(block.training_bytes for block in blocks),
        "activations": held * sum(block.activation_bytes for block in blocks),
    }
    listed = [f"{format_bytes(size)} of {what}" for what, size in parts.items() if size]
    return f" ({', '.join(listed)})" if len(listed) > 1 else ""


def _count_left_over(problem: Problem) -> int:
    """Return the bytes of the blocks that remain when each device takes what it can."""
    end, most = len(problem.blocks), len(problem.devices) - 1
    for later, device in enumerate(reversed(range(len(problem.devices)))):
        end = problem.earliest_start(device, end, later, float("inf"))
    return problem.stage_bytes(0, end, problem.in_flight(most))


def _count_devices(problem: Problem, device: int) -> int | None:
    """Return the smallest number of equal devices that has room; None if none has."""
    for number in range(1, min(len(problem.blocks), _MOST_DEVICES) + 1):
        left = len(problem.blocks)
        for later in range(number):
            left = problem.earliest_start(device, left, later, float("inf"))
        if left == 0:
            return number
    return None
