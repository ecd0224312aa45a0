"""The rig that a rehearsal pretends to have: `VirtualRig` and the text that names one."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import DeviceTextError, UnknownHardwareError
from ..hardware import Spec, spec_of_key
from ..units import format_bytes, parse_bytes

# torch keeps a device's index in a signed byte, and 64 is the most CUDA's own tables hold.
MOST_DEVICES = 64

# The smallest piece the caching allocator asks of a card: below it, nothing could be allocated.
SMALLEST_CARD_BYTES = 2 * 2**20

# What a plain card is like in everything but its memory. Compute capability 8.0 is the lowest that
# has TF32, bfloat16 and flash attention, so a script takes the paths that most cards of today take.
PLAIN_CARD_KEY = "A100-80GB"

_COUNTED = re.compile(r"(\d+)\s*x\s*(.*)")
_SIZE = re.compile(r"\d+(?:\.\d+)?\s*[A-Za-z]?i?B")
_UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "anyrig.virtual")
_SIZE_UNITS = ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB", "B")


@dataclass(frozen=True)
class VirtualDevice:
    """One virtual GPU.

    Attributes:
        name: what ``torch.cuda.get_device_name`` returns: the driver's name for a known card.
        memory_bytes: what a program can use.
        capability: CUDA compute capability ``(major, minor)``.
        multiprocessors: streaming multiprocessors.
        uuid: ``"GPU-"`` and 32 hexadecimal digits in five parts; a function of name and index.
        spec: the facts of the card, or None for a plain card, which is only a size.
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    uuid: str
    spec: Spec | None

    @property
    def rates(self) -> Spec:
        """The facts by which the virtual clock runs: the card's own, or an A100's for a plain card.

        The times of a plain card therefore say nothing of any card; its bytes do.
        """
        return self.spec if self.spec is not None else spec_of_key(PLAIN_CARD_KEY)

    @property
    def key(self) -> str:
        """What names this device in the text of a rig: ``"A100-80GB"``, ``"16GiB"``."""
        return self.spec.key if self.spec is not None else _size_text(self.memory_bytes)


@dataclass(frozen=True)
class VirtualRig:
    """The GPUs a rehearsal runs on, in the order of their CUDA indices.

    ``str(rig)`` is the shortest text that `parse` turns into the same rig.
    """

    devices: tuple[VirtualDevice, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.devices) <= MOST_DEVICES:
            raise DeviceTextError(
                f"a virtual rig has 1 to {MOST_DEVICES} devices, and this one would have "
                f"{len(self.devices)}; write for example 4xA100-80GB"
            )

    @classmethod
    def parse(cls, text: str) -> VirtualRig:
        """Return the rig that `text` names, such as ``4xA100-80GB`` or ``A100-40GB+2xT4``.

        ::

            rig   := group ("+" group)*
            group := [count "x"] card
            card  := key | size
            key   := a card of anyrig.hardware: T4, A100-80GB, H100-SXM …
            size  := number unit, unit one of B kB KB MB GB TB KiB MiB GiB TiB

        Devices are numbered from left to right. A card given as a size is a *plain card*: it has
        exactly that memory and is otherwise like an A100 (compute capability 8.0, 108
        multiprocessors, its rates for the clock), since 8.0 is the lowest capability with
        bfloat16, TF32 and flash attention.

        Raises:
            DeviceTextError: the text does not follow the grammar, or names no or too many devices.
            UnknownHardwareError: no card has that key (the message lists the nearest ones), or the
                card is not one that CUDA drives.
        """
        cards = list(_cards(text))
        return cls(tuple(_device(card, index) for index, card in enumerate(cards)))

    def __str__(self) -> str:
        runs = [
            (key, len(list(run))) for key, run in itertools.groupby(d.key for d in self.devices)
        ]
        return "+".join(key if count == 1 else f"{count}x{key}" for key, count in runs)


def _cards(text: str) -> Iterator[str | int]:
    """Yield each device of `text` as the key of its card, or as the bytes of a plain one."""
    for group in text.split("+"):
        count, card = _group(group.strip(), text)
        yield from itertools.repeat(_card(card), count)


def _group(group: str, text: str) -> tuple[int, str]:
    counted = _COUNTED.fullmatch(group)
    count, card = (int(counted[1]), counted[2]) if counted is not None else (1, group)
    if not card:
        raise DeviceTextError(
            f"the rig {text!r} has a part that names no card; write cards joined by '+', each with "
            "a count if there are several: A100-40GB+2xT4, 4xA100-80GB or 2x16GiB"
        )
    if not 1 <= count <= MOST_DEVICES:
        raise DeviceTextError(
            f"the rig {text!r} asks for {count} times {card}; a virtual rig has 1 to "
            f"{MOST_DEVICES} devices"
        )
    return count, card


def _card(card: str) -> str | int:
    if card.isdecimal():
        raise DeviceTextError(
            f"{card!r} is neither a card nor a size; write {card}GiB for a plain card of that size"
        )
    if _SIZE.fullmatch(card) is None:
        return card
    try:
        memory_bytes = parse_bytes(card)
    except ValueError as error:
        raise DeviceTextError(str(error)) from None
    if memory_bytes < SMALLEST_CARD_BYTES:
        raise DeviceTextError(
            f"a plain card of {card} could hold nothing: CUDA's allocator asks a card for "
            f"{format_bytes(SMALLEST_CARD_BYTES)} at least; write for example 16GiB"
        )
    return memory_bytes


def _device(card: str | int, index: int) -> VirtualDevice:
    if isinstance(card, int):
        like = spec_of_key(PLAIN_CARD_KEY)
        name, memory_bytes, spec = f"Virtual GPU {_size_text(card)}", card, None
    else:
        like = spec = spec_of_key(card)
        name, memory_bytes = spec.names[0], spec.memory_bytes
    if like.capability is None:
        raise UnknownHardwareError(
            f"{card} is not a CUDA card, and virtual GPUs stand for CUDA cards only; for its "
            f"memory alone, write {_size_text(like.memory_bytes)}"
        )
    return VirtualDevice(
        name=name,
        memory_bytes=memory_bytes,
        capability=like.capability,
        multiprocessors=like.multiprocessors,
        uuid=f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{index}:{name}')}",
        spec=spec,
    )


def _size_text(memory_bytes: int) -> str:
    """Return the shortest whole number of a unit that is exactly `memory_bytes`."""
    whole = [(memory_bytes // parse_bytes(f"1{unit}"), unit) for unit in _SIZE_UNITS]
    exact = [(n, unit) for n, unit in whole if n * parse_bytes(f"1{unit}") == memory_bytes]
    count, unit = min(exact, key=lambda pair: pair[0])
    return f"{count}{unit}"
