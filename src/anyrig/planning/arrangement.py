"""`Arrangement`: a plan of `anyrig.spread`, and the number of processes that follow it."""

from __future__ import annotations

from dataclasses import dataclass

# The environment variable that `anyrig.spread` reads.
VARIABLE = "ANYRIG_PLAN"
REPLICAS, SHARDS, PIPELINE = "Replicas", "Shards", "Pipeline"
Value = int | str | bool


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
    """

    plan: str
    processes: int
    values: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        texts = [
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
            for name, value in self.values
        ]
        return f"{self.plan}({', '.join(texts)})"

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

    def value(self, name: str, default: Value) -> Value:
        """Return an attribute of the plan."""
        return next((value for known, value in self.values if known == name), default)
