"""`VirtualRig`, the set of virtual GPUs of a rehearsal, and the text that names a rig."""

from __future__ import annotations

import itertools
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..errors import DeviceTextError, UnknownHardwareError
from ..hardware import Spec, is_key, nearest_keys, spec_of_key
from ..units import format_bytes, parse_bytes

# Limit per node: torch keeps a device index in a signed byte, and CUDA's own tables hold 64.
MOST_DEVICES = 64

# More than any rehearsal needs. The limit catches a mistyped count.
MOST_NODES = 1024

# Each device's share of the network between nodes, in one direction: a DGX H100 has one ConnectX-7
# of 400 Gbit/s per GPU (NVIDIA DGX H100 data sheet).
NETWORK_BYTES_PER_SECOND = 50 * 10**9

# The smallest segment of the caching allocator: a smaller GPU could not hold any tensor.
SMALLEST_GPU_BYTES = 2 * 2**20

# Thousands of times the memory of any GPU. Sums over a rig stay within 64 bits.
LARGEST_GPU_BYTES = 2**50

# A plain GPU has the facts of this one, apart from its memory. Compute capability 8.0 is the lowest
# with TF32, bfloat16 and flash attention, so a script takes the code paths of most current GPUs.
PLAIN_GPU_KEY = "A100-80GB"

# A count stands before or after the GPU: 4xT4, 4*T4, T4x4.
_COUNT_FIRST = re.compile(r"(\d+)\s*[xX*]\s*(.*)")
_COUNT_LAST = re.compile(r"(.*?)\s*[xX*]\s*(\d+)")
_NODES = re.compile(r"\s*(?:(\d+)\s*[xX*]\s*)?\(([^()]*)\)\s*")
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?\s*[A-Za-z]?i?)(B|bit)/s\s*")
_BITS_PER_UNIT = {"B": 8, "bit": 1}
_SIZE = re.compile(r"\d+(?:\.\d+)?\s*[A-Za-z]?i?B", re.IGNORECASE)

# The namespace of the GPUs' version 5 UUIDs.
UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "anyrig.virtual")
_SIZE_UNITS = ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB", "B")


