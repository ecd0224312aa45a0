"""The state of one model in a pipeline over ranks, from call to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .....processes.group.membership import Context
from ..schedules.schedule import Task
from .contents import forms_of, make_value, read_value
from .links import MOST_PASSES, Links
from .message import Message
from .office import Office
from .rank_run import RankStages
from .row_loss import LossKind

_MOST_KNOWN = 256


@dataclass
class Known:
    """What earlier calls with arguments of the same shapes have shown this rank."""

    messages: dict[Message, str] = field(default_factory=dict)
    loss: dict[str, LossKind] = field(default_factory=dict)


@dataclass(eq=False)
class RankPipeline:
    """The state of one model in a pipeline over ranks.

    Attributes:
        context: the state of the process group.
        number: the model's number; ranks spread their models in the same order.
        links: the links with the other ranks of this pipeline.
        stages: the stages of the pipeline.
        forwards: the number of calls.
        passes: the number of forward and backward passes, and of values that were shared.
        has_run: whether a call has run, and found nothing to refuse.
        failed: whether a call has failed; then later calls could receive its messages.
        known: what earlier calls have shown, by `RankPipelineEngine._key`.
    """

    context: Context
    number: int
    links: Links
    stages: RankStages
    forwards: int = 0
    passes: int = 0
    has_run: bool = False
    failed: bool = False
    known: dict[int, Known] = field(default_factory=dict)

    def known_for(self, key: int) -> Known:
        """Return what earlier calls with `key` have shown, or an empty record."""
        if key not in self.known and len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        return self.known.setdefault(key, Known())

    def next_tag(self) -> int:
        """Return the tag of the next pass, which is the same on every rank of the pipeline."""
        self.passes += 1
        return self.passes % MOST_PASSES

    def office(
        self,
        tasks: Sequence[Sequence[Task]],
        lends: bool,
        known: Known,
        agree: Callable[[], None],
    ) -> Office:
        """Return the office for the tasks of all devices; see `Office`."""
        traffic = self.stages.traffic
        orders = {
            device: traffic.order(device, its_tasks, lends)
            for device, its_tasks in enumerate(tasks)
        }
        return Office(self.links, traffic, orders, known.messages, self.next_tag(), agree)

    def share(self, value: Any, source: int, what: str) -> Any:
        """Return the value that the rank of device `source` has, on every rank of the pipeline."""
        tag, links = self.next_tag(), self.links
        if links.row.place == source:
            contents = read_value(value, what)
            for place in range(len(links.row.ranks)):
                if place != source:
                    links.send(contents, place, tag, with_text=True)
            links.finish_sending()
            return value
        text = links.receive_text(source, tag, what)
        return make_value(text, links.take(links.post(forms_of(text), source, tag), what))
