"""Which blocks of a chain go to which device, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import nn

from ....devices.device import Device
from ....errors import SpreadError
from .chain import Block, Chain
from .costs import (
    BlockCost,
    InFlight,
    StageDevice,
    StageLink,
    all_forwards_first,
    one_forward_one_backward,
)
from .partition import Partition, partition
from .slots import list_slots, tensors_in
from .work import BlockWork

# The backward pass of a product computes two products: for its input and for its weight.
_BACKWARD_PER_FORWARD = 2.0

BY_RATES = "by published rates"
BY_BYTES = (
    "by the bytes of parameters; give example=((x,), {}), the arguments of a call, to divide by "
    "published rates"
)


@dataclass(frozen=True)
class Balance:
    """The stages of a chain.

    Attributes:
        devices: the index of each device that has a stage, in the order of their first stages.
        sizes: the number of blocks of each stage.
        seconds: the time of each stage for a micro-batch, forward and backward; None if unknown.
        reason: the choice in words.
    """

    devices: tuple[int, ...]
    sizes: tuple[int, ...]
    seconds: tuple[float, ...] | None
    reason: str


def balance_blocks(
    chain: Chain,
    devices: Sequence[Device],
    stages_per_device: int,
    schedule: str,
    micro_batches: int,
    work: Sequence[BlockWork] | None,
    dtype: torch.dtype,
) -> Balance:
    """Divide a chain into stages so that the slowest stage is as fast as possible.

    Args:
        chain: the blocks.
        devices: the devices, in the order of the rig.
        stages_per_device: the number for each device; if several, all devices count as equal.
        schedule: the name; it decides for how many micro-batches a stage holds activations.
        micro_batches: the number of micro-batches.
        work: the work of each block; None divides by the bytes of parameters.
        dtype: the dtype in which products are computed.

    Raises:
        SpreadError: parameters and gradients do not fit the devices' memory.
    """
    works = [None] * len(chain.blocks) if work is None else work
    rates: list[list[float]] = []  # the seconds of each block on each device
    if work is not None and all(device.spec for device in devices):
        rates = [block_seconds(work, device, dtype) for device in devices]
    costs = [
        _cost_of(block, its_work, by_bytes=not rates)
        for block, its_work in zip(chain.blocks, works, strict=True)
    ]
    by_bytes = BY_BYTES if work is None else _without_rates(devices)
    if stages_per_device > 1:
        seconds = rates[0] if rates else [cost.seconds for cost in costs]
        sizes = cut_evenly(seconds, stages_per_device * len(devices))
        times = tuple(map(sum, _cut(rates[0], sizes))) if rates else None
        return Balance(tuple(range(len(devices))), sizes, times, BY_RATES if rates else by_bytes)
    offers = [
        StageDevice(
            str(device.torch_device), speed, device.total_bytes, rates[i] if rates else None
        )
        for i, (device, speed) in enumerate(zip(devices, _speeds_of(devices), strict=True))
    ]
    held: InFlight = all_forwards_first(micro_batches)
    if schedule != "gpipe":
        held = one_forward_one_backward(micro_batches)
    found, note = _divide(costs, offers, _slowest_link(devices) if rates else StageLink(), held)
    sizes = tuple(end - first for first, end in found.ranges)
    if not rates:
        return Balance(found.devices, sizes, None, by_bytes + note)
    times = tuple(
        sum(rates[device][first:end])
        for device, (first, end) in zip(found.devices, found.ranges, strict=True)
    )
    return Balance(found.devices, sizes, times, f"{BY_RATES}: {found.reason}{note}")


def _divide(
    costs: Sequence[BlockCost], offers: Sequence[StageDevice], link: StageLink, held: InFlight
) -> tuple[Partition, str]:
    """Return the division, and a note about memory.

    Only parameters and gradients that do not fit are refused: activations are counted without the
    device's own kernels, which may save less.
    """
    try:
        return partition(costs, offers, link, held), ""
    except SpreadError as error:
        without = [replace(cost, activation_bytes=0) for cost in costs]
        found = partition(without, offers, link, held)
        return found, f". Activations may not fit: {error}"


def _cut(values: Sequence[float], sizes: Sequence[int]) -> list[Sequence[float]]:
    return [values[first:end] for first, end in pairwise(accumulate(sizes, initial=0))]


def cut_evenly(weights: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the number of blocks of each stage that makes the heaviest stage lightest.

    Every stage gets a block. Among equally good divisions, return the one with the earliest cuts.
    """
    sums = [0.0, *accumulate(weights)]
    blocks = len(weights)
    # By number of stages, then by number of blocks: the heaviest stage, and where the last begins.
    best = [[0.0] + [float("inf")] * blocks]
    cuts: list[list[int]] = []
    for _ in range(stages):
        row, places = [float("inf")] * (blocks + 1), [0] * (blocks + 1)
        for end in range(1, blocks + 1):
            for cut in range(end):
                heaviest = max(best[-1][cut], sums[end] - sums[cut])
                if heaviest < row[end]:
                    row[end], places[end] = heaviest, cut
        best.append(row)
        cuts.append(places)
    sizes, end = [], blocks
    for places in reversed(cuts):
        sizes.append(end - places[end])
        end = places[end]
    return tuple(reversed(sizes))


