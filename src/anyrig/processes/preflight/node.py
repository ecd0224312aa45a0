"""Descriptions of nodes, and their comparison."""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ...devices.nvml_session import session
from ...devices.rig import Rig
from ...errors import LaunchError
from ..checked_json import BadMessageError, read_json
from .finding import Finding, bad, doubtful, good

# With a larger difference of clocks, the logs of two nodes are hard to compare.
_CLOCKS_APART_SECONDS = 2.0

_MUST_AGREE = {
    "torch": "ranks of different versions may hang in their first collective",
    "nccl": "NCCL refuses to connect different versions",
    "anyrig": "ranks of different versions may not understand each other",
}
_SHOULD_AGREE = {
    "python": "a rank may fail to load an object that another rank pickled",
    "cuda": "results may differ between the nodes",
    "driver": "a feature of one node may be missing on another",
}


@dataclass(frozen=True)
class Node:
    """The description of a node of the group.

    Attributes:
        host: the node's name.
        address: the address by which the other nodes reach it.
        probe_port: the port at which it listens during the checks.
        interfaces: further addresses that its ranks use, and the variables that name them.
        versions: the versions of torch, nccl, cuda, driver, python and anyrig, if installed.
        devices: descriptions of the ranks' devices.
        unix_seconds: the node's clock when the description was made.
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
        """Return the description of this node."""
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
    """Return the node that `text` describes as JSON.

    Raises:
        LaunchError: `text` is malformed. Even a hostile string raises no other exception.
    """
    with suppress(BadMessageError):
        node = read_json(Node, text)
        if 0 < node.probe_port < 2**16:
            return node
    raise LaunchError(
        "a node's description in the rendezvous store is malformed. Run the same version of anyrig "
        "doctor on every node, and let no other program connect to the rendezvous endpoint"
    )


def compare(nodes: Sequence[Node], delays_seconds: Sequence[float]) -> Iterator[Finding]:
    """Compare the versions and clocks of nodes. The first node is this node.

    Each node's description took at most its entry of `delays_seconds` to arrive, which bounds the
    error of the comparison of clocks.
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
    for node, seconds in zip(nodes[1:], delays_seconds[1:], strict=True):
        apart = abs(node.unix_seconds - here.unix_seconds)
        if apart > _CLOCKS_APART_SECONDS + seconds:
            yield doubtful(
                "clocks",
                f"the clocks of {here} and {node} are about {apart:.0f} s apart",
                "synchronize both with a time server (timedatectl set-ntp true)",
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
    with suppress(Exception):  # PyTorch without NCCL, or a library that cannot be loaded
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    with suppress(Exception), session() as nvml:  # no driver
        versions["driver"] = str(nvml.call("nvmlSystemGetDriverVersion"))
    return versions
