"""The process group of this process: its rank, its device, and the backends."""

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
from ..nccl_class import takes_device_of_local_rank
from ..route import INTERFACE_VARIABLES, interface_of, resolve
from ..time_limit import limit_or_default
from ..torch_faults import keep_until_exit
from .other_launchers import warn_of_other_launcher

_LOOPBACK = "127.0.0.1"
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Group:
    """This process as a rank of a process group."""

    rank: int
    world_size: int
    device: torch.device  # the device of this rank
    backend: str  # the backend of collectives between the ranks' devices: "nccl", "gloo", …
    reason: str  # the reason for this backend


@dataclass(eq=False)
class Context:
    """The state that this process keeps for one default process group."""

    group: Group
    number: int  # the number of default groups that this process had before
    # The number of exchanges of each kind that have begun; the same on every rank.
    counts: Counter[str] = field(default_factory=Counter)
    board: Any = None  # see `board_of`
    carrier: Any = None  # see `open_carrier`
    direct: Any = None  # see `open_messages`
    has_tried_direct: bool = False  # whether the ranks have tried to open `direct`
    messages: list[Any] = field(default_factory=list)  # see `Exchange.start`
    balances: dict[str, Any] = field(default_factory=dict)  # by sharing policy
    follows_optimizers: bool = False  # see `follow_optimizers`
    given_batches: Any = None  # the samples of loaders' batches; see `GivenBatches`
    last_forward: Any = None  # of any spread model, with gradients; see `Passes`
    balance: Any = None  # the balance of the loader that yielded the last batch
    first_blocks: list[str] = field(default_factory=list)  # the keys of open blocks
    # The numbers of logical shards into which loaders divide global batches.
    logical_shards: set[int] = field(default_factory=set)

    @property
    def gloo(self) -> Any:
        """The process group for tensors on the CPU, after `open_carrier`."""
        return self.carrier or dist.group.WORLD

    @property
    def measuring(self) -> Any:
        """The balance to which models report the times of their steps; None if not measuring."""
        return None if self.balance is None or self.balance.held else self.balance


# The context of each group. Weak: a script may destroy its group and create another in the same
# store.
_contexts: weakref.WeakKeyDictionary[Any, Context] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def join_group(rig: Rig | None = None, *, timeout_seconds: float | None = None) -> Group | None:
    """Return this process's group; None if this process is the only rank.

    Use the default process group that the script has created, or create one from torchrun's
    environment variables. Every rank must call this function, which waits for all other ranks. The
    rank's device becomes the current device.

    Args:
        rig: the rig whose lead is this rank's device; by default `Rig.detect()`.
        timeout_seconds: the timeout of this call and of each collective of the group; None for the
            launcher's ``--timeout``, else ten minutes.

    Raises:
        LaunchError: environment variables are missing or invalid, or a rank did not join in time.
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
        if not _is_initialized():
            warn_of_other_launcher(os.environ)
        return None
    rank, world_size = place
    lead = (Rig.detect() if rig is None else rig).lead
    device = lead.torch_device
    select_device(device)
    timeout_seconds = limit_or_default(timeout_seconds)
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store = _open_store(rank, world_size, timeout)
        backends, backend, reason = _choose_backend(store, rank, world_size, lead)
        dist.init_process_group(
            backends,
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            device_id=_device_to_name(backend, device),
        )
    except (dist.DistError, dist.DistStoreError, TimeoutError) as error:
        raise LaunchError(
            f"rank {rank} of {world_size} could not join the other ranks at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} within {timeout_seconds:g} "
            f"s: {error}. Check with: anyrig doctor"
        ) from error
    keep_until_exit(dist.group.WORLD)
    return _remember(Group(rank, world_size, device, backend, reason)).group


def current_group() -> Group | None:
    """Return this process's group without waiting for other ranks; None if it is the only rank."""
    if not _is_initialized() or dist.get_world_size() == 1:
        return None
    known = _contexts.get(dist.group.WORLD)
    if known is None:
        device = _device_of_rank()
        carrier = carrier_of(dist.get_backend_config(), device) or "none"
        reason = "the script created the process group"
        known = _remember(Group(dist.get_rank(), dist.get_world_size(), device, carrier, reason))
    return known.group


def current_context() -> Context:
    """Return the context of `current_group`, which must not be None."""
    group = current_group()
    assert group is not None
    return _contexts[dist.group.WORLD]


def open_carrier(context: Context) -> None:
    """Create a gloo group for CPU tensors if the default group does not support them.

    Every rank must call this function at the same point. All models share the group.
    """
    on_cpu = carrier_of(dist.get_backend_config(), torch.device("cpu"))
    if context.carrier is None and on_cpu is None:
        context.carrier = dist.new_group(backend="gloo")


