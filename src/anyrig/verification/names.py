"""The names of the parameters of an optimizer, the same with and without wrappers of a module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..observe.census import take_census
from .pipeline_stages import traced_stages

# The attributes by which wrappers hold a module: DataParallel, DDP, torch.compile, FSDP, and
# activation checkpointing.
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


@dataclass(frozen=True)
class NamedParameter:
    """A parameter with its name.

    Attributes:
        name: its name in `root`, without the attributes of wrappers.
        parameter: the parameter.
        owner: the module that has it; None if no module does.
        root: the outermost module around `owner`.
    """

    name: str
    parameter: Tensor
    owner: nn.Module | None = None
    root: nn.Module | None = None


def clean_name(name: str) -> str:
    """Return the name of a parameter or module without the attributes of wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def name_parameters(parameters: Sequence[Tensor]) -> list[NamedParameter]:
    """Return the parameters with their names in the outermost modules that contain them.

    If several models have a parameter of the same name, the name begins with the model's class; and
    it ends with a number, in the order of `parameters`, if the classes are the same, too. A
    parameter outside of all modules is named by its number.
    """
    wanted = {id(parameter) for parameter in parameters}
    found: dict[int, tuple[nn.Module, str, nn.Module]] = {}
    roots = sorted(take_census().models, key=lambda one: -len([*one.parameters()]))
    for root in (*traced_stages(), *roots):
        for prefix, module in root.named_modules():
            for name, parameter in module.named_parameters(prefix, recurse=False):
                if id(parameter) in wanted and id(parameter) not in found:
                    found[id(parameter)] = root, clean_name(name), module
    roots_of_name: dict[str, set[int]] = {}
    for root, name, _ in found.values():
        roots_of_name.setdefault(name, set()).add(id(root))
    named = []
    counts: Counter[str] = Counter()
    for number, parameter in enumerate(parameters):
        if id(parameter) not in found:
            named.append(NamedParameter(f"parameter {number}", parameter))
            continue
        root, name, module = found[id(parameter)]
        if len(roots_of_name[name]) > 1:
            name = f"{type(unwrap(root)).__name__}.{name}"
            counts[name] += 1
            name += f" ({counts[name]})" if counts[name] > 1 else ""
        named.append(NamedParameter(name, parameter, module, root))
    return named


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside its wrappers."""
    while True:
        inner = [child for name, child in module.named_children() if name in _WRAPPERS]
        if not inner:
            return module
        module = inner[0]
