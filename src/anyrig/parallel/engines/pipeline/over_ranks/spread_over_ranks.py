"""Dividing a module into stages over the ranks of a process group."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .....devices.device import Device
from .....devices.rig import Rig
from .....errors import RankMismatchError, SpreadError
from .....processes.group.board import board_of
from .....processes.group.direct_messages import open_messages
from .....processes.group.membership import Group, current_context
from .....processes.time_limit import limit_or_default
from .....processes.torch_faults import keep_until_exit
from .....units import format_count
from ....compiling import refuse_compiled_root
from ....layout import Layout
from ....losses.loss import Criterion
from ....plans import Pipeline
from ....ranks.devices_of_ranks import devices_of_ranks
from ....ranks.states import packings_of
from ....spread_module import SpreadModule
from ..balance import Balance, balance_blocks, bytes_of, cut_evenly, dtype_of
from ..chain import Chain
from ..chosen_schedule import choose_schedule
from ..placement import PlacedPipeline, make_stages
from ..schedules.named import fewest_stages_per_device, make_schedule
from ..schedules.schedule import Schedule
from ..slots import Slot, list_slots, move_in_place, tensors_in
from ..split.chain_of import chain_of
from ..stage_table import make_stage_table
from ..work_of_example import choose_for_example, count_work_of_example
from .elsewhere import put_elsewhere
from .elsewhere_gradients import drop_before_steps
from .engine import RankPipelineEngine
from .links import Links, open_links
from .message import Traffic, find_links
from .rank_pipeline import RankPipeline
from .rank_run import RankStages, SharedTensor
from .row import Row, find_row


def spread_over_ranks(
    module: torch.nn.Module,
    layout: Layout,
    group: Group,
    loss: Criterion | None,
    plan: Pipeline,
) -> SpreadModule:
    """Return a module in stages on the ranks of `group`; every rank must call this.

    Each rank gets rank 0's parameters and buffers for its own stages; the tensors of other ranks'
    stages are replaced.

    ::

        rank 0 ─ stage 1 ─▶ rank 1        hosts: the first pipeline
           │                   │
           ▼ stage 0           ▼ stage 1  devices: the other pipelines, from their equals
        rank 2              rank 3

    Raises:
        SpreadError: the module cannot be divided, or the plan does not fit.
        RankMismatchError: the ranks have different modules or options.
    """
    row = find_row(group.rank, group.world_size, plan.replicas)
    devices = len(row.ranks)
    refuse_compiled_root(module)
    offered = _devices_of_row(layout, group, row)
    on_cpus = all(device.kind == "cpu" for device in offered)
    name, reason = choose_schedule(plan, module, loss, layout.precision, on_cpus)
    chain = chain_of(
        module,
        plan.split_points,
        example=plan.example,
        device=layout.lead,
        dim=layout.dim,
    )
    per_device = fewest_stages_per_device(name)
    if len(chain.blocks) < per_device * devices:
        raise SpreadError(
            f"{type(module).__name__} has {format_count(len(chain.blocks), 'block')} that can be "
            f"on different ranks, and schedule={name!r} on {devices} ranks needs "
            f"{per_device * devices}; use fewer ranks, Pipeline(replicas=…) for several "
            "pipelines, or divide the module into more layers"
        )
    micro_batches = choose_for_example(
        chain,
        plan,
        name,
        offered,
        layout.dim,
        dtype_of(module, layout.precision),
        one_thread=False,
    )
    schedule = make_schedule(name, devices, micro_batches.number)
    places = schedule.device_of_stage
    balance = _balance(module, chain, plan, schedule, layout, offered)
    sizes = _agree(module, balance.sizes, group, (name, plan.replicas, micro_batches.number))
    pipeline = make_stages(chain, [layout.lead] * len(places), sizes)
    context = current_context()
    if context.counts["loaders without a model"]:
        raise SpreadError(
            "a loader was distributed without a model, so that each rank has samples of its own; "
            "the ranks of a pipeline need the same samples. Call anyrig.distribute(loader, model) "
            "with what anyrig.spread() returns"
        )
    open_messages(context)
    context.counts["models"] += 1
    if not context.counts["pipelines"]:
        drop_before_steps()
    context.counts["pipelines"] += 1
    shared = _find_shared(pipeline)
    traffic = Traffic(
        places, find_links(pipeline.stages), tuple(tuple(each.places) for each in shared)
    )
    hosts = _open_hosts()
    # The table counts bytes, so it is made before placement replaces other ranks' tensors.
    table = make_stage_table(
        pipeline, balance, schedule, reason, plan, [row.ranks[place] for place in places]
    )
    number = context.counts["models"]
    links = open_links(group, row, f"pipeline/{number}", hosts, traffic.pairs(), _open_equals(row))
    place_on_ranks(module, pipeline, places, links, layout.lead)
    stages = RankStages(pipeline, row.place, traffic, tuple(shared))
    state = RankPipeline(context, number, links, stages)
    if row.count > 1:
        layout = replace(
            layout,
            reason=f"{layout.reason}; {row.count} pipelines of {devices} ranks each; this rank is "
            f"in pipeline {row.number}",
        )
    layout = replace(layout, pipeline=table)
    return SpreadModule(RankPipelineEngine(module, layout, loss, plan, micro_batches, state))


def _balance(
    module: torch.nn.Module,
    chain: Chain,
    plan: Pipeline,
    schedule: Schedule,
    layout: Layout,
    devices: Sequence[Device],
) -> Balance:
    """Return the stages' sizes, for the devices of the first pipeline, in their order."""
    places, number = schedule.device_of_stage, schedule.micro_batches
    work, obstacle = count_work_of_example(chain, plan, number, layout.dim)
    balance = balance_blocks(
        chain,
        devices,
        len(places) // len(devices),
        schedule.name,
        number,
        work,
        dtype_of(module, layout.precision),
    )
    if balance.devices == tuple(range(len(devices))):
        return replace(balance, reason=balance.reason + obstacle)
    sizes = cut_evenly([1 + bytes_of([block]) for block in chain.blocks], len(places))
    return Balance(tuple(range(len(devices))), sizes, None, "by bytes: every rank has a stage")


