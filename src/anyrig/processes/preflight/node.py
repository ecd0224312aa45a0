"""What one machine says of itself to the others."""

from __future__ import annotations

import json
import platform
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from ...devices.nvml_session import session
from ...devices.rig import Rig
from ...errors import LaunchError
from .finding import Finding, bad, doubtful, good

# Further apart, and the logs of two machines cannot be read side by side.
_CLOCKS_APART_SECONDS = 2.0

# What must agree, and why; the rest may differ.
_MUST_AGREE = {
    "torch": "ranks of different versions may hang in their first collective",
    "nccl": "NCCL refuses to connect different versions",
    "anyrig": "its ranks may not understand each other",
}
_SHOULD_AGREE = {
    "python": "what one rank pickles, another may not load",
    "cuda": "results may differ between the machines",
    "driver": "one machine may lack what another has",
}


@dataclass(frozen=True)
class Node:
    """A machine of the group.

    Attributes:
        host: its name.
        address: by which the others reach it.
        interfaces: other addresses that its ranks are told to use, and by what.
        probe_port: a port that it listens on while it is being looked at.
        versions: of torch, nccl, cuda, driver, python and anyrig; what is not there is left out.
        devices: the devices of its ranks, in words.
        unix_seconds: its clock, when it said so.
    """

    host: str
    address: str
    probe_port: int
    interfaces: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    unix_seconds: float = 0.0

    @classmethod
    def here(cls, rig: Rig, address: str, interfaces: dict[str, str], probe_port: int) -> Node:
        """Return what this machine is."""
        return cls(
            host=socket.gethostname(),
            address=address,
            probe_port=probe_port,
            interfaces=interfaces,
            versions=_versions(),
            devices=tuple(str(device) for device in rig),
            unix_seconds=time.time(),
        )

    def __str__(self) -> str:
        return f"{self.host} ({self.address})"


def read_node(text: bytes) -> Node:
    """Return the machine that another one described as JSON.

    Raises:
        LaunchError: it is no such description, whatever it is.
    """
    try:
        said = json.loads(text)
        node = Node(**{**said, "devices": tuple(said["devices"])})
        pairs = [*node.interfaces.items(), *node.versions.items()]
        words = [node.host, node.address, *node.devices, *chain(*pairs)]
        is_one = all(isinstance(word, str) for word in words)
        is_one = is_one and isinstance(node.probe_port, int) and 0 < node.probe_port < 2**16
        is_one = is_one and isinstance(node.unix_seconds, float)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        is_one = False
    if not is_one:
        raise LaunchError(
            "what was written at the meeting place describes no machine. Run the same version of "
            "anyrig doctor on every machine, and let only these reach the meeting place"
        )
    return node


def compare(nodes: Sequence[Node], heard_after_seconds: Sequence[float]) -> Iterator[Finding]:
    """Compare machines; the first is this one.

    A node's word was on its way for `heard_after_seconds` at most, and its clock is not known
    better than that.
    """
    here = nodes[0]
    for what, why in (_MUST_AGREE | _SHOULD_AGREE).items():
        seen = {node.address: node.versions.get(what, "none") for node in nodes}
        if len(set(seen.values())) == 1:
            if seen[here.address] != "none":
                yield good("versions", f"{what} {seen[here.address]}")
            continue
        differs = bad if what in _MUST_AGREE else doubtful
        listed = ", ".join(f"{seen[node.address]} on {node}" for node in nodes)
        text = f"{what} differs: {listed}; {why}"
        yield differs("versions", text, f"install one {what} everywhere")
    for node, seconds in zip(nodes[1:], heard_after_seconds[1:], strict=True):
        apart = abs(node.unix_seconds - here.unix_seconds)
        if apart > _CLOCKS_APART_SECONDS + seconds:
            yield doubtful(
                "clocks",
                f"the clocks of {here} and {node} are some {apart:.0f} s apart",
                "let both follow a time server (timedatectl set-ntp true)",
            )


def _versions() -> dict[str, str]:
    import torch

    from ... import __version__

    versions = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "anyrig": __version__,
    }
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    with suppress(Exception):  # a build without NCCL, or a library that does not load
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    with suppress(Exception), session() as nvml:  # no driver
        versions["driver"] = str(nvml.call("nvmlSystemGetDriverVersion"))
    return versions
