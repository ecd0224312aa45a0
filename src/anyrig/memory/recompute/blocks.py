"""The blocks of a model: its repeated modules."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from torch import nn

from ...errors import MemoryTrackingError

_CONTAINERS = (nn.ModuleList, nn.Sequential)


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of a model by their names, in the order of the model.

    ::

        Model
        ├── embedding
        ├── layers: ModuleList        two or more modules of one class in a ModuleList or Sequential
        │   ├── 0: Layer   ◀ block
        │   └── 1: Layer   ◀ block
        └── head

    Single layers of `torch.nn`, such as `Linear`, are not blocks. Neither is a repeated module that
    consists mainly of smaller blocks: the layers of a Swin transformer are blocks, its stages are
    not.
    """
    return dict(_find(model, ""))


def write_names(names: Sequence[str]) -> str:
    """Return a Python expression for a list of names, short if they differ only by a number.

    ::

        ["layers.0", "layers.1", "layers.2"]    [f"layers.{i}" for i in range(3)]
        ["stem.conv", "layers.0"]               ["stem.conv", "layers.0"]
    """
    for number in re.finditer(r"\d+", names[0]) if len(names) > 2 else ():
        before, first, after = names[0][: number.start()], int(number[0]), names[0][number.end() :]
        end = first + len(names)
        if [*names] == [f"{before}{index}{after}" for index in range(first, end)]:
            bounds = f"{first}, {end}" if first else f"{end}"
            return f'[f"{before}{{i}}{after}" for i in range({bounds})]'
    return f"[{', '.join(json.dumps(name) for name in names)}]"


def _find(module: nn.Module, prefix: str) -> list[tuple[str, nn.Module]]:
    children = [(f"{prefix}{name}", child) for name, child in module.named_children()]
    counts = Counter(type(child) for _, child in children if isinstance(module, _CONTAINERS))
    found: list[tuple[str, nn.Module]] = []
    for name, child in children:
        inner = _find(child, f"{name}.")
        within = sum(_count_parameters(block) for _, block in inner)
        is_stage = bool(inner) and 2 * within >= _count_parameters(child)
        if counts[type(child)] > 1 and _may_be_block(child) and not is_stage:
            found.append((name, child))
        else:
            found += inner
    return found


def _may_be_block(module: nn.Module) -> bool:
    if isinstance(module, (*_CONTAINERS, nn.ModuleDict)):
        return False
    is_single_layer = next(module.children(), None) is None
    return not (is_single_layer and type(module).__module__.startswith("torch.nn."))


def _count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def named_blocks(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Module]:
    """Return the modules of a model with the given names.

    Raises:
        MemoryTrackingError: a name is unknown, a module has no forward of its own, or one of the
            modules contains another.
    """
    wanted: Sequence[str] = list(dict.fromkeys(names))
    modules = dict(model.named_modules())
    for name in wanted:
        if name not in modules:
            raise MemoryTrackingError(
                f"the model has no module {name!r}; model.named_modules() lists the names, such as "
                f"{', '.join(map(repr, [*find_blocks(model)][:3])) or repr([*modules][-1])}"
            )
        if isinstance(modules[name], (nn.ModuleList, nn.ModuleDict)):
            raise MemoryTrackingError(
                f"{name!r} is a {type(modules[name]).__name__}, which is never called; "
                "name the modules in it"
            )
        outer = next((other for other in wanted if _contains(other, name)), None)
        if outer is not None:
            raise MemoryTrackingError(
                f"{name!r} is inside {outer!r}, and would be recomputed with it; name one of them"
            )
    return {name: modules[name] for name in wanted}


def _contains(outer: str, inner: str) -> bool:
    return outer != inner and (not outer or inner.startswith(f"{outer}."))