def bytes_of(blocks: Sequence[Block], learning: bool = False) -> int:
    """Return the bytes of the blocks' parameters and buffers, or only of those that learn."""
    slots = list_slots(block.module for block in blocks)
    tensors = {id(tensor): tensor for _, tensor in tensors_in(slots)}
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in tensors.values()
        if tensor.requires_grad or not learning
    )


def dtype_of(module: nn.Module, precision: torch.dtype | None) -> torch.dtype:
    """Return the dtype in which most of a module computes."""
    floating = (p.dtype for p in module.parameters() if p.is_floating_point())
    return precision or next(floating, torch.float32)


def _without_rates(devices: Sequence[Device]) -> str:
    names = {device.name: None for device in devices if device.spec is None}
    return f"by the bytes of parameters, as no rates of {', '.join(names)} are published"


def _cost_of(block: Block, work: BlockWork | None, by_bytes: bool) -> BlockCost:
    size = bytes_of([block])
    return BlockCost(
        # Without rates, bytes of parameters stand for seconds; a block without any counts as 1.
        forward_seconds=float(size + 1) if by_bytes else 0.0,
        parameter_bytes=size,
        # Gradients only: the state of the optimizer is not known yet.
        training_bytes=bytes_of([block], learning=True) if block.module.training else 0,
        activation_bytes=0 if work is None else work.activation_bytes,
        output_bytes=0 if work is None else work.output_bytes,
    )


def block_seconds(work: Sequence[BlockWork], device: Device, dtype: torch.dtype) -> list[float]:
    """Return the seconds of each block on a device, forward and backward, by published rates."""
    spec = device.spec
    if spec is None:
        return [0.0] * len(work)
    name = str(dtype).removeprefix("torch.")
    rate = spec.flops_per_second.get(name, spec.flops_per_second.get("float32", spec.strength))
    return [
        (1 + _BACKWARD_PER_FORWARD)
        * max(one.forward_flops / rate, one.forward_bytes / spec.memory_bytes_per_second)
        for one in work
    ]


def _speeds_of(devices: Sequence[Device]) -> list[float]:
    specs = [device.spec for device in devices]
    known = [spec.strength for spec in specs if spec is not None]
    if len(known) < len(devices):
        return [1.0] * len(devices)
    return [strength / max(known) for strength in known]


def _slowest_link(devices: Sequence[Device]) -> StageLink:
    specs = [device.spec for device in devices if device.spec is not None]
    kinds = {spec.key for spec in specs}
    rates = [
        spec.link_bytes_per_second
        if len(kinds) == 1 and spec.link_bytes_per_second is not None
        else spec.pcie_bytes_per_second
        for spec in specs
    ]
    return StageLink(min(rates))
