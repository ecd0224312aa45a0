"""Which messages the ranks of a pipeline send each other in a call, and in which order.

::

    rank 0   lends ─▶  F0  values ─▶  F1  values ─▶       B0       B1       ◀─ adds
    rank 1             F0  B0 ◀─ gradients   F1  B1 ◀─ gradients        returns

Each rank sends in the order of its tasks, which every other rank knows. So a receiver needs no
announcement, and may post a receive before its sender has computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..schedules.schedule import Task, Work
from ..stage import Stage

ARGUMENTS = -1  # the maker of the values that are arguments of the call


class Subject(Enum):
    """What a message carries."""

    LENT = "a tensor of the module"  # from its owner to another stage that uses it
    VALUES = "values"
    GRADIENTS = "gradients of values"
    RETURNED = "the gradient of a tensor of the module"

    __hash__ = object.__hash__  # members are unique; Enum's own hash is slow


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        subject: what it carries.
        maker: the stage that made the values, or owns the tensor; or `ARGUMENTS`.
        reader: the stage that reads them.
        number: the number of the micro-batch, or of the tensor.
    """

    subject: Subject
    maker: int
    reader: int
    number: int

    @property
    def is_forward(self) -> bool:
        """Whether the maker sends to the reader, and not the reverse."""
        return self.subject in (Subject.LENT, Subject.VALUES)

    def __str__(self) -> str:
        """Return the message in words."""
        maker = "the arguments" if self.maker == ARGUMENTS else f"stage {self.maker}"
        if self.subject in (Subject.LENT, Subject.RETURNED):
            return f"{self.subject.value}, of {maker} and stage {self.reader}"
        return f"{self.subject.value} of {maker} for stage {self.reader}, micro-batch {self.number}"


@dataclass(frozen=True)
class Traffic:
    """The messages between the devices of a pipeline.

    Attributes:
        device_of_stage: the number of each stage's device.
        links: the names of the values that a stage reads, by maker and reader.
        shared: for each tensor that several stages use, these stages; the first owns the tensor.
    """

    device_of_stage: tuple[int, ...]
    links: Mapping[tuple[int, int], tuple[str, ...]]
    shared: tuple[tuple[int, ...], ...]

    def device_of(self, stage: int) -> int:
        """Return the device of a stage, or of the arguments."""
        return self.device_of_stage[max(stage, 0)]

    def ends(self, message: Message) -> tuple[int, int]:
        """Return the devices that send and receive a message."""
        maker, reader = self.device_of(message.maker), self.device_of(message.reader)
        return (maker, reader) if message.is_forward else (reader, maker)

    def makers(self, reader: int) -> list[tuple[int, tuple[str, ...]]]:
        """Return the makers of the values that a stage reads, with their names."""
        return [(maker, names) for (maker, its), names in self.links.items() if its == reader]

    def readers(self, maker: int) -> list[tuple[int, tuple[str, ...]]]:
        """Return the stages that read values of a maker, in order, with the names."""
        return [(reader, names) for (its, reader), names in self.links.items() if its == maker]

    def order(self, device: int, tasks: Sequence[Task], lends: bool) -> list[Message]:
        """Return the messages that a device sends while it computes `tasks`, in order.

        Args:
            device: the sender.
            tasks: the device's tasks.
            lends: whether tensors of the module are lent first, as in a forward pass.
        """
        learns = any(task.work is not Work.FORWARD for task in tasks)
        messages = [*(self._lent(Subject.LENT) if lends else ())]
        for task in tasks:
            messages += self._sent_after(task)
        messages += self._lent(Subject.RETURNED) if learns else ()
        return [
            message
            for message in messages
            if self.ends(message)[0] == device and self.ends(message)[1] != device
        ]

    def _sent_after(self, task: Task) -> Iterator[Message]:
        stage, number = task.stage, task.micro_batch
        if task.work is Work.FORWARD:
            for maker in (ARGUMENTS, stage) if stage == 0 else (stage,):
                for reader, _ in self.readers(maker):
                    yield Message(Subject.VALUES, maker, reader, number)
        elif task.work is not Work.BACKWARD_WEIGHT:
            for maker, _ in self.makers(stage):
                yield Message(Subject.GRADIENTS, maker, stage, number)

    def _lent(self, subject: Subject) -> Iterator[Message]:
        for number, (owner, *others) in enumerate(self.shared):
            for stage in others:
                yield Message(subject, owner, stage, number)

    def pairs(self) -> list[tuple[int, int]]:
        """Return the pairs (sending device, receiving device), in order."""
        linked = [*self.links, *((owner, each) for owner, *rest in self.shared for each in rest)]
        found = {(self.device_of(maker), self.device_of(reader)) for maker, reader in linked}
        return sorted({pair for a, b in found if a != b for pair in ((a, b), (b, a))})


def find_links(stages: Sequence[Stage]) -> dict[tuple[int, int], tuple[str, ...]]:
    """Return the names of the values that each stage reads, by maker and reader, in order."""
    maker_of: dict[str, int] = {}
    found: dict[tuple[int, int], tuple[str, ...]] = {}
    for stage in stages:
        for name in stage.reads:
            key = maker_of.get(name, ARGUMENTS), stage.index
            found[key] = (*found.get(key, ()), name)
        maker_of.update(dict.fromkeys(stage.writes, stage.index))
    return dict(sorted(found.items()))
