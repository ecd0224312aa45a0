"""Which ranks form one pipeline.

::

    replicas=1    rank 0 ─▶ 1 ─▶ 2 ─▶ 3         one pipeline, of which each rank has a quarter
    replicas=2    rank 0 ─▶ 1                   two pipelines, each with the whole module and
                  rank 2 ─▶ 3                   its own samples; ranks 0 and 2 have equal stages
"""

from __future__ import annotations

from dataclasses import dataclass

from .....errors import SpreadError


@dataclass(frozen=True)
class Row:
    """The ranks of this rank's pipeline.

    Attributes:
        ranks: the ranks, in the order of the pipeline's devices.
        place: this rank's place among `ranks`: the number of its device in schedules.
        number: the number of this pipeline.
        count: the number of pipelines.
    """

    ranks: tuple[int, ...]
    place: int
    number: int = 0
    count: int = 1

    def ranks_of(self, number: int) -> tuple[int, ...]:
        """Return the ranks of pipeline `number`."""
        size = len(self.ranks)
        return tuple(range(number * size, (number + 1) * size))


def find_row(rank: int, world_size: int, replicas: int) -> Row:
    """Return the pipeline of `rank`.

    Raises:
        SpreadError: the ranks cannot be divided into `replicas` pipelines of two ranks or more.
    """
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise SpreadError(f"replicas={replicas!r} must be a positive integer")
    size = world_size // replicas
    if world_size % replicas or size < 2:
        raise SpreadError(
            f"replicas={replicas} does not divide {world_size} ranks into pipelines of two ranks "
            "or more, all of one size; use another number, or for a whole model on each rank "
            "plan=Replicas()"
        )
    number, place = divmod(rank, size)
    return Row(tuple(range(number * size, (number + 1) * size)), place, number, replicas)
