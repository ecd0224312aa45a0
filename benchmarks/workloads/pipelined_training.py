"""Training steps with micro-batches in one process: anyrig, torchgpipe, or the bare module.

A step has the same layers, micro-batches and mean loss with each engine. The ranks of
torch.distributed.pipelining are in `ranked_pipeline.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from workloads.language_model import Layer

RIG = "8xA100-80GB"
LAYERS, WIDTH, HEADS, TOKENS, SAMPLES = 16, 2048, 16, 256, 8  # samples of each micro-batch


@dataclass(frozen=True)
class PipelineRun:
    """Steps of training on the first devices of the rig.

    Attributes:
        engine: ``"anyrig"``, ``"torchgpipe"``, ``"pipelining"`` (torch.distributed.pipelining),
            ``"pipelining, parts"`` (the same, with losses that the caller divides), or ``"bare"``
            (one device without a pipeline).
        devices: the number of devices.
        micro_batches: the number of micro-batches in a step.
        schedule: anyrig's name for it.
        steps: the number of measured steps.
    """

    engine: str
    devices: int
    micro_batches: int
    schedule: str = "1f1b"
    steps: int = 2


def build_layers(count: int) -> nn.Sequential:
    return nn.Sequential(*(Layer(WIDTH, HEADS) for _ in range(count)))


def batch_shape(run: PipelineRun) -> tuple[int, int, int]:
    return run.micro_batches * SAMPLES, TOKENS, WIDTH


def measure_in_one_process(run: PipelineRun) -> dict[str, Any]:
    """Return the figures of one run. Needs the virtual rig."""
    from anyrig.virtual import clock

    module = build_layers(LAYERS)
    compute = _computation(run, module)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    x = torch.zeros(batch_shape(run), device="cuda:0")
    y = torch.zeros_like(x, device=f"cuda:{run.devices - 1}")

    def step() -> None:
        compute(x, y)
        optimizer.step()
        optimizer.zero_grad()

    def wait() -> float:
        for index in range(run.devices):
            torch.cuda.synchronize(index)
        return clock().done_seconds

    step()
    start, host_start = wait(), clock().host_seconds
    resting = [torch.cuda.memory_allocated(index) for index in range(run.devices)]
    gradients = [0] * run.devices
    for parameter in module.parameters():
        gradients[parameter.device.index or 0] += parameter.numel() * parameter.element_size()
    for index in range(run.devices):
        torch.cuda.reset_peak_memory_stats(index)
    for _ in range(run.steps):
        step()
    host_seconds = clock().host_seconds - host_start
    peaks = [torch.cuda.max_memory_allocated(index) for index in range(run.devices)]
    return {
        "step_seconds": (wait() - start) / run.steps,
        "host_seconds": host_seconds / run.steps,
        "peak_bytes": peaks,
        "resting_bytes": resting,  # parameters and the batch
        "gradient_bytes": gradients,
    }


def _computation(run: PipelineRun, module: nn.Sequential) -> Callable[[Any, Any], None]:
    """Return the forward and backward passes of a step, after placing `module` on the devices."""
    import anyrig

    criterion = nn.MSELoss()
    if run.engine == "bare":
        module.cuda()

        def compute_parts(x: Any, y: Any) -> None:
            parts = x.chunk(run.micro_batches), y.chunk(run.micro_batches)
            for part, target in zip(*parts, strict=True):
                (criterion(module(part), target) / run.micro_batches).backward()

        return compute_parts
    if run.engine == "torchgpipe":
        from torchgpipe import GPipe

        # The last release is of 2020.
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")
        pipeline: Any = GPipe(
            module,
            balance=[LAYERS // run.devices] * run.devices,
            devices=range(run.devices),
            chunks=run.micro_batches,
            checkpoint="never",
        )
        return lambda x, y: criterion(pipeline(x), y).backward()
    rig = anyrig.Rig.parse(",".join(f"cuda:{index}" for index in range(run.devices)))
    model = anyrig.spread(
        module.cuda(),
        rig,
        plan=anyrig.Pipeline(micro_batches=run.micro_batches, schedule=run.schedule),
        loss=criterion,
    )
    return lambda x, y: model(x, target=y).backward()
