"""``--query-gpu=…`` and ``--query-compute-apps=…``: values with commas between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .card import Card
from .fields import CARD_FIELDS, HOLDER_FIELDS
from .refusal import Refusal

_INVALID = 2


def query_cards(names: Sequence[str], cards: Sequence[Card], style: Sequence[str]) -> str:
    """Return a line for each card."""
    _check(names, CARD_FIELDS)
    fields = [CARD_FIELDS[name] for name in names]
    rows = [[(read(card), unit) for unit, read in fields] for card in cards]
    return _lines(names, [unit for unit, _ in fields], rows, style)


def query_holders(names: Sequence[str], cards: Sequence[Card], style: Sequence[str]) -> str:
    """Return a line for each process that holds memory of a card."""
    _check(names, HOLDER_FIELDS)
    fields = [HOLDER_FIELDS[name] for name in names]
    rows = [
        [(read(card, holder), unit) for unit, read in fields]
        for card in cards
        for holder in card.holders()
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
