"""`rehearse`, which measures training runs on a shape-only virtual rig in a child process.

::

    benchmark ── rehearse(rig, [Training(...), ...]) ──▶ child: install(rig), build, step, step, ...
              ◀── JSON: step time on the virtual clock, peak bytes, explanation ──
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1]
TIMEOUT_SECONDS = 1800  # ample, for a busy machine


@dataclass(frozen=True)
class Training:
    """The description of one training run.

    Attributes:
        model: ``"language"`` or ``"images"``.
        engine: ``"bare"`` (the module itself on the first device), ``"stock"`` (nn.DataParallel) or
            ``"anyrig"``.
        batch: samples per step, over all devices.
        devices: the number of devices, the first of the rig.
        fused_loss: whether the replicas compute the loss, which only anyrig supports.
        shares: the `shares` of `anyrig.spread`.
        autocast: whether to compute in bfloat16 with parameters in float32.
        warm_up_steps: steps before the measurement.
        steps: measured steps.
    """

    model: str
    engine: str
    batch: int
    devices: int = 1
    fused_loss: bool = True
    shares: str | list[float] | None = None
    autocast: bool = False
    warm_up_steps: int = 3
    steps: int = 3


def rehearse(rig: str, trainings: Sequence[Training]) -> list[dict[str, Any]]:
    """Run `trainings` one after the other in a child process; return the figures of each.

    Args:
        rig: the virtual rig, such as ``"4xA100-80GB"``.
        trainings: the training runs.

    Returns:
        For each training run: its attributes, ``step_seconds`` on the virtual clock, ``peak_bytes``
        of each device, and the ``explanation`` of `anyrig.explain`; or ``error`` if the run failed.
    """
    descriptions = [asdict(training) for training in trainings]
    finished = subprocess.run(
        [sys.executable, "-m", "workloads.training", rig, json.dumps(descriptions)],
        check=True,
        cwd=BENCHMARKS,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    figures = json.loads(finished.stdout.splitlines()[-1])
    return [
        {"rig": rig, **description, **measured}
        for description, measured in zip(descriptions, figures, strict=True)
    ]


def _train_all(rig: str, trainings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from anyrig.virtual import install

    install(rig, shape_only=True)

    import torch

    figures = []
    for training in trainings:
        try:
            figures.append(_train(Training(**training)))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            figures.append({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        gc.collect()
        torch.cuda.empty_cache()
    return figures


def _train(training: Training) -> dict[str, Any]:
    import torch

    module, x, y = _model_and_batch(training.model, training.batch)
    step, model = training_step(training, module, x, y)
    _reset_peaks()  # the last run's, by which shares="memory" would divide
    for _ in range(training.warm_up_steps):
        step()
    _reset_peaks()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(training.steps):
        step()
    _wait_for_all()
    end.record()
    end.synchronize()
    return {
        "step_seconds": start.elapsed_time(end) / training.steps / 1e3,
        "peak_bytes": [torch.cuda.max_memory_allocated(index) for index in range(training.devices)],
        "explanation": _explanation(training, model),
    }


def training_step(
    training: Training, module: Any, x: Any, y: Any
) -> tuple[Callable[[], None], Any]:
    """Return a training step as a script would write it, and the model that it trains."""
    import torch
    from torch import nn

    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    model = _spread(training, module, criterion)
    fused = training.fused_loss and training.engine == "anyrig"

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=training.autocast):
            loss = model(x, target=y) if fused else criterion(model(x), y)
        loss.backward()
        optimizer.step()

    return step, model


def _spread(training: Training, module: Any, criterion: Any) -> Any:
    from torch import nn

    if training.engine == "bare":
        return module
    if training.engine == "stock":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "[\\s\\S]*imbalance between your GPUs")
            return nn.DataParallel(module, list(range(training.devices)))
    import anyrig

    loss = criterion if training.fused_loss else None
    rig = anyrig.Rig.parse(",".join(f"cuda:{index}" for index in range(training.devices)))
    return anyrig.spread(module, rig, plan=anyrig.Replicas(shares=training.shares), loss=loss)


def _model_and_batch(model: str, batch: int) -> tuple[Any, Any, Any]:
    import torch

    from .language_model import LanguageModel, LanguageModelSize
    from .residual_network import ResidualNetwork

    if model == "language":
        size = LanguageModelSize()
        words = torch.zeros(batch, size.tokens, dtype=torch.long, device="cuda")
        return LanguageModel(size).cuda(), words, words.clone()
    images = torch.zeros(batch, 3, 224, 224, device="cuda")
    return ResidualNetwork().cuda(), images, torch.zeros(batch, dtype=torch.long, device="cuda")


def _wait_for_all() -> None:
    import torch

    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)


def _reset_peaks() -> None:
    import torch

    _wait_for_all()
    for index in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(index)


def _explanation(training: Training, model: Any) -> str | None:
    if training.engine != "anyrig":
        return None
    import anyrig

    return str(anyrig.explain(model))


if __name__ == "__main__":
    print(json.dumps(_train_all(sys.argv[1], json.loads(sys.argv[2]))))
