"""What this rank sends and receives in one pass over a pipeline.

The first time that ranks call a model with arguments of some shapes, a text goes before each
message and describes it. From then on the ranks know what they will receive, and post receives
before they need the values, so that these arrive while the rank computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .....errors import SpreadError
from .contents import forms_of, make_value, read_value
from .links import Arriving, Links
from .message import Message, Traffic

# Receives that are posted ahead, for each sender. More would hold memory for values that a schedule
# such as 1f1b keeps from arriving.
_AHEAD = 2


class Office:
    """Sends and receives the messages of one pass, in the order of the senders' tasks.

    Args:
        links: the links of this pipeline.
        traffic: says which devices send and receive.
        orders: by sender, the messages that it sends.
        known: the texts of earlier passes with arguments of the same shapes; this pass adds its
            own.
        tag: the tag of this pass.
        agree: waits until all ranks are known to make the same call; called before the first
            message.
    """

    def __init__(
        self,
        links: Links,
        traffic: Traffic,
        orders: Mapping[int, Sequence[Message]],
        known: dict[Message, str],
        tag: int,
        agree: Callable[[], None],
    ) -> None:
        self._links, self._traffic = links, traffic
        self._known, self._tag, self._agree = known, tag, agree
        self._is_open = False
        self._here = links.row.place
        self._expected = {
            sender: deque(each for each in order if traffic.ends(each)[1] == self._here)
            for sender, order in orders.items()
            if sender != self._here
        }
        self._arriving: dict[Message, Arriving] = {}
        self._within: dict[Message, Any] = {}

    def send(self, message: Message, value: Any) -> None:
        """Start to send a value, which has no graph."""
        receiver = self._traffic.ends(message)[1]
        if receiver == self._here:
            self._within[message] = value
            return
        self._open()
        contents = read_value(value, message)
        before = self._known.get(message)
        self._known[message] = contents.text
        if before is not None and before != contents.text:
            raise SpreadError(
                f"{message} changed although the arguments have the same shapes: before it was "
                f"{before}, and now it is {contents.text}. Another rank expects the former. Make "
                "shapes and numbers depend on the shapes of arguments alone, for example with "
                "padding, or use one process for all devices"
            )
        self._links.send(contents, receiver, self._tag, with_text=before is None)

    def receive(self, message: Message) -> Any:
        """Return a value; tensors that need gradients are leaves."""
        sender = self._traffic.ends(message)[0]
        if sender == self._here:
            return self._within.pop(message)
        self._open()
        while message not in self._arriving:
            self._post(sender)
        tensors = self._links.take(self._arriving.pop(message), message)
        self._post_ahead(sender)
        return make_value(self._known[message], tensors)

    def _open(self) -> None:
        if not self._is_open:
            self._agree()
            self._is_open = True
            for sender in self._expected:
                self._post_ahead(sender)

    def _post(self, sender: int) -> None:
        """Post a receive for the next message of a rank; wait for its text if it is not known."""
        message = self._expected[sender].popleft()
        if message not in self._known:
            text = self._links.receive_text(sender, self._tag, str(message))
            self._known[message] = text
        forms = forms_of(self._known[message])
        self._arriving[message] = self._links.post(forms, sender, self._tag)

    def _post_ahead(self, sender: int) -> None:
        expected = self._expected[sender]
        posted = sum(arriving.sender == sender for arriving in self._arriving.values())
        while posted < _AHEAD and expected and expected[0] in self._known:
            self._post(sender)
            posted += 1
