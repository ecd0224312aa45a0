"""A group over gloo must not die with a model: whoever lets go of it last may wait for ever."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys, weakref
import torch.distributed as dist
from anyrig.parallel.group.last_reference import keep_until_exit

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = weakref.ref(dist.group.WORLD)
if "kept" in sys.argv:
    keep_until_exit(dist.group.WORLD)
dist.destroy_process_group()
gc.collect()
print("here" if group() is not None else "gone")
"""


@pytest.mark.parametrize(("how", "told"), [("kept", "here"), ("left", "gone")])
def test_a_kept_group_lives_as_long_as_the_process(how: str, told: str) -> None:
    command = [sys.executable, "-c", PROGRAM, how]
    ended = subprocess.run(command, timeout=60, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [told]
