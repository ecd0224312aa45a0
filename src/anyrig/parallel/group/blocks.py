"""The repeated layers of a module, whose parameters FSDP2 gathers one layer at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import nn

# Repeated layers with a smaller part of all parameters are gathered with the whole module.
_LEAST_PART = 0.05


def find_blocks(
    module: nn.Module, classes: Sequence[type[nn.Module]] | None = None
) -> dict[str, nn.Module]:
    """Return the blocks of a module by their names, in order.

    ::

        Model
        ├── embedding
        ├── layers: ModuleList        two or more layers of one class
        │   ├── 0: Layer   ◀ block
        │   └── 1: Layer   ◀ block    blocks are not searched for more blocks
        └── head

    Args:
        module: is not a block itself.
        classes: of the blocks. None takes layers of one class in one ModuleList or Sequential, if
            together they have a twentieth of the parameters. Layers that share parameters with
            other layers are no blocks, because FSDP2 gathers each parameter once.
    """
    if classes is not None:
        chosen = tuple(classes)
        return {
            name: part
            for name, part in module.named_modules()
            if isinstance(part, chosen) and part is not module
        }
    owners = Counter(id(p) for part in module.modules() for p in set(part._parameters.values()))
    least = _LEAST_PART * sum(p.numel() for p in module.parameters())
    found: dict[str, nn.Module] = {}
    for repeated in _repeated(module, ""):
        blocks = {name: part for name, part in repeated.items() if _owns_all(part, owners)}
        if sum(p.numel() for part in blocks.values() for p in part.parameters()) >= max(least, 1):
            found.update(blocks)
    return found


def _repeated(module: nn.Module, prefix: str) -> Iterator[dict[str, nn.Module]]:
    """Yield the layers of each class that one container repeats, outer containers first."""
    children = {f"{prefix}{name}": child for name, child in module.named_children()}
    counts: Counter[type[nn.Module]] = Counter()
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        containers = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
        counts.update(type(c) for c in children.values() if not isinstance(c, containers))
    for repeated in (kind for kind, count in counts.items() if count > 1):
        yield {name: child for name, child in children.items() if type(child) is repeated}
    for name, child in children.items():
        if counts[type(child)] < 2:
            yield from _repeated(child, f"{name}.")


def _owns_all(part: nn.Module, owners: Counter[int]) -> bool:
    inside = Counter(id(p) for inner in part.modules() for p in set(inner._parameters.values()))
    own = {id(p) for p in part.parameters()}
    return all(owners[key] == inside[key] for key in own)
