"""Ranks as forks of this process, which need no time to import PyTorch."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

LIMIT_SECONDS = 120.0


def start_ranks(count: int, work: Callable[[], object]) -> list[int]:
    """Fork `count` ranks that call `work`, and return their process ids. One has no group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sys.stdout.flush()
    return [_fork(rank, count, port, work) for rank in range(count)]


def wait_for_ranks(pids: list[int]) -> list[int]:
    """Return how each rank ended, as `os.waitstatus_to_exitcode` does; kill them in the end."""
    end = time.monotonic() + LIMIT_SECONDS
    codes: dict[int, int] = {}
    try:
        while len(codes) < len(pids) and time.monotonic() < end:
            for pid in pids:
                if pid not in codes and (found := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[pid] = os.waitstatus_to_exitcode(found[1])
            time.sleep(0.002)
        assert len(codes) == len(pids), f"ranks did not end: {set(pids) - codes.keys()}"
    finally:
        kill_ranks([pid for pid in pids if pid not in codes])
    return [codes[pid] for pid in pids]


def kill_ranks(pids: list[int]) -> None:
    """Kill ranks, and wait until they have ended."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def _fork(rank: int, count: int, port: int, work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if count > 1:
            place = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank}
            place |= {"LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
            os.environ |= {name: str(value) for name, value in place.items()}
            os.environ["MASTER_ADDR"] = "127.0.0.1"
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)  # nothing of the parent is cleaned up here
