"""Which process group this process is in, on which device, and what carries their collectives."""

from __future__ import annotations

import itertools
import os
import socket
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...devices.current import current_device, select_device
from ...devices.device import Device
from ...devices.rank import LocalRank
from ...devices.rig import Rig
from ...errors import LaunchError
from ...processes.route import INTERFACE_VARIABLES, interface_of, resolve
from ...processes.time_limit import limit_or_default
from ...processes.torch_faults import keep_until_exit

_LOOPBACK = "127.0.0.1"
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Group:
    """This process as one of several ranks.

    Attributes:
        rank: its number among all.
        world_size: how many there are.
        device: what it computes on; the other ranks have theirs.
        backend: what carries collectives between the ranks' devices: ``"nccl"``, ``"gloo"`` …
        reason: why that backend.
    """

    rank: int
    world_size: int
    device: torch.device
    backend: str
    reason: str

    def __str__(self) -> str:
        return (
            f"rank {self.rank} of {self.world_size} on {self.device}, {self.backend}: {self.reason}"
        )


@dataclass(eq=False)
class Context:
    """Everything that this process keeps for one default process group.

    The files of this package that need a part of it make it, on first use.

    Attributes:
        group: this process in it.
        number: how many default groups this process had before.
        counts: how often the ranks began something together, by kind; the same on each rank.
        board: see `board_of`.
        carrier: the process group for tensors on the CPU, if the default group does not carry
            them; see `open_carrier`.
        balances: see `choose_balance`, by policy.
        balance: the one whose loader has handed out the last batch.
        first_blocks: the keys of the `only_first_rank` blocks that this rank is in.
    """

    group: Group
    number: int
    counts: Counter[str] = field(default_factory=Counter)
    board: Any = None
    carrier: Any = None
    balances: dict[str | None, Any] = field(default_factory=dict)
    balance: Any = None
    first_blocks: list[str] = field(default_factory=list)

    @property
    def measuring(self) -> Any:
        """The balance while it measures, which models report their steps to; else None."""
        return None if self.balance is None or self.balance.held else self.balance


