"""Parse `CUDA_VISIBLE_DEVICES` as CUDA does.

CUDA reads the variable once, when it starts. Its indices follow the driver's order, fastest GPU
first unless `CUDA_DEVICE_ORDER` is ``PCI_BUS_ID``, while nvidia-smi's follow the PCI bus. So anyrig
writes UUIDs, which are unambiguous.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"

# strtoul reads the start of an entry: "1gpu2" is 1, and "0x10" is 0.
_NUMBER = re.compile(r"[+-]?[0-9]+")
UUID_PREFIXES = ("GPU-", "MIG-")
_ALIKE = 0.92  # the similarity of CUDA_VISIBLE_DEVICE is 0.97, of CUDA_VISIBLE_DEVICES_OLD 0.91


_Entry = TypeVar("_Entry", int, str)


class VisibilityWarning(UserWarning):
    """A variable looks like `CUDA_VISIBLE_DEVICES`, but CUDA does not read it."""


@dataclass(frozen=True)
class Visibility:
    """The meaning of `CUDA_VISIBLE_DEVICES` to CUDA.

    Attributes:
        text: the variable's value; None if it is not set.
        indices: the indices that the text names, in the driver's order; None if it has none.
        uuids: the UUIDs that the text names, each whole or a prefix; None if it has none.
        reason: how CUDA reads the text. CUDA ends the list at a device that the machine does not
            have; `select` returns the rest.
    """

    text: str | None
    indices: tuple[int, ...] | None
    uuids: tuple[str, ...] | None
    reason: str

    def __str__(self) -> str:
        return self.reason

    def select(self, uuids: Sequence[str]) -> tuple[str, ...]:
        """Return the visible devices of a machine, in CUDA's order.

        Args:
            uuids: the UUIDs of all devices of the machine, in the driver's order (in any order
                unless the text contains indices).
        """
        if self.text is None:
            return tuple(uuids)
        if self.uuids is not None:
            named = [[uuid for uuid in uuids if uuid.startswith(prefix)] for prefix in self.uuids]
            # A prefix of no device, or of several, ends the list.
            shown = [found[0] for found in takewhile(lambda found: len(found) == 1, named)]
        else:
            valid = takewhile(lambda index: index < len(uuids), self.indices or ())
            shown = [uuids[index] for index in valid]
        return tuple(shown) if len(set(shown)) == len(shown) else ()


def read_visibility(environ: Mapping[str, str] = os.environ) -> Visibility:
    """Parse the `CUDA_VISIBLE_DEVICES` of an environment; see `parse_visibility`.

    Warn about each variable whose name looks like a misspelling.
    """
    for name in _misspellings(environ):
        # Python shows a warning once for each line, so it is attributed to this one.
        warnings.warn(
            f"{name}={environ[name]!r} is set, but CUDA does not read it: the variable is "
            f"called {VARIABLE}",
            VisibilityWarning,
            stacklevel=1,
        )
    return parse_visibility(environ.get(VARIABLE), order=environ.get(ORDER_VARIABLE))


def parse_visibility(text: str | None, *, order: str | None = None) -> Visibility:
    """Parse a value of `CUDA_VISIBLE_DEVICES` as CUDA does.

    PyTorch reads the value in the same way until CUDA has started.

    If the variable is not set, all devices are visible; if it is empty, none. The first entry
    decides whether the list contains indices, GPUs or MIG instances. The list ends at the first
    entry of another form. An entry that appears twice hides every device.

    Args:
        text: the value; None if the variable is not set.
        order: the value of `CUDA_DEVICE_ORDER`, for the explanation.
    """
    if text is None:
        return Visibility(None, None, None, f"{VARIABLE} is not set: every device is visible")
    if not text.strip():
        return Visibility(text, (), None, f"{VARIABLE} is empty: no device is visible")
    entries = text.split(",")
    for prefix in UUID_PREFIXES:
        if text.startswith(prefix):
            uuids, oddity = _read_list(entries, lambda entry: _read_uuid(entry, prefix))  # noqa: B023
            return Visibility(text, None, uuids, _words(text, uuids, oddity))
    indices, oddity = _read_list(entries, _read_index)
    return Visibility(text, indices, None, _words(text, indices, oddity or _words_of_order(order)))


def _read_list(
    entries: list[str], read: Callable[[str], _Entry | None]
) -> tuple[tuple[_Entry, ...], str]:
    """Return the valid first entries of the list, and what is wrong with the list, or ""."""
    values: list[_Entry] = []
    for position, entry in enumerate(entries):
        value = read(entry)
        if value is None:
            unread = ",".join(entries[position + 1 :])
            return tuple(values), f"{entry!r} ends the list" + (
                f", and {unread!r} is not read" if unread else ""
            )
        if value in values:
            return (), f"{entry!r} appears twice, which hides every device"
        values.append(value)
    return tuple(values), ""


def _read_index(entry: str) -> int | None:
    match = _NUMBER.match(entry.strip())
    index = -1 if match is None else int(match[0])
    return index if index >= 0 else None


def _read_uuid(entry: str, prefix: str) -> str | None:
    return entry if entry.startswith(prefix) else None


def _words(text: str, values: tuple[int, ...] | tuple[str, ...], oddity: str) -> str:
    # `select` checks whether the machine has these devices.
    named = f"names {', '.join(map(str, values))}" if values else "no device is visible"
    return f"{VARIABLE}={text!r}: {named}" + (f"; {oddity}" if oddity else "")


def _words_of_order(order: str | None) -> str:
    if order == "PCI_BUS_ID":
        return f"indices along the PCI bus, as set by {ORDER_VARIABLE} and used by nvidia-smi"
    return (
        f"indices with the fastest GPU first, unlike nvidia-smi's, since {ORDER_VARIABLE} is "
        + ("not set" if order is None else repr(order))
    )


def _misspellings(environ: Mapping[str, str]) -> list[str]:
    by_upper = {name.upper(): name for name in environ if name != VARIABLE}
    close = difflib.get_close_matches(VARIABLE, by_upper, n=3, cutoff=_ALIKE)
    words = set(VARIABLE.split("_"))
    swapped = [upper for upper in by_upper if set(upper.split("_")) == words]
    return [by_upper[upper] for upper in dict.fromkeys([*close, *swapped])]
