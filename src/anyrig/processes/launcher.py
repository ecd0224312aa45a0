"""Start the ranks of this node with torchrun's agent, and wait until they have ended."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousTimeoutError,
)

from ..errors import LaunchError
from ..private_names import refuse_missing
from .agent import RankAgent
from .attempts import Attempt
from .failure import GroupFailure
from .guardian import Guardian
from .host_memory import keep_freed_memory
from .log_folder import keep_log_folder, new_log_folder
from .loopback import ADDRESS, LoopbackRendezvous
from .network_rendezvous import NetworkRendezvous
from .options import RunOptions
from .route import INTERFACE_VARIABLES, address_towards, interface_of
from .stopping_signals import handled_by, stop
from .time_limit import TIME_LIMIT_VARIABLE

_AGENT_LOGGERS = "torch.distributed.elastic"

# The launcher opens two logs for each rank, each for writing and for reading, and other files.
_FILES_OF_A_RANK = 4
_OTHER_FILES = 64

# How long to wait for the rendezvous to close.
_CLOSING_SECONDS = 1.0


@dataclass(frozen=True)
class GroupResult:
    """How a group of ranks ended.

    Attributes:
        failure: why the group failed; None if it succeeded.
        signal: the signal that ended the launcher, or None.
        attempts: the attempts of this node, in their order.
    """

    failure: GroupFailure | None = None
    signal: signal.Signals | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, 1 after a failure as with torchrun, or 128 + signal number as in a shell."""
        if self.signal is not None:
            return 128 + self.signal
        return 0 if self.failure is None else 1


def run_group(
    options: RunOptions,
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]] = (),
    temporary_folders: Sequence[Path] = (),
) -> GroupResult:
    """Run a Python program in each rank of this node, and wait for all of them.

    Args:
        options: the number of ranks, the rendezvous, the number of restarts and so on.
        command: the arguments of the Python interpreter, the same for every rank.
        environments: for each local rank, the variables to set in addition to those of this
            process and of torchrun; or empty.
        temporary_folders: folders of the caller to remove if this process is killed.

    Raises:
        LaunchError: the nodes did not join the rendezvous in time, the ranks could not be
            started, or this PyTorch is newer than the tested versions and misses private names.
    """
    refuse_missing("processes")
    _check_open_files(options.processes)
    sys.stdout.flush()
    sys.stderr.flush()
    options = _with_address(options)
    environments = _with_defaults(environments, options)
    with Guardian() as guardian, _quiet_agent(), handled_by(stop):
        for each in temporary_folders:
            guardian.remove(each)
        folder = options.log_dir
        if folder is None:
            folder = new_log_folder()
            guardian.remove(folder)
        rendezvous: RendezvousHandler | None = None
        agent: RankAgent | None = None
        stopped_by: signal.Signals | None = None
        try:
            rendezvous = _open_rendezvous(options)
            agent = RankAgent(options, rendezvous, command, environments, folder, guardian)
            agent.run()
        except SignalException as stopped:
            stopped_by = stopped.sigval
        except RendezvousConnectionError as error:
            # The node that hosts the rendezvous is lost; the agent's report has more details.
            if agent is None or agent.failure is None:
                raise LaunchError(f"the connection to the rendezvous is lost: {error}") from error
        except LaunchError:
            raise
        except Exception as error:
            raise LaunchError(_sentence(error, options)) from error
        finally:
            if agent is not None:
                agent.close_logs()
            if rendezvous is not None and stopped_by in (None, signal.SIGINT):
                _close(rendezvous)
        failure = None if agent is None else agent.failure
        if failure is not None and stopped_by is None:
            guardian.keep(folder)
            if options.log_dir is None:
                keep_log_folder(folder)
        for each in temporary_folders:
            guardian.keep(each)
    return GroupResult(failure, stopped_by, () if agent is None else tuple(agent.attempts))


