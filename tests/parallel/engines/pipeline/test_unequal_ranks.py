"""A pipeline over two ranks, one on the CPU and one on a virtual GPU."""

from __future__ import annotations

import os

import torch
from torch import nn

from forked_ranks import run_forked


def test_one_rank_on_the_cpu_does_not_change_the_automatic_schedule() -> None:
    run_forked(__file__, "train", (), 2)


def train() -> None:
    """Train a pipeline in this rank, and compare it with one device."""
    if os.environ["RANK"] == "1":
        for variable in ("CUDA_VISIBLE_DEVICES", "ANYRIG_DEVICE"):
            del os.environ[variable]
        from anyrig.virtual import install

        install("2x1GiB")
    from pair_over_ranks import Pair, batch, perceptron

    import anyrig
    from anyrig.processes.group.membership import join_group

    group = join_group(timeout_seconds=30.0)
    assert group is not None
    assert group.device.type == ("cpu" if group.rank == 0 else "cuda")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    pair = Pair(perceptron(), nn.CrossEntropyLoss())
    assert "schedule 1f1b: " in str(anyrig.explain(pair.model))
    for _ in range(2):
        pair.step(*batch(19))
    torch.distributed.destroy_process_group()
