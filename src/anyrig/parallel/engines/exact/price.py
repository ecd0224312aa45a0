"""The cost of training that gives the same bits on any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass

from ....units import format_bytes, format_count


@dataclass(frozen=True)
class Price:
    """The cost of one step on one rank.

    Attributes:
        calls: how often the module computes, each time one logical shard.
        sent_bytes: gradients, and parameters in shards, that a rank sends.
        usual_bytes: what a rank sends without logical shards.
        memory_bytes: held in addition to parameters and `.grad`.
        has_one_thread: whether each rank computes with one thread.
    """

    calls: int
    sent_bytes: int
    usual_bytes: int
    memory_bytes: int
    has_one_thread: bool

    def __str__(self) -> str:
        """Return the cost in words."""
        text = f"{format_count(self.calls, 'logical shard')} per step, one after another"
        if self.usual_bytes:
            text += (
                f"; a rank sends {format_bytes(self.sent_bytes)} per step, instead of "
                f"{format_bytes(self.usual_bytes)}"
            )
        text += f"; {format_bytes(self.memory_bytes)} more memory"
        return text + ("; one thread per rank" if self.has_one_thread else "")


def price_of(
    gradient_bytes: int, logical_shards: int, ranks: int, sharded: bool, on_cpu: bool
) -> Price:
    """Return the cost of a step.

    With G bytes of gradients, R ranks, k = logical shards / R, and F = G * (R - 1) / R:

    ==============  =============================  ======================  ==================
    bytes           replicas                       usually (ring)          parameters in shards
    ==============  =============================  ======================  ==================
    sent            k F (all to all) + F (join)    2 F (all-reduce)        3 k F, usually 3 F
    memory          G (of a logical shard) + G/R   0                       G/R
    ==============  =============================  ======================  ==================

    With parameters in shards, each logical shard gathers them twice and divides gradients once.

    Args:
        gradient_bytes: the size of all gradients, as one device would have them.
        logical_shards: the number in a global batch.
        ranks: the number of ranks.
        sharded: whether parameters are in shards.
        on_cpu: whether the ranks compute on the CPU.
    """
    calls = logical_shards // ranks
    part = gradient_bytes // ranks
    far = gradient_bytes - part
    return Price(
        calls=calls,
        sent_bytes=3 * calls * far if sharded else (calls + 1) * far,
        usual_bytes=3 * far if sharded else 2 * far,
        memory_bytes=part if sharded else gradient_bytes + part,
        has_one_thread=on_cpu,
    )
