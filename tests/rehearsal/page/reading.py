"""Reads a page as a reader without scripts does, and its data as its scripts do."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any


@dataclass
class ReadPage(HTMLParser):
    """What a page has: its text outside scripts, its elements, and its scripts by their id."""

    text: str = ""
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self._inside: str | None = None

    @classmethod
    def of(cls, page: str) -> ReadPage:
        reader = cls()
        reader.feed(page)
        reader.close()
        return reader

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = (dict(attrs).get("id") or tag) if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.text += data
        else:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data

    @property
    def policy(self) -> str:
        return next(
            attributes["content"] or ""
            for tag, attributes in self.tags
            if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
        )


@dataclass
class Data:
    """The header and the columns of a page's data."""

    header: dict[str, Any]
    columns: dict[str, list[int]]

    @classmethod
    def of(cls, text: str) -> Data:
        data = zlib.decompress(base64.b64decode(text))
        start = 4 + int.from_bytes(data[:4], "little")
        header = json.loads(data[4:start])
        columns = {
            name: [
                sum(
                    data[start + offset + plane * length + row] << 8 * plane
                    for plane in range(width)
                )
                for row in range(length)
            ]
            for name, (offset, width, length) in header["columns"].items()
        }
        return cls(header, columns)

    def intervals(self) -> set[tuple[int, int, int, str | None]]:
        """The track, the begin and the end in nanoseconds, and the name of each interval."""
        found, row = set(), 0
        for track, length in zip(
            self.columns["lane_track"], self.columns["lane_length"], strict=True
        ):
            now = 0
            for _ in range(length):
                begin = now + self.columns["pause_ns"][row]
                now = begin + self.columns["duration_ns"][row]
                name = self.columns["name"][row]
                text = self.header["texts"][name - 1] if name else None
                found.add((track, begin, now, text))
                row += 1
        return found