def carrier_of(backends: str, device: torch.device) -> str | None:
    """Return the backend for `device`, or None, from a string such as ``"cpu:gloo,cuda:nccl"``."""
    return dict(part.split(":", 1) for part in backends.split(",")).get(device.type)


def _remember(group: Group) -> Context:
    context = _contexts[dist.group.WORLD] = Context(group, next(_numbers))
    return context


def _device_to_name(backend: str, device: torch.device) -> torch.device | None:
    """Return the device to which NCCL's group would not belong by itself, or None.

    Other groups take the device of their first tensor. If they are told, they connect at once.
    """
    named = backend == "nccl" and takes_device_of_local_rank(torch.__version__, os.environ)
    return device if named else None


def _device_of_rank() -> torch.device:
    """Return the device that the script has selected, or else the device of its LOCAL_RANK."""
    selected = current_device()
    if selected.index or LocalRank.read() is None:
        return selected
    return Rig.detect().lead.torch_device


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _read_environment(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return rank and world size; None if the environment describes no group of several ranks."""
    # Docker Compose and env files leave variables empty.
    given = {name: environment.get(name) or None for name in _NEEDED}
    # Many users export an address in their profile, but only a launcher sets RANK or WORLD_SIZE.
    if (given["RANK"] is None and given["WORLD_SIZE"] is None) or given["WORLD_SIZE"] == "1":
        return None
    missing = [name for name, value in given.items() if not value]
    if missing:
        here = ", ".join(f"{name}={value}" for name, value in given.items() if value)
        raise LaunchError(
            f"the environment has {here}, but no {' and no '.join(missing)}, so the other ranks "
            "cannot be found. Start with anyrig run or torchrun, or set all four variables or none"
        )
    try:
        rank, world_size, port = (
            int(str(given[name])) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
        )
    except ValueError:
        rank, world_size, port = -1, 0, -1
    if not (0 <= rank < world_size and 0 < port < 2**16):
        raise LaunchError(
            f"RANK={given['RANK']}, WORLD_SIZE={given['WORLD_SIZE']} and "
            f"MASTER_PORT={given['MASTER_PORT']} do not name a rank of a group; start with anyrig "
            "run or torchrun"
        )
    return rank, world_size


def _open_store(rank: int, world_size: int, timeout: timedelta) -> Any:
    """Return the store of the ranks. On a single node, the store listens on the loopback only."""
    address = os.environ["MASTER_ADDR"]
    on_loopback = _LOOPBACK in resolve(address)
    local = LocalRank.read()
    if on_loopback or (local is not None and local.world_size == world_size):
        name = interface_of(_LOOPBACK)
        for variable in INTERFACE_VARIABLES if name else ():
            os.environ.setdefault(variable, str(name))
    if on_loopback and rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        # A socket that TCPStore opens itself would listen on every address.
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
    """Return the backends to initialize, the backend for the ranks' devices, and the reason.

    The ranks exchange their devices through `store`, so that all ranks choose the same backend.
    """
    kind = device.kind
    own = dist.get_default_backend_for_device(kind)
    # PyTorch has no backend for MPS.
    if kind == "mps" or (kind == "cuda" and not dist.is_nccl_available()):
        own = "gloo"
    shared = dist.PrefixStore("anyrig/devices", store)  # type: ignore[attr-defined]
    shared.set(str(rank), f"{own} {kind} {socket.gethostname()}/{device.uuid or device.text}")
    texts = shared.multi_get([str(other) for other in range(world_size)])
    entries = [text.decode().split(" ", 2) for text in texts]
    if all(entry[1] == "cpu" for entry in entries):
        return "gloo", "gloo", "the ranks compute on the CPU"
    first_kind = entries[0][1]
    devices: dict[str, int] = {}
    for number, (backend, its_kind, identity) in enumerate(entries):
        reason = None
        if its_kind != first_kind:
            reason = f"rank 0 computes on {first_kind}, rank {number} on {its_kind}"
        elif backend == "gloo":
            reason = f"rank {number} has no other backend for its {its_kind} device"
        elif identity in devices:
            reason = (
                f"ranks {devices[identity]} and {number} share {identity.rpartition('/')[2]}, "
                f"which {backend} does not support"
            )
        if reason is not None:
            return "gloo", "gloo", reason
        devices[identity] = number
    return f"cpu:gloo,{kind}:{own}", own, f"every rank has a {kind.upper()} device of its own"
