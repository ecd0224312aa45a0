"""One name for all that differ only in numbers, such as those of equal layers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, zip_longest

_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")


def join_numbered(names: Iterable[str]) -> dict[str, str]:
    """Return for each name the one that it shares, in which a star stands for what differs.

    ::

        1.layers.0.up ──┐
        1.layers.1.up ──┴▶ 1.layers.*.up
        1.head ──────────▶ 1.head
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        alike[_NUMBER.sub("*", name)].append(name)
    joined: dict[str, str] = {}
    for group in alike.values():
        columns = zip(*(_NUMBER.findall(name) for name in group), strict=True)
        numbers = [column[0] if len({*column}) == 1 else "*" for column in columns]
        between = zip_longest(_NUMBER.split(group[0]), numbers, fillvalue="")
        joined |= dict.fromkeys(group, "".join(chain.from_iterable(between)))
    return joined