@dataclass(frozen=True)
class VirtualDevice:
    """One virtual GPU.

    Attributes:
        name: the result of ``torch.cuda.get_device_name``: the driver's name for a known GPU.
        memory_bytes: the memory that a program can use.
        capability: CUDA compute capability ``(major, minor)``.
        multiprocessors: number of streaming multiprocessors.
        uuid: ``"GPU-"`` and 32 hexadecimal digits in five groups; a function of name and position.
        spec: the facts of the GPU, or None for a plain GPU, which is given by its memory alone.
        node: the node of the GPU, counted from 0.
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
        """The facts that drive the virtual clock: the GPU's own, or an A100's for a plain GPU.

        A plain GPU therefore predicts memory use, but its times predict nothing.
        """
        return self.spec if self.spec is not None else spec_of_key(PLAIN_GPU_KEY)

    @property
    def key(self) -> str:
        """The text of this device in a rig: ``"A100-80GB"`` or, for a plain GPU, ``"16GiB"``."""
        return self.spec.key if self.spec is not None else _size_text(self.memory_bytes)


@dataclass(frozen=True)
class VirtualRig:
    """The GPUs of a rehearsal.

    ``str(rig)`` is the shortest text that `parse` turns into the same rig.

    Attributes:
        devices: the devices of all nodes, node by node, in the order of their CUDA indices.
        network_bytes_per_second: each device's share of the network between nodes, in one
            direction.

    Raises:
        DeviceTextError: there are no or too many nodes or devices, or the network has no rate.
        ValueError: the nodes of `devices` are not numbered from 0 without gaps.
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
            raise ValueError(f"nodes are counted from 0 without gaps, not {sorted(counts)}")
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
            group := [count "x"] gpu | gpu "x" count
            gpu   := key | size
            key   := a GPU of anyrig.hardware: T4, A100-80GB, H100-SXM …
            size  := number unit, unit one of B kB KB MB GB TB KiB MiB GiB TiB
            rate  := size "/s", or in bits: 50GB/s, 400Gbit/s

        ``*`` means the same as ``x``, and the case and hyphens of a key do not matter:
        ``2*rtx4090`` is ``2xRTX-4090``. Devices are numbered from left to right.

        A GPU given as a size is a *plain GPU*: it has exactly that memory and is otherwise like an
        A100 (compute capability 8.0, 108 multiprocessors, the A100's rates for the clock).

        Parentheses make nodes, which a network joins. A process sees only the devices of its own
        node. The rate is each device's share of the network in one direction, by default 50 GB/s
        (400 Gbit/s).

        Raises:
            DeviceTextError: the text does not follow the grammar, or names no device or too many.
            UnknownHardwareError: no GPU has the key, several GPUs share it (the message lists
                them, or the nearest ones), or CUDA does not support the GPU.
        """
        layout, at, rate = text.partition("@")
        gpus = [(gpu, node) for node, part in enumerate(_nodes(layout)) for gpu in _gpus(part)]
        devices = (_device(gpu, index, node) for index, (gpu, node) in enumerate(gpus))
        return cls(tuple(devices), _rate(rate) if at else NETWORK_BYTES_PER_SECOND)

    @property
    def node_count(self) -> int:
        """The number of nodes."""
        return self.devices[-1].node + 1

    def repeated(self, count: int) -> VirtualRig:
        """Return the rig with `count` nodes that each have the devices of this one-node rig."""
        layout, at, rate = str(self).partition("@")
        return self if count == 1 else VirtualRig.parse(f"{count}x({layout}){at}{rate}")

    def devices_of_node(self, node: int) -> tuple[VirtualDevice, ...]:
        """Return the devices of `node`, in the order of their CUDA indices."""
        return tuple(device for device in self.devices if device.node == node)

    def __repr__(self) -> str:
        return f"VirtualRig.parse({str(self)!r})"

    def __str__(self) -> str:
        by_node = itertools.groupby(self.devices, key=lambda device: device.node)
        nodes = [_runs(device.key for device in devices) for _, devices in by_node]
        layout = nodes[0] if len(nodes) == 1 else _runs(f"({node})" for node in nodes)
        if self.network_bytes_per_second == NETWORK_BYTES_PER_SECOND:
            return layout
        return f"{layout}@{_size_text(self.network_bytes_per_second)}/s"


def _runs(names: Iterable[str]) -> str:
    """Return `names` joined by ``+``, with each run of equal names written as ``count x name``."""
    runs = [(name, len(list(run))) for name, run in itertools.groupby(names)]
    return "+".join(name if count == 1 else f"{count}x{name}" for name, count in runs)


def _nodes(text: str) -> Iterator[str]:
    """Yield the text of each node of `text`; without parentheses, `text` is one node."""
    if not set("()") & set(text):
        yield text
        return
    # Split at each "+" between nodes. A "+" within a node is followed by ")" before any "(".
    for part in re.split(r"\+(?![^(]*\))", text):
        nodes = _NODES.fullmatch(part)
        if nodes is None:
            raise DeviceTextError(
                f"{part.strip()!r} is not a node in the rig {text!r}; write each node in "
                "parentheses, with a count if there are several: 2x(8xH100-SXM) or "
                "(4xA100-80GB)+(2xT4)"
            )
        count = int(nodes[1] or 1)
        if not 1 <= count <= MOST_NODES:
            raise DeviceTextError(
                f"the rig {text!r} repeats a node {count} times; a virtual rig has 1 to "
                f"{MOST_NODES} nodes"
            )
        yield from itertools.repeat(nodes[2], count)


def _rate(text: str) -> int:
    """Return the bytes per second that `text` names."""
    match = _RATE.fullmatch(text)
    try:
        if match is None:
            raise ValueError(f"{text.strip()!r} is not a network rate")
        return parse_bytes(f"{match[1]}B") * _BITS_PER_UNIT[match[2]] // 8
    except ValueError as error:
        raise DeviceTextError(f"{error}; write for example @50GB/s or @400Gbit/s") from None


def _gpus(text: str) -> Iterator[str | int]:
    """Yield each GPU of a node: its key, or the bytes of a plain GPU."""
    for group in text.split("+"):
        count, gpu = _group(group.strip(), text)
        yield from itertools.repeat(_gpu(gpu), count)


def _group(group: str, text: str) -> tuple[int, str]:
    """Return the count and the GPU of one group, such as ``(4, "T4")`` for ``"4xT4"``."""
    count, gpu = 1, group
    if first := _COUNT_FIRST.fullmatch(group):
        count, gpu = int(first[1]), first[2]
    elif not is_key(group) and (last := _COUNT_LAST.fullmatch(group)):  # RTX4090 has no count
        count, gpu = int(last[2]), last[1]
    if not gpu:
        raise DeviceTextError(
            f"the rig {text!r} has a part that names no GPU; write GPUs joined by '+', each with "
            "a count if there are several: A100-40GB+2xT4, 4xA100-80GB or 2x16GiB"
        )
    if not 1 <= count <= MOST_DEVICES:
        raise DeviceTextError(
            f"the rig {text!r} asks for {count} times {gpu}; a node of a virtual rig has 1 to "
            f"{MOST_DEVICES} devices"
        )
    return count, gpu


def _gpu(gpu: str) -> str | int:
    """Return `gpu` if it is a key, or its bytes if it is a size."""
    if is_key(gpu):  # some are numbers: 3090
        return gpu
    if gpu.isdecimal():
        raise DeviceTextError(
            f"{gpu!r} is neither a GPU nor a size; the nearest GPUs are "
            f"{', '.join(nearest_keys(gpu, only_cuda=True))}; for a plain GPU of that size, write "
            f"{gpu}GiB"
        )
    if _SIZE.fullmatch(gpu) is None:
        return gpu
    try:
        memory_bytes = parse_bytes(gpu)
    except ValueError as error:
        raise DeviceTextError(str(error)) from None
    if memory_bytes < SMALLEST_GPU_BYTES:
        raise DeviceTextError(
            f"a plain GPU of {gpu} is too small: CUDA's caching allocator takes at least "
            f"{format_bytes(SMALLEST_GPU_BYTES)} from a GPU; write for example 16GiB"
        )
    if memory_bytes > LARGEST_GPU_BYTES:
        raise DeviceTextError(
            f"a plain GPU of {gpu} is too large: anyrig counts at most "
            f"{format_bytes(LARGEST_GPU_BYTES)} of memory; write for example 16GiB"
        )
    return memory_bytes


def _device(gpu: str | int, index: int, node: int) -> VirtualDevice:
    if isinstance(gpu, int):
        like = spec_of_key(PLAIN_GPU_KEY)
        name, memory_bytes, spec = f"Virtual GPU {_size_text(gpu)}", gpu, None
    else:
        like = spec = spec_of_key(gpu, only_cuda=True)
        name, memory_bytes = spec.names[0], spec.memory_bytes
    if like.capability is None:
        raise UnknownHardwareError(
            f"{gpu} is not a CUDA GPU, and virtual GPUs model only CUDA GPUs; to rehearse with its "
            f"memory size alone, write {_size_text(like.memory_bytes)}"
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
    """Return `memory_bytes` as the smallest whole number of a unit, without rounding."""
    whole = [(memory_bytes // parse_bytes(f"1{unit}"), unit) for unit in _SIZE_UNITS]
    exact = [(n, unit) for n, unit in whole if n * parse_bytes(f"1{unit}") == memory_bytes]
    count, unit = min(exact, key=lambda pair: pair[0])
    return f"{count}{unit}"
