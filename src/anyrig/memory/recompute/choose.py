"""Choose the blocks to recompute for the least time within a memory budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .costs import Costs

# Times are counted in this fraction of the time to recompute every block.
_UNIT = 1e-4

# A choice for the first blocks: its time in units, what it saves, and its blocks as a linked list.
_Blocks = tuple[int, "_Blocks"] | None
_Choice = tuple[int, int, _Blocks]


def choose_blocks(costs: Costs, budget_bytes: int) -> frozenset[int] | None:
    """Return the blocks to recompute for the least time within the budget; None if none suffice.

    The choice is the best one, up to 0.01 % of the time of all recomputations for each block, if
    each block holds the activations of one call at a time, all of its calls save the same, and the
    backward passes come in the reverse order of the forward passes.

    If calls of a block save different amounts, as with micro-batches of several sizes, a choice
    within the budget is found, but perhaps not the best one. If blocks are called again before
    their backward passes, the search begins with all blocks, and removes blocks while the peak
    stays within the budget, those with the most time per byte first.
    """
    chain = _Chain.of(costs)
    if chain is None:
        return _choose_greedily(costs, budget_bytes)
    total = sum(costs.seconds.values())
    units = [round(costs.seconds[block] / (total * _UNIT)) if total else 0 for block in costs.order]
    aim_bytes = budget_bytes
    while (chosen := chain.choose(aim_bytes, units)) is not None:
        excess_bytes = costs.peak_bytes(chosen) - budget_bytes
        if excess_bytes <= 0:
            return chosen
        aim_bytes -= excess_bytes  # some calls of a block save less than others
    return None


def choose_least_peak(costs: Costs) -> frozenset[int]:
    """Return the blocks with which the peak is the lowest, whatever their time."""
    chain = _Chain.of(costs)
    if chain is None:
        return frozenset(costs.order)
    free = [0] * len(costs.order)
    best = frozenset(costs.order)
    low, high = 0, costs.peak_bytes(best)
    while low < high:
        middle = (low + high) // 2
        chosen = chain.choose(middle, free)
        if chosen is None:
            low = middle + 1
        else:
            best, high = chosen, middle
    return best


@dataclass(frozen=True)
class _Limit:
    """A phase whose peak falls by what the chosen blocks before it in a chain save.

    Attributes:
        scale: what the blocks save in this phase, divided by what they save after their forward.
    """

    peak_bytes: int
    scale: float

    def least_saved(self, budget_bytes: int) -> float:
        """Return how many bytes must be saved for a peak within the budget."""
        excess_bytes = self.peak_bytes - budget_bytes
        if excess_bytes <= 0:
            return -math.inf
        return excess_bytes / self.scale if self.scale > 0 else math.inf


def _least_saved(limits: Iterable[_Limit], budget_bytes: int) -> float:
    return max((limit.least_saved(budget_bytes) for limit in limits), default=-math.inf)


@dataclass(frozen=True)
class _Chain:
    """Blocks in a row; the peak of each phase depends on the chosen blocks before it.

    ::

        phases of block 2, forward and backward:  kept[2] or recomputed[2], less what is saved by
                                                  the chosen blocks among 0 and 1
        phases after block 2:                     after[3], less the same for blocks 0, 1 and 2

    Attributes:
        order: the blocks.
        saved_bytes: what each block saves, by position in the order.
        kept, recomputed: the phases of each block, by position in the order.
        after: the phases outside the blocks, by the number of blocks that hold activations.
    """

    order: tuple[int, ...]
    saved_bytes: tuple[int, ...]
    kept: tuple[set[_Limit], ...]
    recomputed: tuple[set[_Limit], ...]
    after: tuple[set[_Limit], ...]

    @staticmethod
    def of(costs: Costs) -> _Chain | None:
        """Return the chain of a step; None if its blocks do not form one."""
        order = costs.order
        saved = tuple(costs.saved_bytes[block] for block in order)
        position = {block: number for number, block in enumerate(order)}
        chain = _Chain(
            order,
            saved,
            tuple(set() for _ in order),
            tuple(set() for _ in order),
            tuple(set() for _ in (None, *order)),
        )
        for phase in costs.phases:
            live = len(phase.saved_bytes)
            if costs.overlapping or phase.saved_bytes.keys() != {*order[:live]}:
                return None
            first = sum(saved[:live])
            scale = sum(phase.saved_bytes.values()) / first if first else 1.0
            place = None if phase.owner is None else position.get(phase.owner)
            if place is None:
                chain.after[live].add(_Limit(phase.kept_bytes, scale))
            elif place != live:
                return None
            else:
                chain.kept[live].add(_Limit(phase.kept_bytes, scale))
                chain.recomputed[live].add(_Limit(phase.recomputed_bytes, scale))
        return chain

    def choose(self, budget_bytes: int, units: Sequence[int]) -> frozenset[int] | None:
        """Return the choice with the least time within the budget, by dynamic programming."""
        choices: list[_Choice] = [(0, 0, None)]
        for number, block in enumerate(self.order):
            always = _least_saved(self.after[number], budget_bytes)
            if_kept = max(always, _least_saved(self.kept[number], budget_bytes))
            if_recomputed = max(always, _least_saved(self.recomputed[number], budget_bytes))
            grown: list[_Choice] = []
            for time, saved, blocks in choices:
                if saved >= if_kept:
                    grown.append((time, saved, blocks))
                if saved >= if_recomputed:
                    more = saved + self.saved_bytes[number]
                    grown.append((time + units[number], more, (block, blocks)))
            choices = _best_ones(grown)
        at_end = _least_saved(self.after[-1], budget_bytes)
        for _, saved, blocks in choices:
            if saved >= at_end:
                return frozenset(_unlink(blocks))
        return None


def _best_ones(choices: list[_Choice]) -> list[_Choice]:
    """Return the choices that no other choice beats in both time and saved bytes, by time."""
    best: list[_Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice[0], -choice[1])):
        if not best or choice[1] > best[-1][1]:
            best.append(choice)
    return best


def _unlink(blocks: _Blocks) -> list[int]:
    found = []
    while blocks is not None:
        block, blocks = blocks
        found.append(block)
    return found


def _choose_greedily(costs: Costs, budget_bytes: int) -> frozenset[int] | None:
    chosen = frozenset(costs.order)
    if costs.peak_bytes(chosen) > budget_bytes:
        return None

    def seconds_per_byte(block: int) -> float:
        return costs.seconds[block] / max(costs.saved_bytes[block], 1)

    for block in sorted(chosen, key=seconds_per_byte, reverse=True):
        if costs.peak_bytes(chosen - {block}) <= budget_bytes:
            chosen -= {block}
    return chosen
