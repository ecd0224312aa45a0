"""A table of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell: its text, and the number by which its column is sorted, for a column of numbers."""

    text: str
    number: float | None = None
    is_code: bool = False


def format_table(
    identifier: str, caption: str, titles: Sequence[str], rows: Iterable[Sequence[Cell]]
) -> str:
    """Return a table with a caption; the page's script lets a reader sort it by any column."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(map(_format_cell, row))}</tr>" for row in rows)
    if not body:
        return ""
    title = f"{identifier}-title"
    return (
        f'<div class="table" id="{identifier}" role="region" tabindex="0" '
        f'aria-labelledby="{title}"><table><caption id="{title}">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _format_cell(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.is_code:
        text = f"<code>{text}</code>" if text else ""
    if cell.number is None:
        return f"<td>{text}</td>"
    return f'<td class="number" data-number="{cell.number!r}">{text}</td>'
