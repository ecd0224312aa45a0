"""Tests in this folder run as rank 0 of ranks that do not run: see ../test_on_lone_rank.py."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

RIG = os.environ.get("ANYRIG_TEST_LONE_RIG")

if RIG is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from anyrig.virtual import install

    install(RIG, shape_only=True, lone_rank=True)


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """Make the default group, by the variables that torchrun sets."""
    import torch
    import torch.distributed as dist

    ranks = {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}
    os.environ.update(ranks | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    yield
    dist.destroy_process_group()
