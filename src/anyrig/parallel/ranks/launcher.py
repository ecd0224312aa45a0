"""Start the ranks of this node and stay until they have ended: torchrun's agent as a library."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry
from torch.distributed.elastic.rendezvous.api import RendezvousHandler

from ...errors import LaunchError
from .agent import RankAgent
from .failure import GroupFailure, describe
from .guardian import Guardian
from .loopback import ADDRESS, LoopbackRendezvous
from .options import RunOptions
from .route import INTERFACE_VARIABLES, address_towards, interface_of, is_host_of

# What stands before each line of a rank's output.
_LABEL = "[rank ${rank}] "

_HANDLED_BY_AGENT = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
]


@dataclass(frozen=True)
class GroupResult:
    """How a group of ranks ended.

    Attributes:
        values: what each rank of this node returned, by rank; None for a command.
        failure: why it failed, or None.
        signal: what ended the launcher, or None.
    """

    values: Mapping[int, Any]
    failure: GroupFailure | None = None
    signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """As torchrun: 0, or 1 after a failure, or 128 and the signal's number as in a shell."""
        if self.signal is not None:
            return 128 + self.signal
        return 0 if self.failure is None else 1


def run_group(
    options: RunOptions,
    entrypoint: Callable[..., Any] | str,
    arguments: Sequence[Any],
    environment: Mapping[str, str] | None = None,
) -> GroupResult:
    """Run `entrypoint` with `arguments` in each rank of this node, and wait for all of them.

    Args:
        options: how many, where, how often again.
        entrypoint: a function that can be pickled, or the path of a program.
        arguments: the same for every rank.
        environment: variables for the ranks, beside those of this process and of torchrun.

    Raises:
        LaunchError: the nodes did not meet in time, or the ranks could not be started.
    """
    _hush_agent()
    folder = options.log_folder or Path(tempfile.mkdtemp(prefix="anyrig-run-"))
    options = _with_address(options)
    defaults = {"OMP_NUM_THREADS": str(options.threads_per_process), **_interface(options)}
    variables = defaults | dict(os.environ) | dict(environment or {})
    with Guardian() as guardian, _environment(variables):
        rendezvous = _meet(options)
        agent = _agent(options, rendezvous, entrypoint, arguments, folder, guardian)
        stopped_by: signal.Signals | None = None
        values: Mapping[int, Any] = {}
        try:
            values = agent.run().return_values
        except SignalException as stopped:
            stopped_by = stopped.sigval
        except Exception as error:
            raise LaunchError(f"the ranks of this node could not be run: {error}") from error
        finally:
            rendezvous.shutdown()
            agent.close_logs()
    failure = describe(agent.failures, agent.folders) if agent.failures else None
    if options.log_folder is None and failure is None:
        shutil.rmtree(folder, ignore_errors=True)
    return GroupResult(values, failure, stopped_by)


def _with_address(options: RunOptions) -> RunOptions:
    """Return `options` with the address by which the other machines reach this one."""
    if options.rdzv_endpoint is None or options.local_address is not None:
        return options
    host = options.rdzv_endpoint.rpartition(":")[0]
    return replace(options, local_address=address_towards(host))


def _interface(options: RunOptions) -> dict[str, str]:
    """Return the variables that have the ranks talk over the interface of this machine's address,
    and over the loopback where there is one machine.
    """
    address = ADDRESS if options.rdzv_endpoint is None else options.local_address
    name = None if address is None else interface_of(address)
    return {} if name is None else dict.fromkeys(INTERFACE_VARIABLES, name)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have `variables` as this process's, from which the agent gives the ranks theirs; for a while.

    The signals that the agent handles are this process's own again afterwards, too.
    """
    before = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in _HANDLED_BY_AGENT}
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _agent(
    options: RunOptions,
    rendezvous: RendezvousHandler,
    entrypoint: Callable[..., Any] | str,
    arguments: Sequence[Any],
    folder: Path,
    guardian: Guardian,
) -> RankAgent:
    spec = WorkerSpec(
        role="rank",
        local_world_size=options.processes,
        entrypoint=entrypoint,
        args=tuple(arguments),
        rdzv_handler=rendezvous,
        max_restarts=options.max_restarts,
        monitor_interval=0.1,
        local_addr=options.local_address,
    )
    logs = DefaultLogsSpecs(log_dir=str(folder), tee=Std.ALL, redirects=Std.NONE)
    return RankAgent(spec, logs_specs=logs, log_line_prefix_template=_LABEL, guardian=guardian)


def _meet(options: RunOptions) -> RendezvousHandler:
    """Return where the nodes meet: over the network only if there are several."""
    fewest, most = options.node_counts
    if options.rdzv_endpoint is None:
        return LoopbackRendezvous()
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=options.rdzv_endpoint,
        run_id=options.rdzv_id,
        min_nodes=fewest,
        max_nodes=most,
        local_addr=options.local_address,
        join_timeout=int(options.rdzv_timeout_seconds),
        # torchrun asks the machine's name, which may lead to the loopback only.
        is_host=str(is_host_of(options.rdzv_endpoint.rpartition(":")[0])),
    )
    try:
        return rendezvous_registry.get_rendezvous_handler(parameters)
    except Exception as error:
        raise LaunchError(
            f"the nodes cannot meet at {options.rdzv_endpoint}: {error}; look with: "
            f"anyrig doctor --rdzv-endpoint {options.rdzv_endpoint}"
        ) from error


def _hush_agent() -> None:
    # What it would say of a failure is said once, by `failure`. Each of its loggers has a level.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.stdout.flush()
    sys.stderr.flush()
