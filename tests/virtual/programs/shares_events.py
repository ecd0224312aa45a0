"""Two processes that wait for each other's events."""

from __future__ import annotations

from typing import Any

import torch
from torch import multiprocessing

from anyrig.virtual import clock

SLEEP_SECONDS = 0.05


def sleep() -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(round(SLEEP_SECONDS * 1.41e9))


def host_milliseconds() -> int:
    """Return the time of this process's virtual clock."""
    return round(clock().host_seconds * 1e3)


def waiting_milliseconds(event: torch.cuda.Event) -> int:
    """Return by how much waiting for `event` advances the clock."""
    before = host_milliseconds()
    event.synchronize()
    return host_milliseconds() - before


def other(events: Any, answers: Any) -> None:
    """Wait for an event in every way, record it in this process, and send it on."""
    event = events.get()
    answers.put(("unrecorded", event.query(), event.device))
    events.get()
    answers.put(("recorded", event.query(), waiting_milliseconds(event), event.query()))
    events.get()
    stream = torch.cuda.Stream()
    event.wait(stream)
    before = host_milliseconds()
    stream.synchronize()
    answers.put(("waited on a stream", host_milliseconds() - before))
    sleep()
    event.record()
    answers.put("recorded here")
    events.get()
    answers.put(("waited for there", event.query()))
    try:
        event.ipc_handle()
    except torch.AcceleratorError as error:
        answers.put(str(error).splitlines()[0])
    events.get()


def main() -> None:
    """Record events; print the other process's answers and the events' state afterwards."""
    context = multiprocessing.get_context("spawn")
    events, answers = context.Queue(), context.Queue()
    process = context.Process(target=other, args=(events, answers))
    process.start()
    event = torch.cuda.Event(interprocess=True)
    events.put(event)
    print(answers.get(timeout=60), event.query())
    before = host_milliseconds()
    sleep()
    event.record()
    print(event.query())
    events.put(None)
    print(answers.get(timeout=60), event.query(), host_milliseconds() - before)
    sleep()
    event.record()
    events.put(None)
    print(answers.get(timeout=60))
    print(answers.get(timeout=60), event.query(), waiting_milliseconds(event))
    events.put(None)
    print(answers.get(timeout=60), event.query())
    print(answers.get(timeout=60))
    for options in ({}, {"interprocess": True, "enable_timing": True}):
        try:
            torch.cuda.Event(**options).ipc_handle()
        except torch.AcceleratorError as error:
            print(str(error).splitlines()[0])
    events.put(None)
    process.join(60)
    print(process.exitcode)


if __name__ == "__main__":
    main()
