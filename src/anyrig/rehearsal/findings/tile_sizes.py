"""R11: layer sizes just above a multiple of the tiles in which products are computed.

::

    1032 columns in tiles of 128:  |128|128|128|128|128|128|128|128|8|    the ninth costs as
                                                                          much as the others

The saving: the cost model's time with the size rounded down to a multiple of the tile, for all
products that have it. A size is one of a layer if the optimizer has a matrix with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .kernel_works import Work
from .replaced import line_of_saving, replace_works

CODE = "R11"

_PRODUCT = 1  # `Family` in csrc/time/work.h
_SIZES = ("m", "n", "k")
_TILE = 64
# A size is rounded down by at most this fraction: more would make it a different model.
_MOST_ROUNDED = 0.05


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the size whose rounding would make the steps shortest."""
    best: tuple[float, int, int, dict[int, float]] | None = None
    for size in sorted(_layer_sizes(analysis)):
        rounded = _TILE * (size // _TILE)
        if rounded == size or size - rounded > _MOST_ROUNDED * size:
            continue
        seconds = replace_works(
            analysis,
            lambda _, work, a=size, b=rounded: _with_size(work, a, b),  # type: ignore[misc]
        )
        saved = analysis.saving(Change(seconds=seconds))
        if best is None or saved > best[0]:
            best = (saved, size, rounded, seconds)
    if best is None or not analysis.matters(best[0]):
        return
    saved, size, rounded, seconds = best
    yield Finding(
        CODE,
        "A layer is slightly larger than the tiles of its products",
        line_of_saving(analysis, seconds),
        saved,
        None,
        f"Products are computed in tiles, and the size {size} fills its last ones only in part.",
        f"Use {rounded} instead of {size}; or {rounded + _TILE}, which takes little longer than "
        f"{size}.",
    )


def _layer_sizes(analysis: Analysis) -> set[int]:
    """Return the sizes of layers that occur in matrix products."""
    found: set[int] = set()
    for kernel in analysis.kernels.values():
        for work in kernel.works:
            if work["family"] == _PRODUCT:
                found |= _sizes(work)
    return {size for size in found & analysis.layer_sizes if size > _TILE}


def _sizes(work: Work) -> set[int]:
    return {int(work[name]) for name in _SIZES}


def _with_size(work: Work, size: int, rounded: int) -> Work | None:
    """Return a product with another size; its bytes shrink in proportion to its matrices."""
    if work["family"] != _PRODUCT or size not in _sizes(work):
        return None
    new = {**work, **{name: float(rounded) for name in _SIZES if work[name] == size}}
    before, after = _elements(work), _elements(new)
    for name in ("bytes_read", "bytes_written", "footprint_bytes"):
        new[name] = work[name] * after / before
    new["flops"] = (
        work["flops"] * (new["m"] * new["n"] * new["k"]) / (work["m"] * work["n"] * work["k"])
    )
    return new


def _elements(work: Work) -> float:
    m, n, k = (work[name] for name in _SIZES)
    return m * n + n * k + k * m
