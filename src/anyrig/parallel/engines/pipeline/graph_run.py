"""A call whose graph is the caller's: all forward passes now, all backward passes by autograd.

This is GPipe. The backward passes begin when the caller asks for gradients, with the gradient of
whatever the caller computed from the outputs. Devices run their backward passes concurrently, in
one thread each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....transfer.tree import map_leaves
from .chain import Chain
from .failure import explain_failure
from .graph_mailbox import GraphMailbox
from .held_tensors import lend, list_held
from .micro_batches import MicroBatch
from .parcel import Parcel, send_all
from .schedules.schedule import Task
from .stage import Stage

# Returns a micro-batch's result from the module's output, the target and the samples.
Finish = Callable[[Any, Any, int], Any]


def run_with_graph(
    chain: Chain,
    stages: Sequence[Stage],
    tasks: Sequence[Task],
    micro_batches: Sequence[MicroBatch],
    bound: Sequence[dict[str, Any]],
    finish: Finish,
    recomputes: Callable[[int], bool],
) -> list[Any]:
    """Return the result of each micro-batch, as a part of the caller's graph if it is recorded.

    Args:
        chain: the whole module.
        stages: all of its stages, in order.
        tasks: the forward passes, in the order in which they are issued.
        micro_batches: the arguments of the call.
        bound: their values, as `Chain.bind_parts` returns them.
        finish: called on the device of the last stage.
        recomputes: whether a micro-batch's activations are computed again in the backward pass.
    """
    mailbox = GraphMailbox(stages)
    last = stages[-1]
    replacements = lend(list_held(stages), stages)
    targets: dict[int, Any] = {}
    results: list[Any] = [None] * len(micro_batches)
    for task in tasks:
        stage, number = stages[task.stage], task.micro_batch
        given = micro_batches[number]
        if stage.index == 0:
            mailbox.post(number, bound[number])
            targets[number] = send_all(given.target, last.device)
        values = mailbox.fetch(stage, number)
        with explain_failure(stage, stages, number, len(micro_batches), values):
            written = stage.compute(values, replacements[stage.index], recomputes(number))
            if stage is last:
                target = take_all(targets.pop(number))
                results[number] = finish(chain.build(written), target, given.samples)
                continue
        mailbox.post(number, written)
    return results


def take_all(tree: Any) -> Any:
    """Return a value with the tensor of each `Parcel` in its place."""
    return map_leaves(tree, lambda leaf, _: leaf.take() if isinstance(leaf, Parcel) else leaf)