def _devices_of_row(layout: Layout, group: Group, row: Row) -> list[Device]:
    """Return the devices of the first pipeline, on every rank."""
    own = _device_of(layout.lead)
    of_ranks = devices_of_ranks(group, own, limit_or_default(None), "spread()")
    return [of_ranks[rank] for rank in row.ranks_of(0)]


def _device_of(device: torch.device) -> Device:
    """Return the facts of this rank's device."""
    rig = Rig.detect()
    return next((each for each in rig if each.torch_device == device), rig.lead)


def place_on_ranks(
    module: torch.nn.Module,
    pipeline: PlacedPipeline,
    places: Sequence[int],
    links: Links,
    device: torch.device,
) -> None:
    """Give each rank the tensors of its stages, with rank 0's values, and replace the others.

    A tensor belongs to the first stage that uses it, or to the first rank if no stage uses it.
    """
    names = {
        id(tensor): name
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    }
    slots_of: dict[int, list[Slot]] = {}
    owners: dict[int, tuple[Tensor, int]] = {}
    for stage in (*pipeline.stages, None):
        slots = list_slots([module]) if stage is None else stage.slots
        owner = 0 if stage is None else places[stage.index]
        for slot, tensor in tensors_in(slots):
            owners.setdefault(id(tensor), (tensor, owner))
            slots_of.setdefault(id(tensor), []).append(slot)
    row = links.row
    mine: list[Slot] = []
    for key, (tensor, owner) in owners.items():
        if row.number == 0:
            _send_from_first(tensor, row.place, owner, links.hosts)
        if owner == row.place:
            mine += slots_of[key]
            continue
        stand_in = put_elsewhere(tensor, names.get(key, "a tensor"), row.ranks[owner], device)
        for slot in slots_of[key]:
            slot.put(stand_in)
    move_in_place(mine, device)
    if row.count > 1:
        own = {id(tensor): tensor for _, tensor in tensors_in(mine)}
        for packing in packings_of(own.values()):
            message = packing.pack()
            links.broadcast(message, 0)
            if row.number:
                packing.unpack(message)


def _send_from_first(tensor: Tensor, rank: int, receiver: int, hosts: Any) -> None:
    """Send a tensor from rank 0 of the first pipeline to another."""
    if not tensor.numel() or receiver == 0 or rank not in (0, receiver):
        return
    with torch.no_grad():
        if rank == 0:
            dist.send(tensor.detach().cpu().contiguous(), receiver, hosts)
        else:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            dist.recv(buffer, 0, hosts)
            tensor.copy_(buffer)


def _find_shared(pipeline: PlacedPipeline) -> list[SharedTensor]:
    """Return the tensors that several stages use, in the order of first use."""
    places: dict[int, dict[int, list[Slot]]] = {}
    for stage in pipeline.stages:
        for slot, tensor in tensors_in(stage.slots):
            places.setdefault(id(tensor), {}).setdefault(stage.index, []).append(slot)
    return [SharedTensor(its) for its in places.values() if len(its) > 1]


def _agree(
    module: torch.nn.Module, sizes: Sequence[int], group: Group, asked: tuple[Any, ...]
) -> tuple[int, ...]:
    """Return the number of blocks of each stage that rank 0 has chosen.

    Raises:
        RankMismatchError: another rank has a different module or different options.
    """
    described = [
        (name, tuple(tensor.shape), str(tensor.dtype))
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    ]
    facts = [type(module).__name__, zlib.crc32(repr(described).encode()), *asked]
    board = board_of(group)
    own = json.dumps([list(sizes), facts]).encode()
    texts = board.exchange("stages", own, limit_or_default(None), "spread()")
    of_ranks = [json.loads(text) for text in texts]
    for rank, (its_sizes, its_facts) in enumerate(of_ranks):
        if its_facts != of_ranks[0][1] or len(its_sizes) != len(of_ranks[0][0]):
            raise RankMismatchError(
                f"rank 0 spreads a {of_ranks[0][1][0]} with {of_ranks[0][1][2:]}, but rank {rank} "
                f"spreads a {its_facts[0]} with {its_facts[2:]}, or their parameters differ in "
                "names, shapes or dtypes. Spread the same module in the same way on every rank"
            )
    return tuple(of_ranks[0][0])


def _open_hosts() -> Any:
    """Return a gloo group for the transfers of one model: see `Links.fail`."""
    hosts = dist.new_group(backend="gloo")
    keep_until_exit(hosts)
    return hosts


def _open_equals(row: Row) -> Any:
    """Return the process group of the ranks with the same stages; None for a single pipeline."""
    found = None
    for place in range(len(row.ranks)) if row.count > 1 else ():
        made = dist.new_group([row.ranks_of(number)[place] for number in range(row.count)])
        if place == row.place:
            keep_until_exit(made)
            found = made
    return found
