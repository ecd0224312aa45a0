"""Parse torchrun's flags into `RunOptions`.

These functions start nothing and look at no device. `docs/processes.md` has a table of the flags
and the differences from torchrun, which parses them in `torch/distributed/run.py`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import GroupOptionError

if TYPE_CHECKING:
    from ..devices.device import Device
    from ..processes.options import RunOptions
    from .group_flags import GroupFlags

# torchrun's defaults.
_DEFAULT_MASTER = "127.0.0.1"
_DEFAULT_MASTER_PORT = 29500
_DEFAULT_RDZV_PORT = 29400

# Flags with a field of the same name and meaning in `RunOptions`.
_SAME_NAMES = ("rdzv_id", "max_restarts", "timeout_seconds", "local_address", "log_dir")

_TIMEOUT_KEYS = ("join_timeout", "timeout")
# The other keys of `--rdzv-conf` that PyTorch 2.13 reads for c10d and static.
_KEYS_WITHOUT_EFFECT = (
    "close_timeout",
    "heartbeat_timeout",
    "is_host",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "last_call_timeout",
    "rank",
    "read_timeout",
    "store_type",
    "use_libuv",
)

_START_METHODS = ("spawn", "fork", "forkserver")
_MOST_ROLE_CHARACTERS = 200

_STREAMS = {"stdout": 1, "stderr": 2}
_STREAMS_OF_ALL = re.compile(r"[0-3]")
_STREAMS_OF_RANKS = re.compile(r"[0-9]{1,4}:[0-3](,[0-9]{1,4}:[0-3])*")
_RANKS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")
_COUNT = re.compile(r"[0-9]{1,9}")
_PORT = re.compile(r"[0-9]{1,5}")


def count_ranks(flags: GroupFlags, devices: Sequence[Device]) -> int:
    """Return the number of ranks on a node with these devices.

    Raises:
        GroupOptionError: `flags` contradict each other, or the node has no such devices.
    """
    from ..processes.options import MOST_PROCESSES

    text, per_device = flags.processes_per_node, flags.processes_per_device
    if text is None:
        return len(devices) * (1 if per_device is None else per_device)
    if per_device is not None:
        raise GroupOptionError(
            f"--nproc-per-node {_shown(text)} and --nproc-per-device {per_device} both set the "
            "number of ranks; give one of them"
        )
    count = _count_for_keyword(text, devices)
    if count is None and _COUNT.fullmatch(text):
        count = int(text)
    if count is None or not 1 <= count <= MOST_PROCESSES:
        raise GroupOptionError(
            f"--nproc-per-node is {_shown(text)}, and must be a number of ranks from 1 to "
            f"{MOST_PROCESSES}, or gpu, cpu or auto"
        )
    return count


def run_options(flags: GroupFlags, processes: int, *, keeps_endpoint: bool = False) -> RunOptions:
    """Return the options that `flags` ask for, after checking them.

    Args:
        flags: the flags of the command line.
        processes: the number of ranks on this node, from `count_ranks`.
        keeps_endpoint: keep the rendezvous endpoint even for a single node, which does not use it.

    Raises:
        GroupOptionError: a flag has an invalid value, or two flags contradict each other.
    """
    from ..processes.options import RunOptions

    _check_flags_without_effect(flags)
    given = flags.given
    options: dict[str, Any] = {name: given[name] for name in _SAME_NAMES if name in given}
    if (seconds := _rdzv_seconds(flags.rdzv_conf or "")) is not None:
        options["rdzv_timeout_seconds"] = seconds
    options |= _rendezvous_fields(flags, keeps_endpoint)
    checked = RunOptions(processes=processes, **options)
    return replace(checked, hidden_streams=hidden_streams(flags, processes))


def hidden_streams(flags: GroupFlags, processes: int) -> frozenset[tuple[int, str]]:
    """Return the streams that only go to the log files: (local rank, "stdout" or "stderr").

    Raises:
        GroupOptionError: a flag has an invalid value; the message names the flag, the value and
            the valid values.
    """
    redirected = _read_streams("--redirects", flags.redirects, processes)
    teed = _read_streams("--tee", flags.tee, processes)
    shown = _read_ranks(flags.local_ranks_filter, processes)
    return frozenset(
        (rank, stream)
        for rank in range(processes)
        for stream, bit in _STREAMS.items()
        if rank not in shown or (redirected[rank] & bit and not teed[rank] & bit)
    )


def script_arguments(words: Sequence[str]) -> list[str]:
    """Return the script's arguments without a leading ``--``, which torchrun drops."""
    return list(words[1:] if words and words[0] == "--" else words)


