"""Gloo groups are kept alive, since releasing the last reference may wait forever.

The end of the process, and forks, wait until the threads of the groups are idle.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, weakref
import torch.distributed as dist
from anyrig.processes.torch_faults import hold_destroyed_groups, keep_until_exit

def use_group(keep=False):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = weakref.ref(dist.group.WORLD)
    if keep:
        keep_until_exit(dist.group.WORLD)
    dist.destroy_process_group()
    return group

def report(*groups):
    gc.collect()
    print(*("gone" if group() is None else "here" for group in groups))

report(use_group())
report(use_group(keep=True))
hold_destroyed_groups()
groups = [use_group() for _ in range(20)]
report(groups[0], groups[-1])
"""


def test_the_last_destroyed_groups_are_held() -> None:
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, timeout=60, capture_output=True, text=True, check=True)
    # A rank holds only the last groups.
    assert ended.stdout.splitlines() == ["gone", "here", "gone here"]


# A collective that is still going on, and then a call that keeps the GIL until Python ends.
ENDING = """
import atexit, ctypes
import torch
import torch.distributed as dist
from anyrig.processes.torch_faults import keep_until_exit

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
keep_until_exit(dist.group.WORLD)

def gather():
    numbers = torch.ones(2**24)
    dist.all_gather([torch.empty_like(numbers)], numbers, async_op=True)

atexit.register(ctypes.PyDLL(None).usleep, 500_000)
atexit.register(gather)
"""


def test_python_ends_after_the_threads_of_a_group() -> None:
    command = [sys.executable, "-c", ENDING]
    ended = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


# A thread with the name of gloo's works for a while in C++, and the process forks meanwhile.
FORKING = """
import ctypes, os, threading, time
import torch
import torch.distributed as dist
from anyrig.processes.torch_faults import hold_destroyed_groups, keep_until_exit

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
BEGIN
numbers = torch.ones(2**24)
works = threading.Event()
started = time.monotonic()

def work():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0)
    works.set()
    while time.monotonic() < started + 0.3:
        numbers.sum()
    global ended
    ended = time.monotonic()

ended = float("inf")
threading.Thread(target=work).start()
works.wait()
for _ in range(2):
    child = os.fork()
    if child == 0:
        os.fork() or os._exit(0)  # neither waits for threads that only the parent has
        os._exit(time.monotonic() < ended)
    assert os.waitpid(child, 0) == (child, 0)
"""


@pytest.mark.skipif(sys.version_info >= (3, 11, 10), reason="forks of this Python cannot hang")
@pytest.mark.parametrize("begin", ["keep_until_exit(dist.group.WORLD)", "hold_destroyed_groups()"])
def test_forks_wait_for_the_threads_of_a_group(begin: str) -> None:
    command = [sys.executable, "-c", FORKING.replace("BEGIN", begin)]
    ended = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
