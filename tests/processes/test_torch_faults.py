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

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

LABEL = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
raise ValueError("mine")
"""

# A collective that is still going on, and then a call that keeps the GIL until Python ends.
ABORT = """
import atexit, ctypes
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def gather():
    numbers = torch.ones(2**24)
    dist.all_gather([torch.empty_like(numbers)], numbers, async_op=True)

atexit.register(ctypes.PyDLL(None).usleep, 500_000)
atexit.register(gather)
"""

# Each reducer holds the last reference to its group, a thread of which runs a function in Python.
# Up to PyTorch 2.13, one of the first five hangs.
HANG = """
import os
import torch
import torch.distributed as dist

def use_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print("met", flush=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    work = dist.all_reduce(torch.ones(2**20), async_op=True)
    work.get_future().then(lambda future: None)
    dist.destroy_process_group()
    reducer = model.reducer
    del work, model
    del reducer

for _ in range(20):
    use_group()
os._exit(0)
"""

FREE_OF_HANGS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)


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


@pytest.mark.skipif(FREE_OF_HANGS, reason="2.14 ends the fault, as the next test shows")
def test_a_reducer_waits_with_the_gil_for_a_thread_that_needs_it() -> None:
    assert hangs(seconds=10), (
        "keep_until_exit, hold_destroyed_groups and end_rank are not needed in this version; name "
        "it in torch_faults.py (pytorch#75097, #56297)"
    )


@pytest.mark.skipif(not FREE_OF_HANGS, reason="up to 2.13, the program hangs: the previous test")
def test_a_reducer_waits_without_the_gil_since_2_14() -> None:
    # Once 2.13 is no longer supported, keep_until_exit and hold_destroyed_groups can go.
    assert not hangs(seconds=120)


def hangs(seconds: float) -> bool:
    """Return whether the program is still running this long after its first group has met."""
    program = [sys.executable, "-c", HANG]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "met\n"
        try:
            assert process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            process.kill()
    return False


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
