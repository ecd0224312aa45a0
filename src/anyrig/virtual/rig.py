"""The rig that a rehearsal pretends to have: `VirtualRig` and the text that names one."""

from __future__ import annotations

import itertools
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..errors import DeviceTextError, UnknownHardwareError
from ..hardware import Spec, is_key, spec_of_key
from ..units import format_bytes, parse_bytes

# Of one node: torch keeps a device's index in a signed byte, and CUDA's own tables hold 64.
MOST_DEVICES = 64

# More than any rehearsal needs; a slip of the finger in a count is caught here.
MOST_NODES = 1024

# What each device has of the network between nodes, in one direction: a DGX H100 has a ConnectX-7
# of 400 Gbit/s for each GPU (NVIDIA DGX H100 data sheet).
NETWORK_BYTES_PER_SECOND = 50 * 10**9

# The smallest piece the caching allocator asks of a card: below it, nothing could be allocated.
SMALLEST_CARD_BYTES = 2 * 2**20

# Thousands of times what any GPU has; sums over a rig stay within 64 bits.
LARGEST_CARD_BYTES = 2**50

# What a plain card is like in everything but its memory. Compute capability 8.0 is the lowest that
# has TF32, bfloat16 and flash attention, so a script takes the paths that most cards of today take.
PLAIN_CARD_KEY = "A100-80GB"

# A count stands before its card or after it: 4xT4, 4*T4, T4x4.
_COUNT_FIRST = re.compile(r"(\d+)\s*[xX*]\s*(.*)")
_COUNT_LAST = re.compile(r"(.*?)\s*[xX*]\s*(\d+)")
_NODES = re.compile(r"\s*(?:(\d+)\s*[xX*]\s*)?\(([^()]*)\)\s*")
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?\s*[A-Za-z]?i?)(B|bit)/s\s*")
_BITS_PER_UNIT = {"B": 8, "bit": 1}
_SIZE = re.compile(r"\d+(?:\.\d+)?\s*[A-Za-z]?i?B", re.IGNORECASE)

# In which the names of cards are made into UUIDs.
UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "anyrig.virtual")
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
        node: the machine that it is in, counted from 0.
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    uuid: str
    spec: Spec | None = field(repr=False)
    node: int = 0

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
    """The GPUs a rehearsal runs on, node by node, in the order of their CUDA indices there.

    ``str(rig)`` is the shortest text that `parse` turns into the same rig.

    Attributes:
        devices: all devices of all nodes.
        network_bytes_per_second: what each device has of the network between nodes, in one
            direction.
    """

    devices: tuple[VirtualDevice, ...]
    network_bytes_per_second: int = NETWORK_BYTES_PER_SECOND

    def __post_init__(self) -> None:
        counts = Counter(device.node for device in self.devices)
        if not 1 <= len(counts) <= MOST_NODES:
            raise DeviceTextError(
                f"a virtual rig has 1 to {MOST_NODES} nodes, and this one would have "
                f"{len(counts)}; write for example 2x(8xH100-SXM)"
            )
        if sorted(counts) != list(range(len(counts))):
            raise ValueError(f"nodes are counted from 0, and these are {sorted(counts)}")
        largest = max(counts.values())
        if largest > MOST_DEVICES:
            raise DeviceTextError(
                f"a node of a virtual rig has 1 to {MOST_DEVICES} devices, and this one would have "
                f"{largest}; write for example 4xA100-80GB, or 2x(8xH100-SXM) for two nodes"
            )
        if self.network_bytes_per_second <= 0:
            raise DeviceTextError(
                "the network of a virtual rig needs a rate above zero; write for example @50GB/s"
            )

    @classmethod
    def parse(cls, text: str) -> VirtualRig:
        """Return the rig that `text` names, such as ``4xA100-80GB`` or ``2x(8xH100-SXM)@50GB/s``.

        ::

            rig   := (node | nodes ("+" nodes)*) ["@" rate]
            nodes := [count "x"] "(" node ")"
            node  := group ("+" group)*
            group := [count "x"] card | card "x" count
            card  := key | size
            key   := a card of anyrig.hardware: T4, A100-80GB, H100-SXM …
            size  := number unit, unit one of B kB KB MB GB TB KiB MiB GiB TiB
            rate  := size "/s", or in bits: 50GB/s, 400Gbit/s

        ``*`` stands for ``x`` as well, and the case and hyphens of a key do not matter:
        ``2*rtx4090`` is ``2xRTX-4090``. Devices are numbered from left to right.

        A card given as a size is a *plain card*: it has exactly that memory and is otherwise like
        an A100 (compute capability 8.0, 108 multiprocessors, its rates for the clock), since 8.0 is
        the lowest capability with bfloat16, TF32 and flash attention.

        Parentheses make nodes: machines that a network joins, where a process sees the devices of
        its own node alone. The rate is what each device has of the network, in one direction;
        without it 50 GB/s, which is 400 Gbit/s.

        Raises:
            DeviceTextError: the text does not follow the grammar, or names no or too many devices.
            UnknownHardwareError: no card has that key or several share it (the message lists them,
                or the nearest ones), or the card is not one that CUDA drives.
        """
        layout, at, rate = text.partition("@")
        cards = [(card, node) for node, part in enumerate(_nodes(layout)) for card in _cards(part)]
        devices = (_device(card, index, node) for index, (card, node) in enumerate(cards))
        return cls(tuple(devices), _rate(rate) if at else NETWORK_BYTES_PER_SECOND)

    @property
    def node_count(self) -> int:
        """How many machines the devices are in."""
        return self.devices[-1].node + 1

    def devices_of_node(self, node: int) -> tuple[VirtualDevice, ...]:
        """Return the devices of one machine, in the order of their CUDA indices there."""
        return tuple(device for device in self.devices if device.node == node)

    def __repr__(self) -> str:
        return f"VirtualRig.parse({str(self)!r})"

    def __str__(self) -> str:
        nodes = [_runs(d.key for d in self.devices_of_node(n)) for n in range(self.node_count)]
        layout = nodes[0] if len(nodes) == 1 else _runs(f"({node})" for node in nodes)
        if self.network_bytes_per_second == NETWORK_BYTES_PER_SECOND:
            return layout
        return f"{layout}@{_size_text(self.network_bytes_per_second)}/s"


