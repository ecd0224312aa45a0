"""The faults that `anyrig.processes.torch_faults` works around; a fixed fault fails its test.

The message names the function that can go once no older PyTorch is supported.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.metadata import metadata

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from anyrig.private_names import OLDEST

LABEL = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
raise ValueError("mine")
"""

# Collectives that are still going on, and then a call that keeps the GIL until Python ends: no
# other function runs between the two, nor after them, as they are registered before all others.
ABORT = """
import atexit, ctypes

def gather():
    numbers = torch.ones(2**22)
    for _ in range(16):
        dist.all_gather([torch.empty_like(numbers)], numbers, async_op=True)

atexit.register(ctypes.PyDLL(None).usleep, 500_000)
atexit.register(gather)

import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


def start(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)


def test_lines_of_a_traceback_are_labelled() -> None:
    _, labelled = start(LABEL).communicate(timeout=60)
    assert "[rank0]: ValueError: mine" in labelled, (
        "PyTorch labels no traceback any more: drop_rank_prefix can go (#118190)"
    )


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python lets such threads hang instead")
def test_python_ends_while_threads_of_gloo_need_it() -> None:
    # On a busy machine the collective may end too early or too late for the fault to show.
    for _ in range(5):
        program = start(ABORT)
        program.communicate(timeout=60)
        if program.returncode < 0:
            return
    pytest.fail(
        "a thread of gloo that needs the GIL at the end no longer aborts the process: "
        "_await_idle_threads and end_launcher can go (pytorch#190489)"
    )


def test_some_supported_version_waits_with_the_gil() -> None:
    # Tried by hand on 2026-11-28: processes with 20 groups hang up to 2.13, and not with 2.14.1 and
    # 2.15.0.
    assert OLDEST < (2, 14), (
        "keep_until_exit, hold_destroyed_groups and the part of end_rank that holds groups can go "
        "(pytorch#75097, #56297)"
    )


def test_some_supported_python_may_hang_after_a_fork() -> None:
    oldest = metadata("anyrig")["Requires-Python"].removeprefix(">=").split(".")
    assert tuple(map(int, oldest)) < (3, 12), (
        "_await_before_forks can go (python/cpython#112275, mended in 3.10.15 and 3.11.10)"
    )


def test_the_store_waits_for_an_answer_beyond_its_timeout() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with relay(server.port) as (port, cut):
        client = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=0.2))
        assert not client.check(["key"])
        cut.set()

        def ask() -> None:
            with suppress(dist.DistNetworkError):
                client.check(["key"])

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(0.8)
        waits = asking.is_alive()
    asking.join(30)
    assert waits, "the store gives up by itself: bound_answers can go"


@contextmanager
def relay(to: int) -> Iterator[tuple[int, threading.Event]]:
    """Yield a port that forwards to another one until an event is set."""
    cut = threading.Event()
    sockets: list[socket.socket] = []

    def pass_on(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(2**16):
                if not cut.is_set():
                    sink.sendall(piece)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection(("127.0.0.1", to))
                sockets.extend((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pass_on, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listening.getsockname()[1], cut
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for each in sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()


def test_attempts_share_the_first_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    handler = get_rendezvous_handler(
        RendezvousParameters("c10d", endpoint, "test", 1, 1, is_host="True")
    )
    try:
        first, second = (handler.next_rendezvous().bootstrap_store_info for _ in range(2))
    finally:
        handler.shutdown()
    assert first.master_port == second.master_port, (
        "PyTorch opens a store for each attempt (pytorch#135712): look what of NetworkRendezvous "
        "is still needed"
    )
