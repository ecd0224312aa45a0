"""R13: activation checkpoints in a program whose activations would fit.

A recomputation is a sequence of calls in a backward pass that is also a sequence of calls of the
forward pass, with the same operators, modules and sizes. It must begin or end with an operator that
only forward passes have, since a product of a backward pass can look like one of the forward pass.

The saving: the recomputed kernels and their launches are taken out of the schedule. Keeping their
results needs as much memory as they write, which must be free at the peak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ...units import format_bytes
from ...virtual.record_reading import IntervalKind
from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .host_copies import line_of_most

CODE = "R13"

_FORWARD_ONLY = frozenset(
    f"aten::{name}"
    for name in (
        "addmm", "baddbmm", "convolution", "cudnn_convolution", "embedding", "gelu", "hardswish",
        "leaky_relu", "mish", "native_batch_norm", "cudnn_batch_norm", "native_dropout",
        "native_group_norm", "native_layer_norm", "relu", "relu_", "sigmoid", "silu", "softplus",
        "tanh", "_softmax", "_log_softmax", "_fused_rms_norm",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
)  # fmt: skip

_Key = tuple[object, ...]


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter without recomputing, and memory allows it."""
    again: dict[int, int] = {}
    sizes = _number_sizes(analysis)
    for (_, step), (forward, backward) in _calls(analysis).items():
        if step >= 0:
            again |= _recomputed(analysis, sizes, forward, backward)
    if not again:
        return
    needed = _bytes_written(analysis, again) / analysis.schedule.steps
    free = min((device.peak.headroom_bytes for device in analysis.devices), default=0)
    if needed > free:
        return
    launches = {analysis.schedule.tasks[place].launch for place in again}
    removed = frozenset([*again, *(one for one in launches if one is not None)])
    saved = analysis.saving(Change(removed=removed))
    if not analysis.matters(saved):
        return
    yield Finding(
        CODE,
        "Activations are computed twice, though they would fit",
        line_of_most(analysis, again.values()),
        saved,
        None,
        f"The backward pass computes {len(again) // analysis.schedule.steps} calls of the forward "
        f"pass again. Keeping their results takes about {format_bytes(int(needed))}, and "
        f"{format_bytes(free)} are free at the peak.",
        "Remove the activation checkpoints, or use fewer of them.",
    )


def _calls(analysis: Analysis) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """Return the kernels of forward and of backward passes in launch order, by rank and step."""
    found: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    tasks, tracks = analysis.schedule.tasks, analysis.record.tracks
    launched = [
        (launch, place)
        for place in analysis.of_kind(IntervalKind.KERNEL)
        if place in analysis.kernels and (launch := tasks[place].launch) is not None
    ]
    for launch, place in sorted(launched):
        track = tracks[tasks[launch].track]
        found[track.rank, tasks[place].step][track.in_backward].append(place)
    return dict(found)


def _recomputed(
    analysis: Analysis, sizes: Mapping[int, int], forward: Sequence[int], backward: Sequence[int]
) -> dict[int, int]:
    """Return the kernels of a backward pass that recompute, with what they recompute."""
    keys = [_key(analysis, sizes, place) for place in forward]
    at: dict[_Key, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        at[key].append(i)
    keys_of_backward = [_key(analysis, sizes, place) for place in backward]
    found: dict[int, int] = {}
    j = 0
    while j < len(backward):
        best = max(
            ((_run(keys, keys_of_backward, i, j), i) for i in at.get(keys_of_backward[j], ())),
            default=(0, 0),
        )
        count, i = best
        while count > 0 and analysis.name(backward[j + count - 1]) not in _FORWARD_ONLY:
            count -= 1
        found |= dict(zip(backward[j : j + count], forward[i : i + count], strict=True))
        j += max(count, 1)
    return found


def _run(forward: Sequence[_Key], backward: Sequence[_Key], i: int, j: int) -> int:
    """Return how many successive calls are the same from `i` on and from `j` on."""
    count = 0
    while (
        i + count < len(forward)
        and j + count < len(backward)
        and forward[i + count] == backward[j + count]
    ):
        count += 1
    return count


def _key(analysis: Analysis, sizes: Mapping[int, int], place: int) -> _Key:
    size = sizes[id(analysis.kernels[place])]
    return analysis.device(place), analysis.name(place), analysis.module(place), size


def _number_sizes(analysis: Analysis) -> dict[int, int]:
    """Return a number for each kernel, by the kernel's `id`: equal for kernels with equal works."""
    kernels = {id(kernel): kernel for kernel in analysis.kernels.values()}
    numbers: dict[_Key, int] = {}
    return {
        key: numbers.setdefault(
            tuple(tuple(sorted(work.items())) for work in kernel.works), len(numbers)
        )
        for key, kernel in kernels.items()
    }


def _bytes_written(analysis: Analysis, places: dict[int, int]) -> float:
    return sum(work["bytes_written"] for place in places for work in analysis.kernels[place].works)
