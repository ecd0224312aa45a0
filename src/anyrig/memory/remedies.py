"""List the changes that would save memory on a device that ran out of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..units import format_bytes
from .free_memory import FreeMemory
from .half_precision import advise_autocast
from .kinds import Kind
from .moment import Moment
from .reason import Cause, Reason
from .recompute.blocks import find_blocks, write_names
from .recompute.forward import is_recomputed

# A smaller saving is not listed.
_LEAST_FRACTION = 0.01
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Remedy:
    """A change to the program that saves memory.

    Attributes:
        name: what changes, in a few words.
        advice: how to change the program by hand, in one line.
        most_bytes: how much of the memory held at the error the change can save at most. The peak
            may fall by more or less: `anyrig rehearse --remedies` measures it.
    """

    name: str
    advice: str
    most_bytes: int

    def __str__(self) -> str:
        """Return the remedy in one line."""
        return f"  up to {format_bytes(self.most_bytes)}: {self.name}: {self.advice}"


def find_remedies(
    moment: Moment,
    reason: Reason,
    models: Sequence[nn.Module],
    gpu_count: int,
    *,
    can_halve: bool = True,
    tensors: Iterable[Tensor] = (),
    free: FreeMemory | None = None,
    half: torch.dtype = torch.bfloat16,
) -> tuple[Remedy, ...]:
    """Return the remedies that apply to an out-of-memory error, largest saving first.

    If the reason has a cure of its own, such as an evaluation without `torch.no_grad`, other
    remedies would only delay the error, and are not listed.

    Args:
        moment: what the device held.
        reason: why it ran out of memory.
        models: the outermost modules of the process.
        gpu_count: the number of GPUs of this node, over which a model can be sharded.
        can_halve: whether the batch has two halves; see `batch_tensors`.
        tensors: the tensors that the program holds. If one was computed in half precision, mixed
            precision is in use.
        free: what was free when the request was refused; None if unknown.
        half: the dtype of mixed precision on the device; see `half_precision`.
    """
    if reason.cure is not None:
        name = "the line above" if reason.variable is None else f"release {reason.variable}"
        return (Remedy(name, reason.cure, reason.bytes),)
    if reason.cause is Cause.OTHER_PROCESSES:
        return ()
    found = [
        *_of_calls(moment, reason, models, can_halve=can_halve),
        *_of_precision(
            moment, [*_parameters(models), *(each for each in tensors if each.grad_fn)], half
        ),
        *_of_steps(moment, models, gpu_count),
    ]
    if free is not None and free.would_suffice:
        advice = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        found.append(Remedy("expandable segments", advice, free.cached_bytes))
    least = max(1, _LEAST_FRACTION * max(moment.allocated_bytes, reason.bytes))
    # Two models with the same blocks, such as a module and its wrapper, have one remedy.
    listed = dict.fromkeys(remedy for remedy in found if remedy.most_bytes >= least)
    return tuple(sorted(listed, key=lambda remedy: -remedy.most_bytes))


def _of_calls(
    moment: Moment, reason: Reason, models: Sequence[nn.Module], *, can_halve: bool
) -> Iterator[Remedy]:
    """Yield the remedies that change how a model is called."""
    kinds = moment.by_kind()
    activations = kinds.get(Kind.ACTIVATIONS, 0)
    batch = reason.bytes if reason.cause is Cause.BATCH else kinds.get(Kind.BATCH, 0)
    if can_halve:
        yield Remedy(
            "half the batch",
            "accumulate two halves; anyrig.memory.fit_batch_size finds the largest batch that fits",
            (activations + batch) // 2,
        )
    offload = "with torch.autograd.graph.save_on_cpu(): output = model(…)"
    yield Remedy("offload", offload, activations)
    by_module = moment.by_module(Kind.ACTIVATIONS)
    for model in models:
        blocks = find_blocks(model)
        held = [_sum_within(name, by_module) for name in blocks]
        if not all(map(is_recomputed, blocks.values())):  # backward needs one block at a time
            advice = f"anyrig.memory.recompute_blocks(model, {write_names([*blocks])})"
            yield Remedy("recomputation", advice, sum(held) - max(held))


def _of_precision(
    moment: Moment, computed: Iterable[Tensor], half: torch.dtype
) -> Iterator[Remedy]:
    if all(each.dtype not in _HALF for each in computed):
        activations = moment.by_kind().get(Kind.ACTIVATIONS, 0)
        yield Remedy("mixed precision", advise_autocast(half), activations // 2)


def _of_steps(moment: Moment, models: Sequence[nn.Module], gpu_count: int) -> Iterator[Remedy]:
    """Yield the remedies that change the optimizer's step, or what is kept from step to step."""
    kinds = moment.by_kind()
    if moment.phase == "forward":
        advice = "optimizer.zero_grad() right after optimizer.step()"
        yield Remedy("gradients set to None", advice, kinds.get(Kind.GRADIENTS, 0))
    if moment.phase == "optimizer":
        own = (each for each in moment.holdings if each.phase == "optimizer")
        temporary = sum(each.bytes for each in own if each.kind is Kind.TEMPORARIES)
        yield Remedy("fused optimizer", "the optimizer's option fused=True", temporary)
    if not any(hasattr(each, "to_local") for each in _parameters(models)):  # a DTensor has it
        states = (Kind.PARAMETERS, Kind.GRADIENTS, Kind.OPTIMIZER_STATE)
        held_bytes = sum(kinds.get(kind, 0) for kind in states)
        count = max(gpu_count, 2)
        yield Remedy(
            f"parameters, gradients and optimizer sharded over {count} GPUs",
            "anyrig.spread(model, plan=anyrig.Shards()), under anyrig run",
            held_bytes * (count - 1) // count,
        )


def _parameters(models: Iterable[nn.Module]) -> Iterator[nn.Parameter]:
    for model in models:
        yield from model.parameters()


def _sum_within(block: str, bytes_by_module: dict[str | None, int]) -> int:
    return sum(
        count
        for name, count in bytes_by_module.items()
        if name is not None and f"{name}.".startswith(f"{block}.")
    )
