"""Cuts that the caller names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from torch import fx, nn

from .....errors import SpreadError


def find_named_cuts(
    module: nn.Module,
    nodes: Sequence[fx.Node],
    names: Sequence[str],
    sizes: Sequence[int],
    spans: Sequence[tuple[int, int, fx.Node]],
    undivided: Mapping[str, str],
) -> list[int]:
    """Return the index of the first operation of each named submodule.

    Args:
        module: the whole module.
        nodes: its operations in order.
        names: the names of submodules.
        sizes: how many elements of parameters each node uses.
        spans: (first, last, changing node) of nodes that must stay together.
        undivided: why a submodule is a single operation, by name.

    Raises:
        SpreadError: a name is not a submodule's, or no stage can begin at this submodule.
    """
    known = [name for name, _ in module.named_modules() if name]
    cuts = set()
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 3, 0.5) or known[:3]
            raise SpreadError(
                f"split_points: {type(module).__name__} has no submodule {name!r}; "
                f"the nearest names are {', '.join(map(repr, near))}"
            )
        cut = _find_cut(nodes, name, spans, undivided)
        if not any(sizes[:cut]):
            raise SpreadError(
                f"split_points: no stage can begin at {name!r}, because the module begins with it; "
                "name the later stages only"
            )
        cuts.add(cut)
    return sorted(cuts)


def _find_cut(
    nodes: Sequence[fx.Node],
    name: str,
    spans: Sequence[tuple[int, int, fx.Node]],
    undivided: Mapping[str, str],
) -> int:
    start = f"split_points: no stage can begin at {name!r}, because"
    for outer, why in undivided.items():
        if name.startswith(f"{outer}."):
            raise SpreadError(f"{start} its operations inside {outer!r} cannot be traced: {why}")
    for cut, node in enumerate(nodes):
        if not any(called == name or called.startswith(f"{name}.") for called, _ in _calls(node)):
            continue
        for first, last, changing in spans:
            if first < cut <= last:
                raise SpreadError(
                    f"{start} a value is changed in place across it, in {changing.meta['place']}. "
                    "Name a submodule after this line"
                )
        return cut
    raise SpreadError(f"{start} forward does not call it")


def _calls(node: fx.Node) -> tuple[tuple[str, int], ...]:
    calls: tuple[tuple[str, int], ...] = node.meta["calls"]
    return calls