def _check_open_files(processes: int) -> None:
    """Refuse more ranks than this process may open files for."""
    if sys.platform == "win32":
        return
    import resource

    needed = _FILES_OF_A_RANK * processes + _OTHER_FILES
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit not in (-1, resource.RLIM_INFINITY) and limit < needed:
        raise LaunchError(
            f"the launcher needs {needed} open files for {processes} ranks, and its limit is "
            f"{limit}; raise the limit (ulimit -n {needed}), or start fewer ranks"
        )


def _sentence(error: Exception, options: RunOptions) -> str:
    """Return why the agent failed, as a sentence."""
    if isinstance(error, RendezvousTimeoutError):
        return (
            f"fewer than {options.node_counts[0]} nodes joined at {options.rdzv_endpoint} within "
            f"{options.rdzv_timeout_seconds:.0f} s; start the same command on every node, or check "
            f"with: anyrig doctor --rdzv-endpoint {options.rdzv_endpoint}"
        )
    if isinstance(error, RendezvousClosedError):
        return f"another node has ended the job {options.rdzv_id!r} at {options.rdzv_endpoint}"
    return f"the ranks of this node could not be run: {error or repr(error)}"


def _close(rendezvous: RendezvousHandler) -> None:
    """Close the rendezvous to further nodes; give up after `_CLOSING_SECONDS`."""
    closing = threading.Thread(target=rendezvous.shutdown, name="anyrig-closing", daemon=True)
    closing.start()
    closing.join(_CLOSING_SECONDS)


def _with_address(options: RunOptions) -> RunOptions:
    """Return `options` with the address by which the other nodes reach this one."""
    if options.rdzv_endpoint is None or options.local_address is not None:
        return options
    host = options.rdzv_endpoint.rpartition(":")[0]
    return replace(options, local_address=address_towards(host))


def _interface(options: RunOptions) -> dict[str, str]:
    """Return the variables that name the interface between ranks; on one node, the loopback."""
    address = ADDRESS if options.rdzv_endpoint is None else options.local_address
    name = None if address is None else interface_of(address)
    return {} if name is None else dict.fromkeys(INTERFACE_VARIABLES, name)


def _with_defaults(
    environments: Sequence[Mapping[str, str]], options: RunOptions
) -> list[dict[str, str]]:
    """Return `environments` with defaults for variables that this process does not set either."""
    defaults = {"OMP_NUM_THREADS": str(options.threads_per_process), **_interface(options)}
    own = {name: value for name, value in defaults.items() if name not in os.environ}
    if options.timeout_seconds is not None:
        own[TIME_LIMIT_VARIABLE] = str(options.timeout_seconds)
    return [
        own | keep_freed_memory(environment, os.environ) | dict(environment)
        for environment in environments or [{}] * options.processes
    ]


def _open_rendezvous(options: RunOptions) -> RendezvousHandler:
    """Return the rendezvous, which uses the network only if there is a rendezvous endpoint."""
    if options.rdzv_endpoint is None:
        return LoopbackRendezvous(options.master_port)
    try:
        return NetworkRendezvous.at_endpoint(options)
    except SignalException:
        raise
    except Exception as error:
        raise LaunchError(
            f"the rendezvous at {options.rdzv_endpoint} failed: {error}; check with: "
            f"anyrig doctor --rdzv-endpoint {options.rdzv_endpoint}"
        ) from error


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """Keep PyTorch's agent from logging failures, which `failure` reports in full.

    Log levels would not do: after two concurrent launches, the last to end would restore the levels
    that the other had set.
    """

    def is_critical(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.CRITICAL

    # A logger's filter does not apply to its child loggers.
    names = [name for name in logging.root.manager.loggerDict if name.startswith(_AGENT_LOGGERS)]
    for name in names:
        logging.getLogger(name).addFilter(is_critical)
    try:
        yield
    finally:
        for name in names:
            logging.getLogger(name).removeFilter(is_critical)
