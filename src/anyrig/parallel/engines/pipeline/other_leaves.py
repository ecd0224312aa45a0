"""Finding tensors that learn, but are neither parameters of a stage nor given to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ....errors import SpreadError


def refuse_other_leaves(outputs: Iterable[Tensor], known: Iterable[Tensor], stage: int) -> None:
    """Raise SpreadError if the graph of `outputs` leads to leaves other than `known`.

    Their gradients would be lost: a stage delivers gradients of its parameters and read values.
    """
    expected = set(map(id, known))
    waiting: list[Any] = [output.grad_fn for output in outputs]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in expected:
            raise SpreadError(
                f"stage {stage} computes with a tensor of shape {tuple(leaf.shape)} that requires "
                "grad and is neither a parameter of its layers nor an argument, such as a "
                "parameter in a penalty that the loss adds, or a value whose requires_grad forward "
                "sets. Make the tensor a parameter of a layer, add penalties outside of the loss, "
                "and do not set requires_grad in forward (for the audio models of transformers, "
                'call freeze_feature_encoder() instead). In one process, schedule="gpipe" computes '
                "such gradients, too"
            )
        waiting += [following for following, _ in node.next_functions]