# The one place from which contexts are found. Weak: a script may destroy its group and make
# another, in the same store.
_contexts: weakref.WeakKeyDictionary[Any, Context] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def join_group(rig: Rig | None = None, *, timeout_seconds: float | None = None) -> Group | None:
    """Return this process's group; None where there is one rank only.

    The default process group is made from torchrun's environment, unless the script has made it
    already: then that one is taken as it is. Every rank must call this; it waits for all of them.
    The rank's device becomes the current one.

    Args:
        rig: its lead is this rank's device; by default what `Rig.detect` says of a rank.
        timeout_seconds: how long this, and each collective of the group, waits for the others; None
            for what the launcher was given as ``--timeout``, else ten minutes.

    Raises:
        LaunchError: the environment names a group by half; or the others did not come in time.
    """
    known = current_group()
    if known is not None:
        if rig is not None and rig.lead.torch_device != known.device:
            known = replace(known, device=rig.lead.torch_device)
            current_context().group = known
        select_device(known.device)
        return known
    place = _read_environment(os.environ)
    if place is None or _is_initialized():
        return None
    rank, world_size = place
    lead = (Rig.detect() if rig is None else rig).lead
    device = lead.torch_device
    select_device(device)
    timeout_seconds = limit_or_default(timeout_seconds)
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store = _meet(rank, world_size, timeout)
        backends, backend, reason = _choose_backend(store, rank, world_size, lead)
        dist.init_process_group(
            backends, store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    except (dist.DistError, dist.DistStoreError, TimeoutError) as error:
        raise LaunchError(
            f"rank {rank} of {world_size} did not meet the others at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} within {timeout_seconds:g} "
            f"s: {error}. Look with: anyrig doctor"
        ) from error
    keep_until_exit(dist.group.WORLD)
    group = Group(rank, world_size, device, backend, reason)
    _contexts[dist.group.WORLD] = Context(group, next(_numbers))
    return group


def current_group() -> Group | None:
    """Return the group that this process is in, made by `join_group` or by the script; None if
    there is none, or if it is the only rank. It waits for nobody.
    """
    if not _is_initialized() or dist.get_world_size() == 1:
        return None
    known = _contexts.get(dist.group.WORLD)
    if known is None:
        device = _device_of_rank()
        carrier = carrier_of(dist.get_backend_config(), device) or "none"
        reason = "the script made the process group"
        group = Group(dist.get_rank(), dist.get_world_size(), device, carrier, reason)
        known = _contexts[dist.group.WORLD] = Context(group, next(_numbers))
    return known.group


def current_context() -> Context:
    """Return what is kept for the group that `current_group` returns; there must be one."""
    group = current_group()
    assert group is not None
    return _contexts[dist.group.WORLD]


def _device_of_rank() -> torch.device:
    """Return the device that the script has selected; else the one that its LOCAL_RANK means."""
    selected = current_device()
    if selected.index or LocalRank.read() is None:
        return selected
    return Rig.detect().lead.torch_device


def carrier_of(backends: str, device: torch.device) -> str | None:
    """Return which of ``"cpu:gloo,cuda:nccl"`` carries the tensors of a device; None if none."""
    return dict(part.split(":", 1) for part in backends.split(",")).get(device.type)


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _read_environment(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return rank and world size; None if the environment names no group of several."""
    given = {name: environment.get(name) for name in _NEEDED}
    # An address alone is what many keep in their profile; a rank or a world size is a launcher's.
    if (given["RANK"] is None and given["WORLD_SIZE"] is None) or given["WORLD_SIZE"] == "1":
        return None
    missing = [name for name, value in given.items() if not value]
    if missing:
        here = ", ".join(f"{name}={value}" for name, value in given.items() if value)
        raise LaunchError(
            f"the environment has {here}, but no {' and no '.join(missing)}, so the other ranks "
            "cannot be found. Start with anyrig run or torchrun, or set all four, or none"
        )
    try:
        rank, world_size = int(str(given["RANK"])), int(str(given["WORLD_SIZE"]))
        port = int(str(given["MASTER_PORT"]))
    except ValueError:
        rank, world_size, port = -1, 0, -1
    if not (0 <= rank < world_size and 0 < port < 2**16):
        raise LaunchError(
            f"RANK={given['RANK']}, WORLD_SIZE={given['WORLD_SIZE']} and "
            f"MASTER_PORT={given['MASTER_PORT']} name no rank of a group; start with anyrig run or "
            "torchrun"
        )
    return rank, world_size


def _meet(rank: int, world_size: int, timeout: timedelta) -> Any:
    """Return the store in which the ranks meet; nothing listens beyond this machine unless the
    launcher has named another place.
    """
    address = os.environ["MASTER_ADDR"]
    on_loopback = _LOOPBACK in resolve(address)
    local = LocalRank.read()
    if on_loopback or (local is not None and local.world_size == world_size):
        name = interface_of(_LOOPBACK)
        for variable in INTERFACE_VARIABLES if name else ():
            os.environ.setdefault(variable, str(name))
    if on_loopback and rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        # The store takes a socket that listens already: its own would be bound to every address.
        with socket.create_server((_LOOPBACK, int(os.environ["MASTER_PORT"]))) as listening:
            return dist.TCPStore(  # type: ignore[attr-defined]
                _LOOPBACK,
                listening.getsockname()[1],
                world_size,
                is_master=True,
                timeout=timeout,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
    store, _, _ = next(dist.rendezvous("env://", timeout=timeout))  # type: ignore[attr-defined]
    return store


def _choose_backend(store: Any, rank: int, world_size: int, device: Device) -> tuple[str, str, str]:
    """Return what to initialize, what of it carries the devices' tensors, and why.

    All ranks must choose the same, so each tells the others what it has.
    """
    kind = device.kind
    own = dist.get_default_backend_for_device(kind)
    if kind == "cuda" and not dist.is_nccl_available():
        own = "gloo"
    if kind == "mps":  # which no backend of PyTorch carries
        own = "gloo"
    identity = device.uuid or device.text
    said = f"{own} {kind} {socket.gethostname()}/{identity}"
    shared = dist.PrefixStore("anyrig/devices", store)  # type: ignore[attr-defined]
    shared.set(str(rank), said)
    heard = [text.decode() for text in shared.multi_get([str(r) for r in range(world_size)])]
    told = [tuple(text.split(" ", 2)) for text in heard]
    first = told[0]
    if kind == "cpu" and all(other[1] == "cpu" for other in told):
        return "gloo", "gloo", "the ranks compute on the CPU"
    for number, (backend, its_kind, place) in enumerate(told):
        if its_kind != first[1]:
            reason = f"rank 0 computes on {first[1]}, rank {number} on {its_kind}"
            return "gloo", "gloo", reason
        if backend == "gloo":
            return "gloo", "gloo", f"rank {number} has no other for its {its_kind} device"
        earlier = [other[2] for other in told[:number]]
        if place in earlier:
            reason = (
                f"ranks {earlier.index(place)} and {number} share {place.rpartition('/')[2]}, "
                f"which {backend} does not take"
            )
            return "gloo", "gloo", reason
    article = f"every rank has a {kind.upper()} device of its own"
    return f"cpu:gloo,{kind}:{own}", own, article