def _runs(names: Iterable[str]) -> str:
    """Return `names` joined by ``+``, equal neighbours as a count."""
    runs = [(name, len(list(run))) for name, run in itertools.groupby(names)]
    return "+".join(name if count == 1 else f"{count}x{name}" for name, count in runs)


def _nodes(text: str) -> Iterator[str]:
    """Yield the text of each node of `text`, which is the whole of it without parentheses."""
    if not set("()") & set(text):
        yield text
        return
    # Only the pluses between nodes split: those inside come before a closing parenthesis.
    for part in re.split(r"\+(?![^(]*\))", text):
        nodes = _NODES.fullmatch(part)
        if nodes is None:
            raise DeviceTextError(
                f"{part.strip()!r} is no node in the rig {text!r}; write each node in parentheses, "
                "with a count if there are several: 2x(8xH100-SXM) or (4xA100-80GB)+(2xT4)"
            )
        count = int(nodes[1] or 1)
        if not 1 <= count <= MOST_NODES:
            raise DeviceTextError(
                f"the rig {text!r} asks for {count} times a node; a virtual rig has 1 to "
                f"{MOST_NODES} nodes"
            )
        yield from itertools.repeat(nodes[2], count)


def _rate(text: str) -> int:
    """Return the bytes per second that `text` names."""
    match = _RATE.fullmatch(text)
    try:
        if match is None:
            raise ValueError(f"{text.strip()!r} is no rate of a network")
        return parse_bytes(f"{match[1]}B") * _BITS_PER_UNIT[match[2]] // 8
    except ValueError as error:
        raise DeviceTextError(f"{error}; write for example @50GB/s or @400Gbit/s") from None


def _cards(text: str) -> Iterator[str | int]:
    """Yield each device of a node as the key of its card, or as the bytes of a plain one."""
    for group in text.split("+"):
        count, card = _group(group.strip(), text)
        yield from itertools.repeat(_card(card), count)


def _group(group: str, text: str) -> tuple[int, str]:
    count, card = 1, group
    if first := _COUNT_FIRST.fullmatch(group):
        count, card = int(first[1]), first[2]
    elif not is_key(group) and (last := _COUNT_LAST.fullmatch(group)):  # RTX4090 has no count
        count, card = int(last[2]), last[1]
    if not card:
        raise DeviceTextError(
            f"the rig {text!r} has a part that names no card; write cards joined by '+', each with "
            "a count if there are several: A100-40GB+2xT4, 4xA100-80GB or 2x16GiB"
        )
    if not 1 <= count <= MOST_DEVICES:
        raise DeviceTextError(
            f"the rig {text!r} asks for {count} times {card}; a node of a virtual rig has 1 to "
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
    if memory_bytes > LARGEST_CARD_BYTES:
        raise DeviceTextError(
            f"a plain card of {card} is larger than anyrig can count: a card has "
            f"{format_bytes(LARGEST_CARD_BYTES)} at most; write for example 16GiB"
        )
    return memory_bytes


def _device(card: str | int, index: int, node: int) -> VirtualDevice:
    if isinstance(card, int):
        like = spec_of_key(PLAIN_CARD_KEY)
        name, memory_bytes, spec = f"Virtual GPU {_size_text(card)}", card, None
    else:
        like = spec = spec_of_key(card, only_cuda=True)
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
        uuid=f"GPU-{uuid.uuid5(UUID_NAMESPACE, f'{index}:{name}')}",
        spec=spec,
        node=node,
    )


def _size_text(memory_bytes: int) -> str:
    """Return the shortest whole number of a unit that is exactly `memory_bytes`."""
    whole = [(memory_bytes // parse_bytes(f"1{unit}"), unit) for unit in _SIZE_UNITS]
    exact = [(n, unit) for n, unit in whole if n * parse_bytes(f"1{unit}") == memory_bytes]
    count, unit = min(exact, key=lambda pair: pair[0])
    return f"{count}{unit}"
