"""What blocks cost, and what devices and links offer: plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# in_flight(later): for how many micro-batches a stage holds activations that `later` stages follow.
InFlight = Callable[[int], int]


@dataclass(frozen=True)
class BlockCost:
    """What one block costs.

    Attributes:
        forward_seconds: for one micro-batch, on a device of speed 1.
        backward_seconds: the same for the backward pass.
        parameter_bytes: the size of parameters and buffers.
        training_bytes: the size of gradients and optimizer state.
        activation_bytes: held per micro-batch between its forward and its backward.
        output_bytes: what crosses the cut after this block for one micro-batch: values on the way
            forward, and as many bytes of gradients on the way back.
    """

    forward_seconds: float
    backward_seconds: float = 0.0
    parameter_bytes: int = 0
    training_bytes: int = 0
    activation_bytes: int = 0
    output_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch, on a device of speed 1."""
        return self.forward_seconds + self.backward_seconds

    @property
    def fixed_bytes(self) -> int:
        """The bytes that do not depend on micro-batches."""
        return self.parameter_bytes + self.training_bytes


@dataclass(frozen=True)
class StageDevice:
    """What one device offers.

    Attributes:
        name: the name for messages.
        speed: how many times faster than the device for which the blocks' seconds hold.
        memory_bytes: the memory for a stage; None is unlimited.
        block_seconds: measured seconds of each block on this device, instead of `speed`.
    """

    name: str
    speed: float = 1.0
    memory_bytes: int | None = None
    block_seconds: Sequence[float] | None = None


@dataclass(frozen=True)
class StageLink:
    """A connection between two devices, with the full rate in both directions at once."""

    bytes_per_second: float = float("inf")
    latency_seconds: float = 0.0

    def seconds(self, size_bytes: int) -> float:
        """Return the time of one transfer."""
        return self.latency_seconds + size_bytes / self.bytes_per_second if size_bytes else 0.0


def one_forward_one_backward(micro_batches: int) -> InFlight:
    """Return how many micro-batches each stage of 1F1B holds: the first stage holds most."""
    return lambda later: min(later + 1, micro_batches)


def all_forwards_first(micro_batches: int) -> InFlight:
    """Return how many micro-batches each stage of GPipe holds: all."""
    return lambda later: micro_batches
