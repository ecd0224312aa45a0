"""R14: free memory for a batch twice as large, which would take less than twice as long.

The saving: the time of a step, less half of the time that the cost model gives a step with twice
the batch. In a matrix product, the size that no layer has is the batch's; if there is no such size,
or several, no saving is computed. Kernels for lists of tensors, such as an optimizer's, do not
grow. If launches limit the step, R08 is reported instead. Memory counts as enough if all that is in
use at the peak fits twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ...units import format_bytes
from ...virtual.record_reading import IntervalKind
from ..facts import Finding
from . import small_kernels
from .analysis import Analysis
from .change import Change
from .kernel_works import Work

CODE = "R14"

# `Family` and `Access` in csrc/time/work.h.
_PRODUCT, _CONVOLUTION, _ATTENTION = 1, 2, 3
_REDUCTION, _LIST = 1, 13
# `ConvolutionPass`: the pass that writes the gradient of the weight.
_BY_WEIGHT = 2
_SIZES = ("m", "n", "k")


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if samples would take less time in a batch twice as large."""
    if len(analysis.gpus) != 1 or not analysis.kernels or len(analysis.devices) != 1:
        return
    (device,) = analysis.devices
    if 2 * (device.peak.total_bytes or 0) > device.capacity_bytes or any(
        small_kernels.find(analysis)
    ):
        return
    works: dict[int, list[Work]] = {}
    known: dict[int, list[Work]] = {}  # by the identity of the kernel, which all steps share
    for place, kernel in analysis.kernels.items():
        if id(kernel) not in known:
            doubled = [_doubled(work, analysis.layer_sizes) for work in kernel.works]
            if any(work is None for work in doubled):
                return
            known[id(kernel)] = [work for work in doubled if work is not None]
        works[place] = known[id(kernel)]
    kernels = analysis.repriced(works)
    copies = {
        place: 2 * analysis.schedule.tasks[place].seconds
        for place in analysis.of_kind(IntervalKind.COPY)
    }
    twice = analysis.step_seconds - analysis.saving(Change(seconds={**copies, **kernels}))
    saved = analysis.step_seconds - twice / 2
    if not analysis.matters(saved):
        return
    line = _line_of_gain(analysis, kernels)
    gain = "" if line is None else f"; the kernels of {line} gain most"
    yield Finding(
        CODE,
        "Memory would allow a larger batch",
        None,  # no line of a kernel is the one to change
        saved,
        None,
        f"{format_bytes(device.peak.headroom_bytes)} are free at the peak. A batch twice as large "
        f"takes {twice / analysis.step_seconds:.2f} times as long{gain}.",
        f"{_remedy(analysis.samples)}, and adapt the learning rate. The saving is for as many "
        "samples as now.",
    )


def _remedy(samples: int | None) -> str:
    """Return what to write where the program sets its batch size."""
    if samples is None:
        return "Where the program makes its batches, make them twice as large"
    return (
        f"Where the program makes its DataLoader, double batch_size (a step has {samples} samples, "
        f"and would have {2 * samples})"
    )


def _line_of_gain(analysis: Analysis, kernels: Mapping[int, float]) -> str | None:
    gains: dict[str | None, float] = defaultdict(float)
    for place, seconds in kernels.items():
        gains[analysis.line(place)] += 2 * analysis.schedule.tasks[place].seconds - seconds
    return max(gains, key=gains.__getitem__, default=None)


def _doubled(work: Work, layer_sizes: frozenset[int]) -> Work | None:
    """Return the work for twice the batch; None if that cannot be determined."""
    if work["family"] == _PRODUCT:
        return _doubled_product(work, layer_sizes)
    if work["family"] == _CONVOLUTION:
        return _doubled_convolution(work)
    if work["family"] == _ATTENTION:
        return _scaled(work, "batch", read=2, written=2)
    if work["access"] == _LIST:
        return work
    # A reduction over the batch, such as that of a bias's gradient, writes no more than before.
    is_small = work["access"] == _REDUCTION and 8 * work["bytes_written"] < work["bytes_read"]
    return _scaled(work, "rows", read=2, written=1 if is_small else 2)


def _doubled_product(work: Work, layer_sizes: frozenset[int]) -> Work | None:
    if work["batch"] > 1:
        return _scaled(work, "batch", read=2, written=2)
    of_batch = [name for name in _SIZES if int(work[name]) not in layer_sizes]
    if len(of_batch) != 1:
        return None
    (name,) = of_batch
    m, n, k = (work[size] for size in _SIZES)
    operands = m * k + n * k
    grown = operands + (n * k if name == "n" else m * k if name == "m" else operands)
    return _scaled(work, name, read=grown / operands, written=1 if name == "k" else 2)


def _doubled_convolution(work: Work) -> Work:
    weight = (
        work["element_bytes"]
        * work["in_channels"]
        * work["out_channels"]
        / work["groups"]
        * work["kernel_d"]
        * work["kernel_h"]
        * work["kernel_w"]
    )
    if work["pass"] == _BY_WEIGHT:
        return _scaled(work, "batch", read=2, written=1)
    read = 2 - min(1.0, weight / work["bytes_read"]) if work["bytes_read"] else 2
    return _scaled(work, "batch", read=read, written=2)


def _scaled(work: Work, size: str, *, read: float, written: float) -> Work:
    """Return the work with `size` doubled, and the bytes multiplied by these factors."""
    new = {
        **work,
        size: 2 * work[size],
        "flops": 2 * work["flops"],
        "bytes_read": read * work["bytes_read"],
        "bytes_written": written * work["bytes_written"],
    }
    before = work["bytes_read"] + work["bytes_written"]
    after = new["bytes_read"] + new["bytes_written"]
    new["footprint_bytes"] = work["footprint_bytes"] * (after / before if before else 1)
    return new
