"""Which of NCCL's process groups the ranks create, and which GPU each rank's group belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from ...devices.rank import LocalRank
from ...devices.rig import Rig
from ..nccl_class import VARIABLE, class_of_nccl, has_effect, takes_device_of_local_rank
from ..options import RunOptions
from .finding import Finding, doubtful, good


def check_nccl_group(rig: Rig, options: RunOptions) -> Iterator[Finding]:
    """Yield findings on the process group of "nccl", if the ranks compute on NVIDIA GPUs."""
    import torch
    import torch.distributed as dist

    if rig.lead.kind == "cuda" and dist.is_available() and dist.is_nccl_available():
        yield from judge_nccl_group(torch.__version__, os.environ, len(rig), options.processes)


def judge_nccl_group(
    version: str, environment: Mapping[str, str], devices: int, ranks: int
) -> Iterator[Finding]:
    """Judge the process group of this version of PyTorch for `ranks` ranks on `devices` GPUs."""
    value = environment.get(VARIABLE)
    text = f'"nccl" of torch {version} is {class_of_nccl(version, environment)}'
    if value is not None and not has_effect(version, value):
        yield doubtful(
            "process group",
            f"{text}, and {VARIABLE}={value} has no effect on this version",
            f"unset {VARIABLE}",
        )
        return
    if value is not None:
        text += f", by {VARIABLE}={value}"
    if not takes_device_of_local_rank(version, environment):
        yield good("process group", text)
        return
    text += "; without device_id it belongs to the GPU of LOCAL_RANK"
    for rank in range(ranks):
        own, taken = LocalRank(rank, ranks).device_index(devices), rank % devices
        if own != taken:
            yield doubtful(
                "process group",
                f"{text}, modulo the number of GPUs, {devices}: GPU {taken} for rank {rank}, whose "
                f"own is GPU {own}",
                "start one rank on each GPU, or pass "
                "device_id=anyrig.Rig.detect().lead.torch_device to init_process_group",
            )
            return
    yield good("process group", text)