def _count_for_keyword(text: str, devices: Sequence[Device]) -> int | None:
    """Return the number of ranks for ``gpu``, ``cpu`` and the like; None for any other text."""
    kind = devices[0].kind
    has_gpu = kind != "cpu"
    if text == "cpu" or (text == "auto" and not has_gpu):
        allowed = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
        return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    if text in ("auto", kind) or (text == "gpu" and has_gpu):
        return len(devices)
    if text in ("gpu", "xpu"):
        raise GroupOptionError(
            f"--nproc-per-node {text} needs at least one {text.upper()}, and the ranks have "
            f"{devices[0].text}; write auto or a number, or use virtual GPUs: anyrig rehearse "
            "--rig 4xA100-80GB …"
        )
    return None


def _rendezvous_fields(flags: GroupFlags, keeps_endpoint: bool) -> dict[str, Any]:
    """Return the fields of `RunOptions` for the number of nodes and their rendezvous."""
    from ..processes.options import read_node_counts

    nodes = "1" if flags.nodes is None else flags.nodes
    most = read_node_counts(nodes)[1]
    if flags.rdzv_backend not in (None, "c10d", "static"):
        raise GroupOptionError(
            f"--rdzv-backend is {_shown(flags.rdzv_backend)}, and must be c10d or static: no "
            "external service such as etcd is needed. Leave the flag out, and name a node: "
            "--rdzv-endpoint node0:29400"
        )
    endpoint, port = _endpoint(flags)
    # torchrun's c10d backend numbers the nodes itself.
    node_rank = None if flags.rdzv_backend == "c10d" else flags.node_rank
    if flags.standalone:
        if most > 1:
            raise GroupOptionError(
                f"--standalone is for one node, and --nnodes is {nodes}; leave one of them out"
            )
        return {}
    if node_rank is not None and node_rank >= most:
        raise GroupOptionError(
            f"--node-rank is {node_rank}, and must be a number from 0 to {most - 1}, since "
            f"--nnodes is {nodes}"
        )
    if most == 1 and (not keeps_endpoint or port == 0):
        own_port = port if flags.master_port is None else flags.master_port
        return {"nodes": nodes, "master_port": own_port or 0}
    if port == 0:
        flag = "--master-port" if flags.rdzv_endpoint is None else "--rdzv-endpoint"
        raise GroupOptionError(
            f"{flag} makes {_shown(endpoint)} the rendezvous endpoint, and --nnodes is {nodes}: "
            "port 0 means any free port, which the other nodes could not know. Name a port from 1 "
            "to 65535"
        )
    return {"nodes": nodes, "rdzv_endpoint": endpoint, "node_rank": node_rank}


def _endpoint(flags: GroupFlags) -> tuple[str | None, int | None]:
    """Return the rendezvous endpoint, and its port if a flag names the port; None if not given."""
    host, port = flags.master_address, flags.master_port
    if host is not None:
        host = _without_brackets(host)
        _check_host("--master-addr", host)
    if flags.rdzv_endpoint is not None:
        return _read_endpoint(flags.rdzv_endpoint)
    if (host, port, flags.node_rank) == (None, None, None):
        return None, None
    shown_port = _DEFAULT_MASTER_PORT if port is None else port
    return f"{host or _DEFAULT_MASTER}:{shown_port}", port


def _read_endpoint(text: str) -> tuple[str, int | None]:
    """Return `text` as HOST:PORT with a default port, and the port, None if `text` has none."""
    from ..processes.options import is_host

    host, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        if is_host(host := _without_brackets(text)):
            return f"{host}:{_DEFAULT_RDZV_PORT}", None
    elif is_host(host := _without_brackets(host)) and _PORT.fullmatch(port) and int(port) <= 65535:
        return f"{host}:{int(port)}", int(port)
    raise GroupOptionError(
        f"--rdzv-endpoint is {_shown(text)}, and must be HOST or HOST:PORT, with a port up to "
        "65535, the same on every node: write for example node0:29400"
    )


