"""A rule: what it looks for, why, and an example."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .finding import Hit

if TYPE_CHECKING:
    from .program import Program


@dataclass(frozen=True)
class Rule:
    """One mistake, and how to find it.

    Attributes:
        code: ``ARC`` and three digits. ARC0xx is syntax, ARC1xx what PyTorch changed, ARC2xx
            devices, ARC3xx the training step.
        name: the code in words.
        happens: what the code does today, in a sentence or two.
        since: the version of PyTorch or Python that changed it, or None for a mistake in every one.
        cure: what to write instead.
        source: where this is documented.
        fires: an example in which the rule finds something.
        silent: a similar example in which it finds nothing.
        fixed: the first example after all fixes; None if the rule has none.
        find: yields the hits in a program.
        is_about_versions: whether `anyrig migrate` applies the rule.
    """

    code: str
    name: str
    happens: str
    since: str | None
    cure: str
    source: str
    fires: str
    silent: str
    find: Callable[[Program], Iterable[Hit]]
    fixed: str | None = None
    is_about_versions: bool = True
