"""Kernels, copies and collectives of each stream, from the trace of PyTorch's profiler."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ...virtual.record_reading import IntervalKind, RecordedTrack
from ..process_record import SHARED_FLOWS
from .host_timeline import Launch
from .record_builder import RecordBuilder
from .trace_file import Event

_COLLECTIVE = "Collective name"
_COLLECTIVE_KERNELS = ("nccl", "rccl", "mscclKernel")
# Both ranks of such a message count on their own, so their numbers differ.
_MESSAGES = frozenset({"send", "recv"})
# The bytes of an element, by the end of the name of its type.
_ITEM_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "Float8"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_LONGEST_NAME = 80
_ANONYMOUS = "(anonymous namespace)::"
_CUTLASS = re.compile(r"\bKernel2?<([\w:]+)")


@dataclass(frozen=True)
class Group:
    """The ranks of this program, as far as the nodes of a collective depend on it.

    Attributes:
        local_world_size: the ranks of a node.
    """

    local_world_size: int = 1

    def count_nodes(self, collective: Mapping[str, Any]) -> int:
        """Return on how many nodes the ranks of a collective are, by its arguments."""
        ranks = [
            int(rank) for rank in re.findall(r"\d+", str(collective.get("Process Group Ranks")))
        ]
        # PyTorch leaves out the middle of a long list.
        least = -(-int(collective.get("Group size", 0)) // self.local_world_size)
        return max(least, len({rank // self.local_world_size for rank in ranks}), 1)


def add_works(
    builder: RecordBuilder,
    works: Sequence[Event],
    launches: Mapping[int, Launch],
    step_moments: Sequence[int],
    group: Group,
) -> None:
    """Add the intervals of all works.

    Args:
        builder: takes the intervals.
        works: kernels, copies and settings of memory, in the order of time.
        launches: the launches by correlation.
        step_moments: when the host ended each step, in nanoseconds.
        group: the ranks of the program.
    """
    numbers: Counter[str] = Counter()
    for work in works:
        launch = launches.get(work.correlation)
        operator = None if launch is None else launch.operator
        kind, name, moved, flow, nodes = _describe(work, operator), "", -1.0, -1, 0
        if kind == IntervalKind.COLLECTIVE:
            name = operator or short_kernel_name(work.name)
            moved = bytes_of_collective(work.args)
            nodes = group.count_nodes(work.args)
            moment = work.begin_ns if launch is None else launch.begin_ns
            key = _collective_key(work.args, bisect_right(step_moments, moment))
            if key is not None:
                numbers[key] += 1
                flow = _shared_number(f"{key} {numbers[key]}")
        else:
            short = short_kernel_name(work.name) if work.category == "kernel" else work.name
            name = short if operator in (None, short) else f"{operator}: {short}"
            moved = float(work.args.get("bytes", -1))
        device, stream = work.place
        builder.add(
            RecordedTrack(device, stream, False),
            work.begin_ns,
            work.end_ns,
            kind,
            name,
            module=None if launch is None else launch.module,
            launch=-1 if launch is None else launch.interval,
            moved_bytes=moved,
            flow=flow,
            nodes=nodes,
        )


def _describe(work: Event, operator: str | None) -> IntervalKind:
    if work.category == "gpu_memcpy":
        return IntervalKind.COPY
    if _COLLECTIVE in work.args or work.name.startswith(_COLLECTIVE_KERNELS):
        return IntervalKind.COLLECTIVE
    return IntervalKind.KERNEL


def short_kernel_name(name: str) -> str:
    """Return the name of a kernel without namespaces and arguments.

    ``void at::native::vectorized_elementwise_kernel<4, …>(int, …)`` becomes
    ``vectorized_elementwise_kernel``. The kernels of CUTLASS, which are all called ``Kernel``, get
    the name of their first argument. Longer names are cut.
    """
    plain = name.replace(_ANONYMOUS, "").removeprefix("void ")
    found = _CUTLASS.search(plain)
    whole = re.split(r"[<(]", plain, maxsplit=1)[0] if found is None else found[1]
    short = whole.rpartition("::")[2].strip() or name
    return short if len(short) <= _LONGEST_NAME else f"{short[: _LONGEST_NAME - 1]}…"


def bytes_of_collective(args: Mapping[str, Any]) -> float:
    """Return the larger of the bytes that a rank gives and gets; -1 if the trace does not say."""
    kind = str(args.get("dtype", ""))
    item = _ITEM_BYTES.get(kind, 1 if kind.startswith("Float8") else None)
    counts = [args.get(f"{side} msg nelems") for side in ("In", "Out")]
    known = [int(count) for count in counts if count is not None]
    return -1.0 if item is None or not known else float(item * max(known))


def _collective_key(args: Mapping[str, Any], step: int) -> str | None:
    """Return what the ranks of a collective have in common, besides its number in the step."""
    name = args.get(_COLLECTIVE)
    if name is None or name in _MESSAGES:
        return None
    group = args.get("Process Group Name"), args.get("Process Group Ranks")
    return f"{step} {name} {group}"


def _shared_number(text: str) -> int:
    """Return a number of a flow that is the same in all ranks."""
    digest = blake2b(text.encode(), digest_size=7).digest()
    return SHARED_FLOWS + int.from_bytes(digest, "little")
