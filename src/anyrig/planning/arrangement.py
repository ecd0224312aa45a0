"""`Arrangement`: a plan of `anyrig.spread`, and the number of processes that follow it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# The environment variables that `anyrig.spread` reads.
VARIABLE, PRECISION_VARIABLE = "ANYRIG_PLAN", "ANYRIG_PRECISION"
REPLICAS, SHARDS, PIPELINE = "Replicas", "Shards", "Pipeline"
Value = int | str | bool
_TWO_STAGES = ("interleaved", "zero-bubble-v")


@dataclass(frozen=True)
class Arrangement:
    """One way to spread a program's model.

    ``str(arrangement)`` is the plan as Python, and as the environment variable ``ANYRIG_PLAN``
    takes it.

    Attributes:
        plan: the name of the plan's class.
        processes: how many processes follow the plan: one, which drives all GPUs, or a rank for
            each GPU.
        values: the plan's attributes that differ from their defaults.
        precision: the dtype of autocast, as `anyrig.spread` takes it; None for the program's own.
    """

    plan: str
    processes: int
    values: tuple[tuple[str, Value], ...] = ()
    precision: str | None = None

    def __str__(self) -> str:
        texts = [
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
            for name, value in self.values
        ]
        return f"{self.plan}({', '.join(texts)})"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that apply the arrangement."""
        precision = {} if self.precision is None else {PRECISION_VARIABLE: self.precision}
        return {VARIABLE: str(self), **precision}

    @property
    def arguments(self) -> str:
        """The arguments of `anyrig.spread` that apply the arrangement, in a script."""
        precision = "" if self.precision is None else f', precision="{self.precision}"'
        return f"plan=anyrig.{self}{precision}"

    @property
    def family(self) -> tuple[str, bool]:
        """The arrangements whose times are estimated from each other."""
        return self.plan, self.processes > 1

    @property
    def replicas(self) -> int:
        """The number of sets of ranks that each have the whole model."""
        return int(self.value("replicas", 1))

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of a pipeline; 1 for other plans."""
        return int(self.value("micro_batches", 1))

    @property
    def has_two_stages(self) -> bool:
        """Whether each GPU has two stages of a pipeline."""
        return self.value("schedule", "gpipe") in _TWO_STAGES

    @property
    def has_two_backwards(self) -> bool:
        """Whether a pipeline computes the gradients of inputs and of parameters separately."""
        return str(self.value("schedule", "gpipe")).startswith("zero-bubble")

    @property
    def demands(self) -> frozenset[str]:
        """What this plan demands of a program, and the simplest plan of its class does not."""
        return frozenset(self._demands())

    def _demands(self) -> Iterator[str]:
        if self.processes > 1:
            yield "ranks"
        if self.replicas > 1:
            yield "replicas"
        if self.micro_batches > 1:
            yield "a batch in parts"
        if self.value("checkpoint", "never") != "never":
            yield "recomputation"
        if self.value("schedule", "gpipe") != "gpipe":
            yield "backward passes during the forward call"
        if self.has_two_backwards:
            yield "backward passes in two parts"
        if self.has_two_stages:
            yield "two stages on a GPU"
        if self.value("reshard_after_forward", True) is False:
            yield "gathered parameters that are kept"

    def value(self, name: str, default: Value) -> Value:
        """Return an attribute of the plan."""
        return next((value for known, value in self.values if known == name), default)