def _rdzv_seconds(text: str) -> float | None:
    """Return the timeout of the rendezvous; None if ``--rdzv-conf`` does not set it."""
    seconds = None
    for key, value in _read_pairs(text).items():
        if key in _TIMEOUT_KEYS:
            if not _COUNT.fullmatch(value) or not int(value):
                raise GroupOptionError(
                    f"--rdzv-conf has {key}={_shown(value)}; the value must be a whole number of "
                    "seconds above 0"
                )
            seconds = max(seconds or 0.0, float(value))
        elif key not in _KEYS_WITHOUT_EFFECT:
            known = ", ".join((*_TIMEOUT_KEYS, *_KEYS_WITHOUT_EFFECT))
            raise GroupOptionError(
                f"--rdzv-conf has the unknown key {_shown(key)}; torchrun's keys are {known}"
            )
    return seconds


def _read_pairs(text: str) -> dict[str, str]:
    pairs = {}
    for pair in text.split(",") if text.strip() else ():
        key, _, value = (part.strip() for part in pair.partition("="))
        if not key or not value:
            raise GroupOptionError(
                f"--rdzv-conf is {_shown(text)}, and must be KEY=VALUE,…: write for example "
                "join_timeout=600"
            )
        pairs[key] = value
    return pairs


def _read_streams(flag: str, text: str | None, processes: int) -> list[int]:
    """Return each local rank's streams as bits: 1 is stdout, 2 is stderr."""
    text = "0" if text is None else text
    if _STREAMS_OF_ALL.fullmatch(text):
        return [int(text)] * processes
    if not _STREAMS_OF_RANKS.fullmatch(text):
        raise GroupOptionError(
            f"{flag} is {_shown(text)}, and must be 0 (neither), 1 (stdout), 2 (stderr) or 3 "
            "(both), for all ranks or for some: write 3, or 0:3,1:2"
        )
    pairs = (pair.split(":") for pair in text.split(","))
    by_rank = {int(rank): int(bits) for rank, bits in pairs}
    return [by_rank.get(rank, 0) for rank in range(processes)]


def _read_ranks(text: str | None, processes: int) -> set[int]:
    """Return the local ranks that ``--local-ranks-filter`` names; all if the text is empty."""
    if not text:
        return set(range(processes))
    if not _RANKS.fullmatch(text):
        raise GroupOptionError(
            f"--local-ranks-filter is {_shown(text)}, and must be local ranks: write 0, or 0,1"
        )
    return {int(rank) for rank in text.split(",")}


def _check_flags_without_effect(flags: GroupFlags) -> None:
    """Refuse invalid values of the flags that have no effect here, as torchrun does."""
    role, method, seconds = flags.role, flags.start_method, flags.monitor_interval_seconds
    if role is not None and not (role.isprintable() and 1 <= len(role) <= _MOST_ROLE_CHARACTERS):
        raise GroupOptionError(
            f"--role is {_shown(role)}, and must be a name of 1 to {_MOST_ROLE_CHARACTERS} "
            "printable characters"
        )
    if method is not None and method not in _START_METHODS:
        raise GroupOptionError(
            f"--start-method is {_shown(method)}, and must be {', '.join(_START_METHODS)}"
        )
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise GroupOptionError(
            f"--monitor-interval is {seconds:g}, and must be a number of seconds above 0"
        )


def _check_host(flag: str, host: str) -> None:
    from ..processes.options import is_host

    if not is_host(host):
        raise GroupOptionError(
            f"{flag} is {_shown(host)}, and must be an address or the name of a node, such as "
            "10.0.0.2 or node0"
        )


def _without_brackets(host: str) -> str:
    """Return an IPv6 address without the brackets that torchrun accepts around it."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _shown(value: object) -> str:
    from ..processes.options import shown

    return shown(value)
