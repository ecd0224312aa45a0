"""The data that the scripts of a page read: a header in JSON and columns, compressed.

::

    4 bytes            the length of the header, lowest byte first
    the header         texts, tracks, steps, and where each column lies
    the columns        as `columns.pack` makes them, one after the other

`assets/decode.js` reads it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .columns import Column, pack
from .kinds import KINDS, LABELS
from .lanes import Lane
from .merging import choose_limit_ns, merge_short
from .totals import Total

MOST_BYTES = 1_400_000  # compressed; base64 makes a third more of it
_MOST_INTERVALS = 1_000_000  # what a browser draws at 60 frames a second, about


@dataclass(frozen=True)
class Payload:
    """What the scripts read, as text for an element of the page.

    Attributes:
        text: base64 of the compressed data.
        intervals: the number of intervals in the facts.
        shown: the number of intervals in `text`.
        limit_seconds: neighbours shorter than this were merged, or 0.
    """

    text: str
    intervals: int
    shown: int
    limit_seconds: float


def make_payload(
    facts: Mapping[str, Any],
    lanes: Sequence[Lane],
    totals: Sequence[Total],
    origin_seconds: float,
) -> Payload:
    """Return the data of the page, of at most `MOST_BYTES` if merging intervals achieves that."""
    intervals = sum(map(len, lanes))
    others = _Others(facts, totals, origin_seconds)
    limit = choose_limit_ns(lanes, _MOST_INTERVALS) if intervals > _MOST_INTERVALS else 0
    while True:
        merged = [merge_short(lane, limit) for lane in lanes] if limit else lanes
        shown = sum(map(len, merged))
        note = {"intervals": intervals, "shown": shown, "limit_ns": limit} if limit else None
        data = _compress({**others.header, "merged": note}, {**_columns(merged), **others.columns})
        if len(data) <= MOST_BYTES or shown <= 1000:
            return Payload(base64.b64encode(data).decode(), intervals, shown, limit / 1e9)
        enough = shown * MOST_BYTES // len(data) * 9 // 10
        limit = max(2 * limit, choose_limit_ns(lanes, enough))


class _Others:
    """The parts of the data that merging does not change."""

    def __init__(
        self, facts: Mapping[str, Any], totals: Sequence[Total], origin_seconds: float
    ) -> None:
        def nanoseconds(seconds: float) -> int:
            return round((seconds - origin_seconds) * 1e9)

        steps = facts["steps"]
        path = [segment for step in steps for segment in step["path"]]
        typical_step = facts["typical_step"]
        self.columns: dict[str, Column] = {
            "path_ns": pack([round(segment["seconds"] * 1e9) for segment in path]),
            "path_kind": pack([KINDS.index(segment["kind"]) for segment in path]),
            **{
                f"path_{name}": pack([_or_zero(segment[name]) for segment in path])
                for name in ("track", "name", "module", "line")
            },
            "total_ns": pack([round(total.seconds * 1e9) for total in totals]),
            "total_typical_ns": pack([round(total.typical_seconds * 1e9) for total in totals]),
            "total_count": pack([total.count for total in totals]),
            "total_kind": pack([KINDS.index(total.kind) for total in totals]),
            "total_name": pack([total.name + 1 for total in totals]),
            "total_module": pack([total.module + 1 for total in totals]),
            "total_line": pack([total.line + 1 for total in totals]),
        }
        self.header: dict[str, Any] = {
            "texts": facts["texts"],
            "tracks": facts["tracks"],
            "kinds": [{"name": kind, "label": LABELS[kind]} for kind in KINDS],
            "steps": [
                {
                    "number": step["number"],
                    "is_first": step["is_first"],
                    "begin_ns": nanoseconds(step["begin_seconds"]),
                    "end_ns": nanoseconds(step["end_seconds"]),
                    "samples": step.get("samples"),
                    "waits": step.get("waits"),
                    "path_length": len(step["path"]),
                }
                for step in steps
            ],
            "typical_steps": typical_step["of_steps"] if typical_step else [],
        }


def _columns(lanes: Sequence[Lane]) -> dict[str, Column]:
    """Return the columns of all lanes, one lane after the other."""

    def of_all(name: str, plus: int = 0) -> Column:
        return pack([value + plus for lane in lanes for value in getattr(lane, name)])

    pauses = []  # between the end of an interval and the start of the next in its lane
    seconds = []
    for lane in lanes:
        end = 0
        for begin, next_end in zip(lane.begin_ns, lane.end_ns, strict=True):
            pauses.append(begin - end)
            seconds.append(next_end - begin)
            end = next_end
    return {
        "lane_track": pack([lane.track for lane in lanes]),
        "lane_length": pack([len(lane) for lane in lanes]),
        "pause_ns": pack(pauses),
        "duration_ns": pack(seconds),
        "gap_ns": of_all("gap_ns"),
        "kind": of_all("kind"),
        "name": of_all("name", 1),
        "module": of_all("module", 1),
        "line": of_all("line", 1),
        "bytes": of_all("bytes", 1),
        "flow": of_all("flow", 1),
        "count": of_all("count"),
    }


def _compress(header: Mapping[str, Any], columns: Mapping[str, Column]) -> bytes:
    places, offset = {}, 0
    for name, column in columns.items():
        places[name] = [offset, column.width, column.length]
        offset += len(column.planes)
    text = json.dumps({**header, "columns": places}, separators=(",", ":")).encode()
    planes = b"".join(column.planes for column in columns.values())
    return zlib.compress(len(text).to_bytes(4, "little") + text + planes, level=9)


def _or_zero(index: int | None) -> int:
    return 0 if index is None else index + 1
