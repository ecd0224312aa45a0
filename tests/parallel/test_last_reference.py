"""A group over gloo must not die with a model: whoever lets go of it last may wait for ever."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys, weakref
import torch.distributed as dist
from anyrig.parallel.group.last_reference import keep_until_exit
from anyrig.parallel.ranks.destroyed_groups import hold_destroyed_groups

if "held" in sys.argv:
    hold_destroyed_groups()
groups = []
for _ in range(2 if "left" in sys.argv else 20):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    groups.append(weakref.ref(dist.group.WORLD))
    if "kept" in sys.argv:
        keep_until_exit(dist.group.WORLD)
    dist.destroy_process_group()
gc.collect()
print("first", "gone" if groups[0]() is None else "here")
print("last", "gone" if groups[-1]() is None else "here")
"""


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("kept", ["first here", "last here"]),
        ("held", ["first gone", "last here"]),  # a rank holds the last ones only
        ("left", ["first gone", "last gone"]),
    ],
)
def test_which_destroyed_groups_live_on(how: str, told: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, how]
    ended = subprocess.run(command, timeout=60, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == told
