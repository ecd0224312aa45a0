"""Any module as a chain of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx, nn

from .....errors import SpreadError
from ..chain import Chain
from .arguments import Arguments, Call, read_arguments
from .assemble import assemble
from .boundaries import SMALL_PART, choose_cuts
from .divided_losses import divide_losses
from .example_facts import FactCheck
from .one_sample import SampleCount, find_sample_count, is_same, take_one_sample
from .operations import read_state
from .recorder import Recorder
from .recording import Recording
from .refusal import explain_failure
from .side_effects import has_hooks
from .split_points import find_named_cuts
from .together import find_spans
from .variants import Side, align

_BY_HAND = (
    'Name the submodules at which a stage begins, split_points=["layers.4", "layers.8"], or place '
    "the module's parts on devices yourself"
)
_BY_EXAMPLE = (
    "If this code looks at arguments, give spread those of a call, example=(args, kwargs). "
)


def chain_of(
    module: nn.Module,
    split_points: Sequence[str] | None = None,
    *,
    example: Call | None = None,
    device: torch.device | None = None,
    dim: int = 0,
) -> Chain:
    """Return `module` as a chain of blocks that computes the same, with the same parameters.

    Nothing is computed, so the module may be on any device, ``"meta"`` included. The chain depends
    on the module's code and shapes only: each rank gets the same one.

    Args:
        module: not changed. Its later changes (mode, state, `requires_grad`) take effect.
        split_points: the names of submodules at which a new block begins. None cuts wherever few
            values cross.
        example: (args, kwargs) of a call. Arguments that are None, bools or strings decide which
            code runs, so the chain is made for those of the example, and for shapes and dtypes
            that code looks at. None assumes the defaults.
        device: the kind of device on which the module will compute. None: where it is.
        dim: the dimension of the samples.

    Raises:
        SpreadError: the module cannot be divided; the message names the place in its code.
    """
    if has_hooks(module):
        raise SpreadError(
            f"this {type(module).__name__} has hooks, which run around the whole module and cannot "
            "be divided. Register them on its submodules"
        )
    device = device or _device_of(module)
    arguments, recordings = _record(module, example, device)
    first = recordings[0]
    if split_points is None:
        _require_parts(module, first, _BY_HAND if example is not None else _BY_EXAMPLE + _BY_HAND)
    count, single = _record_one_sample(module, example, device, dim, recordings, arguments)
    sides = align(recordings, single, module.training)
    cuts = _choose_cuts(module, sides, split_points)
    return assemble(module, arguments.bind, sides, cuts, SMALL_PART, count)


def _record(
    module: nn.Module, example: Call | None, device: torch.device
) -> tuple[Arguments, list[Recording]]:
    """Return the recordings of the modes on which the operations depend, the current one first."""
    failure: Exception | None = None
    for fix_numbers in (False, True):
        arguments = read_arguments(module, example, fix_numbers)
        try:
            recordings = [_record_in(module.training, module, arguments, device)]
            if recordings[0].assumed:
                recordings.append(_record_in(not module.training, module, arguments, device))
            return arguments, recordings
        except SpreadError:
            raise
        except Exception as error:
            failure = failure or error
    assert failure is not None
    raise SpreadError(
        f"{type(module).__name__} cannot be divided into stages: {explain_failure(failure)}. "
        f"{_BY_EXAMPLE if example is None else ''}Put "
        "this code into a submodule of its own, which then is one block, or place the module's "
        "parts on devices yourself. If the code computes a loss, leave out the targets in example= "
        "and give spread the loss: loss=criterion"
    ) from failure


def _record_one_sample(
    module: nn.Module,
    example: Call | None,
    device: torch.device,
    dim: int,
    recordings: Sequence[Recording],
    arguments: Arguments,
) -> tuple[SampleCount | None, list[Recording]]:
    """Return where samples are counted and the recordings for one; none if they do not differ."""
    one = None if example is None else take_one_sample(example, dim)
    depends = any(isinstance(n.target, FactCheck) for r in recordings for n in r.operations)
    if one is None or not depends:
        return None, []
    try:
        few, single = _record(module, one, device)
    except SpreadError:  # calls with one sample are refused where they differ
        return None, []
    count = find_sample_count(arguments.examples, few.examples)
    matches = few.names == arguments.names and len(single) == len(recordings)
    if count is None or not matches or all(map(is_same, recordings, single)):
        return None, []
    return count, single


def _record_in(
    training: bool, module: nn.Module, arguments: Arguments, device: torch.device
) -> Recording:
    recorder = Recorder(module, training, device)
    recording = recorder.record(arguments.call_with, arguments.kinds, arguments.examples)
    divide_losses(recording, module)
    return recording


def _device_of(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def _require_parts(module: nn.Module, recording: Recording, remedy: str) -> None:
    """Raise if most of the module is one operation, although it has parts."""
    total = sum(p.numel() for p in module.parameters())
    for name, why in recording.undivided.items():
        held = module.get_submodule(name)
        if _has_parts(held) and sum(p.numel() for p in held.parameters()) > total / 2:
            raise SpreadError(
                f"{name!r} has most of the parameters of this {type(module).__name__} and cannot "
                f"be divided into stages: {why}. {remedy}"
            )


def _has_parts(module: nn.Module) -> bool:
    """Return whether the parameters of a module are in several submodules."""
    parts = [module]
    while len(parts) == 1:
        parts = [c for c in parts[0].children() if any(True for _ in c.parameters())]
    return len(parts) > 1


def _choose_cuts(
    module: nn.Module, sides: Sequence[Side], split_points: Sequence[str] | None
) -> list[int]:
    nodes, undivided = sides[0].nodes, sides[0].recording.undivided
    spans = find_spans(nodes, module)
    sizes = [_count_elements(node, module) for node in nodes]
    if split_points is not None:
        cuts = find_named_cuts(module, nodes, split_points, sizes, spans, undivided)
    else:
        cuts = choose_cuts(nodes, sizes, [(first, last) for first, last, _ in spans])
    for side in sides[1:]:
        for first, last, changing in find_spans(side.nodes, module):
            low, high = side.homes[max(first, 0)], side.homes[last]
            broken = [cut for cut in cuts if low < cut <= high]
            if broken and split_points is not None:
                raise SpreadError(
                    "split_points: a value is changed in place across a split point, in "
                    f"{changing.meta['place']}. Name a submodule after this line"
                )
            cuts = [cut for cut in cuts if cut not in broken]
    return cuts


def _count_elements(node: fx.Node, module: nn.Module) -> int:
    """Return how many elements of parameters a node uses."""
    count = 0
    if node.op == "call_module":
        count += sum(p.numel() for p in module.get_submodule(str(node.target)).parameters())
    for used in node.all_input_nodes:
        if used.op == "get_attr" and not str(used.target).startswith("constant "):
            state = read_state(module, {}, str(used.target))
            if isinstance(state, nn.Module):
                count += sum(p.numel() for p in state.parameters())
            elif isinstance(state, nn.Parameter):
                count += state.numel()
    return count
