"""The kind of a step, which decides how far its predicted time may be off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..hardware import (
    CoefficientGroup,
    Known,
    Spec,
    StepKind,
    coefficients_of,
    gpus_with_measured_steps,
)
from ..virtual.gpu_facts import on_matrix_units

# `Family` in csrc/time/work.h.
_MEMORY, _PRODUCT, _CONVOLUTION, _ATTENTION = range(4)
_FAMILIES = ("memory", "product", "convolution", "attention")
_ON_UNITS = {True: "tensor", False: "simt"}

# `Access` in csrc/time/work.h: those of backward passes.
_BACKWARD_ACCESSES = frozenset({3, 5, 7, 15})

# What is known of a step is the least that is known of kernels which take this share of its time.
_MATTERS = 0.25
# The GPUs behind the coefficients `otherwise` are of this architecture.
_OTHERWISE = "ampere"


def kind_of_step(works: Mapping[str, Sequence[float]], spec: Spec) -> StepKind | None:
    """Return the kind of a step on one GPU; None if its works take no time.

    Args:
        works: the works of the step: the fields of ``Work`` (csrc/time/work.h) as columns of equal
            length, and ``seconds``.
        spec: the facts of the GPU.
    """
    units = on_matrix_units(spec)
    seconds: dict[tuple[int, bool], float] = {}
    for family, precision, took in zip(
        works["family"], works["precision"], works["seconds"], strict=True
    ):
        key = int(family), int(family) != _MEMORY and units[int(precision)]
        seconds[key] = seconds.get(key, 0.0) + took
    whole = sum(seconds.values())
    if not whole > 0:
        return None
    arithmetic = {key: took for key, took in seconds.items() if key[0] != _MEMORY}
    on_units = sum(took for (_, is_on_units), took in arithmetic.items() if is_on_units)
    convolves = sum(took for (family, _), took in arithmetic.items() if family == _CONVOLUTION)
    matter = [key for key, took in seconds.items() if took >= _MATTERS * whole]
    return StepKind(
        _least_known(spec, matter or [max(seconds, key=seconds.__getitem__)]),
        on_units > 0.5 * sum(arithmetic.values()),
        convolves > 0.5 * sum(arithmetic.values()),
        _has_backward_passes(works),
        spec.key,
    )


def _has_backward_passes(works: Mapping[str, Sequence[float]]) -> bool:
    passes = any(works["pass"]) or any(works["backward"])
    memory = zip(works["family"], works["access"], strict=True)
    return passes or any(
        family == _MEMORY and access in _BACKWARD_ACCESSES for family, access in memory
    )


def _least_known(spec: Spec, kernels: Sequence[tuple[int, bool]]) -> Known:
    groups = {group.group: group for group in coefficients_of(spec)}
    names = {
        _FAMILIES[family]
        if family in (_MEMORY, _ATTENTION)
        else f"{_FAMILIES[family]}.{_ON_UNITS[is_on_units]}"
        for family, is_on_units in kernels
    }
    found = {_known_of(groups[name], spec) for name in names}
    return next(known for known in reversed(Known) if known in found)


def _known_of(group: CoefficientGroup, spec: Spec) -> Known:
    was_fitted = spec.key in gpus_with_measured_steps() and not group.group.endswith(".simt")
    if group.of == spec.key and was_fitted:
        return Known.STEPS
    if spec.key in group.error_percent:
        return Known.KERNELS
    if group.of != "otherwise" or spec.architecture == _OTHERWISE:
        return Known.RELATIVES
    return Known.NOTHING
