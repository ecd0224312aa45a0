"""The output of ``--query-gpu`` and ``--query-compute-apps``: comma-separated values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .fields import GPU_FIELDS, HOLDER_FIELDS
from .gpu import Gpu
from .refusal import Refusal

_INVALID = 2


def query_gpus(names: Sequence[str], gpus: Sequence[Gpu], style: Sequence[str]) -> str:
    """Return the fields `names` of `gpus`, one line per GPU, formatted by ``--format``.

    Raises:
        Refusal: a field is unknown, or `style` does not contain ``csv``.
    """
    _check(names, GPU_FIELDS)
    fields = [GPU_FIELDS[name] for name in names]
    rows = [[(read(gpu), unit) for unit, read in fields] for gpu in gpus]
    return _lines(names, [unit for unit, _ in fields], rows, style)


def query_holders(names: Sequence[str], gpus: Sequence[Gpu], style: Sequence[str]) -> str:
    """Return the fields `names`, one line per process that holds memory of one of `gpus`.

    Raises:
        Refusal: a field is unknown, or `style` does not contain ``csv``.
    """
    _check(names, HOLDER_FIELDS)
    fields = [HOLDER_FIELDS[name] for name in names]
    rows = [
        [(read(gpu, holder), unit) for unit, read in fields]
        for gpu in gpus
        for holder in gpu.holders()
    ]
    return _lines(names, [unit for unit, _ in fields], rows, style)


def _check(names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise Refusal(f'Field "{name}" is not a valid field to query.\n', _INVALID)


def _lines(
    names: Sequence[str],
    units: Sequence[str | None],
    rows: Iterable[Sequence[tuple[Any, str | None]]],
    style: Sequence[str],
) -> str:
    if "csv" not in style:
        raise Refusal(
            "\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.", _INVALID
        )
    with_units = "nounits" not in style
    header = [
        f"{name} [{unit}]" if unit and with_units else name
        for name, unit in zip(names, units, strict=True)
    ]
    lines = [] if "noheader" in style else [header]
    lines += [[_text(value, unit if with_units else None) for value, unit in row] for row in rows]
    return "".join(", ".join(line) + "\n" for line in lines)


def _text(value: Any, unit: str | None) -> str:
    if value is None:
        return "[N/A]"
    return f"{value} {unit}" if unit else str(value)
