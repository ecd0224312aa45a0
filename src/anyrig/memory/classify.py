"""Classify the blocks that no recorded role explains."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace

from .block import Block
from .kinds import Kind
from .operator_log import OperatorLog
from .timeline import Timeline


class Kinds:
    """The kind of each block of a timeline, at any position.

    ::

        recorded by autograd, allocated when the backward pass begins        activations
        the same, after that backward pass                                   other tensors
        recorded by autograd, allocated when a request is refused            activations
        has a tensor with a graph, in no variable, older than the recording  activations
        the same, after the first backward pass                              other tensors
        has a tensor, allocated when a step or the recording ends            other tensors
        has a tensor, freed before                                           temporaries
        has no tensor                                                        workspaces
        has no tensor, older than the recording, on a device with graphs     activations
    """

    def __init__(self, timeline: Timeline, log: OperatorLog) -> None:
        self._timeline = timeline
        self._graphs = {
            address for device, address in log.graph_memory if device == timeline.device
        }
        # What the interpreter's stack holds when a request is refused, the error frees before any
        # backward pass could use it.
        self._refusals = {refusal.position for refusal in timeline.refusals}
        self._backward_starts = log.backward_starts
        self._start_positions = [timeline.position_of(n) for n in log.backward_starts]
        self._end_positions = [timeline.position_of(n) for n in log.backward_ends]
        self._step_positions = [timeline.position_of(n + 1) for n in log.step_ends]

    def kind_at(self, block: Block, position: int) -> Kind:
        """Return the kind of a block that is allocated at `position`."""
        if block.kind is not None:
            return block.kind
        is_older = block.operator is None
        if not block.has_tensor:
            return Kind.ACTIVATIONS if is_older and self._graphs else Kind.WORKSPACES
        address = block.data_address or block.address
        if is_older and block.name is None and address in self._graphs:
            ended = self._end_positions and position > self._end_positions[0]
            return Kind.OTHER if ended else Kind.ACTIVATIONS
        if self._is_kept_for_backward(block, position):
            return Kind.ACTIVATIONS
        return Kind.OTHER if self._outlives_step(block) else Kind.TEMPORARIES

    def blocks_at_end(self) -> dict[int, Block]:
        """Return the blocks that are allocated at the end, by address, with their kinds."""
        end = self._timeline.end + 1  # after a backward pass that ends with the last event
        blocks = {}
        for block in self._timeline.blocks:
            if block.died is None:
                blocks[block.address] = replace(block, kind=self.kind_at(block, end))
        return blocks

    def _is_kept_for_backward(self, block: Block, position: int) -> bool:
        origin = block.origin
        if origin is None or block.operator is None or not origin.is_recorded:
            return False
        index = bisect_right(self._backward_starts, block.operator)
        if origin.phase == "backward":  # recomputed by activation checkpointing
            index -= 1
        elif index < len(self._start_positions):
            if not block.is_alive_at(self._start_positions[index]) and not (
                position in self._refusals and position < self._start_positions[index]
            ):
                return False
        else:
            return block.died is None or position in self._refusals
        ended = index < len(self._end_positions) and position > self._end_positions[index]
        return not ended

    def _outlives_step(self, block: Block) -> bool:
        if block.died is None or block.born < 0:
            return True
        index = bisect_left(self._step_positions, block.born)
        return index < len(self._step_positions) and self._step_positions[index] < block.died
