"""The remedies that can be applied to an unchanged program, and how to apply each by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ...memory.half_precision import advise_autocast, half_dtype
from ...memory.recompute.blocks import find_blocks, write_names
from ...memory.recompute.forward import is_recomputed, recompute_blocks
from ...observe.events import Events
from ...observe.hooks import Observer, Replacements
from ...units import format_bytes
from .calls import OutermostCalls

Note = Callable[[str], object]


@dataclass(frozen=True)
class Remedy:
    """A change to a program that saves memory.

    Attributes:
        advice: how to change the program by hand, in one line. ``{}`` stands for a detail that is
            known when the remedy has been applied.
        apply: applies the remedy in this process, before the program uses its model. It is given
            the calls of the outermost modules, and a function that notes the detail.
        environment: variables that apply it, which are set before the program starts. Such a remedy
            saves reserved bytes rather than allocated ones.
        changes_work: whether a call of the model computes less, so that times cannot be compared.
        if_not_applied: why the remedy had nothing to change, if it has noted no detail.
    """

    advice: str
    apply: Callable[[OutermostCalls, Note], object] = lambda calls, note: None
    environment: Mapping[str, str] = field(default_factory=dict)
    changes_work: bool = False
    if_not_applied: str | None = None


def _around_each_call(
    calls: OutermostCalls, make: Callable[[nn.Module], AbstractContextManager[object]]
) -> None:
    """Enter a context before each call of an outermost module, and leave it at its end."""
    contexts = ExitStack()
    calls.at_begin.append(lambda module: contexts.enter_context(make(module)))
    calls.at_end.append(contexts.close)


def _recompute(calls: OutermostCalls, note: Note) -> None:
    seen: set[int] = set()

    def begin(module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        blocks = find_blocks(module)
        if not all(map(is_recomputed, blocks.values())):
            recompute_blocks(module, blocks)
            note(write_names([*blocks]))

    calls.at_begin.append(begin)


def _autocast(calls: OutermostCalls, note: Note) -> None:
    def make(module: nn.Module) -> torch.autocast:
        # Without data, no gradient is 0, and float16 needs no scaler.
        half = half_dtype(next((each.device for each in module.parameters() if each.is_cuda), None))
        note(advise_autocast(half))
        return torch.autocast("cuda", half)

    _around_each_call(calls, make)


def _offload(calls: OutermostCalls, note: Note) -> None:
    """Do what `torch.autograd.graph.save_on_cpu` does, with one tensor's memory on the host.

    A trial has no values, and must not fill the memory of the host that it runs on.
    """
    scratch = torch.empty(0, dtype=torch.uint8, device="cpu")
    kept_bytes = 0

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        nonlocal scratch, kept_bytes
        if tensor.device.type == "cpu":
            return tensor.device, tensor
        kept_bytes += tensor.nbytes
        if scratch.numel() < tensor.nbytes:
            scratch = scratch.new_empty(tensor.nbytes)
        flat = scratch[: tensor.nbytes].view(tensor.dtype)
        copy = flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())
        return tensor.device, copy.copy_(tensor)

    def unpack(packed: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
        device, copy = packed
        return copy.to(device)

    _around_each_call(calls, lambda module: torch.autograd.graph.saved_tensors_hooks(pack, unpack))
    calls.at_end.append(lambda: note(format_bytes(kept_bytes)))  # of the first call


def _observe(events: Events) -> Callable[[OutermostCalls, Note], Observer]:
    """Return a function that applies a remedy from the events of the program."""

    def apply(calls: OutermostCalls, note: Note) -> Observer:
        observer = Observer(events)
        observer.start()
        return observer

    return apply


def _set_before_steps(option: str, value: bool, unless: str) -> Events:
    """Set an option that the program has left to PyTorch, in each optimizer that has it."""

    def begin(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if option in group and group[option] is None and not group.get(unless):
                group[option] = value

    return Events(step_begun=begin)


def _halve_batches(calls: OutermostCalls, note: Note) -> None:
    def build_halved(
        build: Callable[..., None],
        loader: DataLoader[Any],
        dataset: Any,
        batch_size: int | None = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if batch_size is not None and batch_size > 1:
            batch_size //= 2
            note(str(batch_size))
        build(loader, dataset, batch_size, *args, **kwargs)

    Replacements().around(DataLoader, "__init__", build_halved)


# The order is that of the report where two remedies save the same.
REMEDIES: dict[str, Remedy] = {
    "half the batch": Remedy(
        "DataLoader(…, batch_size={}), and accumulate",
        _halve_batches,
        changes_work=True,
        if_not_applied="the program makes no DataLoader with a batch_size above 1",
    ),
    "recomputation": Remedy(
        "anyrig.memory.recompute_blocks(model, {})",
        _recompute,
        if_not_applied="the model has no repeated blocks that are not recomputed yet",
    ),
    "mixed precision": Remedy("{}", _autocast),
    "offload": Remedy(
        "with torch.autograd.graph.save_on_cpu(): output = model(…), which keeps {} on the host",
        _offload,
    ),
    "gradients set to None": Remedy(
        "optimizer.zero_grad() right after optimizer.step()",
        _observe(Events(step_ended=lambda optimizer: optimizer.zero_grad())),
    ),
    "fused optimizer": Remedy(
        "the optimizer's option fused=True",
        _observe(_set_before_steps("fused", True, unless="foreach")),
    ),
    "parameters updated one by one": Remedy(
        "the optimizer's option foreach=False",
        _observe(_set_before_steps("foreach", False, unless="fused")),
    ),
    "expandable segments": Remedy(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
}
