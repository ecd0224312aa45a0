"""Two simulated machines: network namespaces with an address each, and a cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    namespace: str
    address: str

    def popen(
        self, *command: str, environment: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    @property
    def host(self) -> str:
        """The host name in a command that begins with `before`."""
        return f"node{self.address.rpartition('.')[2]}"

    def before(self) -> list[str]:
        """The words before a command that run it on this machine, with its host name."""
        rename = ["sh", "-c", f'hostname {self.host} && exec "$@"', "sh"]
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", *rename]

    def unplug(self) -> None:
        self._set_cable("down")

    def plug(self) -> None:
        self._set_cable("up")

    def _set_cable(self, state: str) -> None:
        subprocess.run(["ip", "-n", self.namespace, "link", "set", "cable", state], check=True)

    @contextmanager
    def closed(self, port: int) -> Iterator[None]:
        """Block connections from this machine to a port, as a firewall does."""
        rule = ["ipproto", "tcp", "dport", str(port), "unreachable", "pref", "1"]
        self._ip("rule", "add", *rule)
        # The table "local" comes first, and has only this machine's own addresses.
        try:
            yield
        finally:
            self._ip("rule", "del", *rule)

    @contextmanager
    def another_interface(self, name: str, address: str) -> Iterator[None]:
        """Add an interface that leads to no other machine, such as a container network's."""
        self._ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        self._ip("addr", "add", f"{address}/24", "dev", name)
        for end in (name, f"{name}-end"):
            self._ip("link", "set", end, "up")
        try:
            yield
        finally:
            self._ip("link", "del", name)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", "-n", self.namespace, *words], check=True)


def lack() -> str | None:
    """Return why two machines cannot be simulated here, or None."""
    if shutil.which("ip") is None:
        return "needs the command ip (iproute2)"
    probe = f"anyrig-{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"needs network namespaces, which are root's: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    tag = uuid.uuid4().hex[:6]
    machines = tuple(Machine(f"anyrig-{tag}-{i}", f"10.77.0.{i + 1}") for i in range(2))
    ends = [f"ar{tag}{i}" for i in range(2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for machine in machines:
            ip("netns", "add", machine.namespace)
            ip("-n", machine.namespace, "link", "set", "lo", "up")
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for machine, end in zip(machines, ends, strict=True):
            ip("link", "set", end, "netns", machine.namespace, "name", "cable")
            ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", "cable")
            ip("-n", machine.namespace, "link", "set", "cable", "up")
        yield machines[0], machines[1]
    finally:
        for machine in machines:
            subprocess.run(["ip", "netns", "del", machine.namespace], check=False)
