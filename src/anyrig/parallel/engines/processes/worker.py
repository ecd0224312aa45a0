"""The program of a worker: ``python -m anyrig.parallel.engines.processes.worker FD PARENT NUMBER``.

It never imports the script of its parent: what it computes with comes from the parent, by value.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from .link import Link, LinkClosed, Segment, survives

_LOOK_SECONDS = 0.3


def main() -> NoReturn:
    """Compute parts of batches until the parent closes the link, or has ended."""
    descriptor, parent, number = map(int, sys.argv[1:])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    link = Link(socket.socket(fileno=descriptor))
    try:
        os.chdir(link.receive())
        _serve(link, number)
    except LinkClosed:
        pass
    # Threads of the module, or a graph that is slow to free, must not keep the process.
    os._exit(0)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, whatever this process does meanwhile."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _serve(link: Link, number: int) -> None:
    from .part_request import ForwardRequest
    from .worker_parts import Stopped, WorkerParts

    parts = WorkerParts(link, number)
    free: list[Segment] = []
    while True:
        request = link.receive()
        for segment in free:  # the parent has taken over what it needed of the last answer
            segment.is_free = True
        free.clear()
        answer: Any
        try:
            if isinstance(request, ForwardRequest):
                answer = parts.forward(request)
            else:
                answer = parts.backward(request)
        except Stopped:
            answer = _failure(None)
        except BaseException as error:
            answer = _failure(error)
        del request
        used = link.send(answer)
        if used is not None:
            free.append(used)
        del answer


def _failure(error: BaseException | None) -> Any:
    from .part_request import Failed

    if error is None:
        return Failed(None, "")
    # Without the frames of this program.
    frames = error.__traceback__
    folder = str(Path(__file__).parent)
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(folder):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    alone = error.with_traceback(None)
    alone.__cause__ = alone.__context__ = None
    if not survives(alone):
        alone = RuntimeError(f"{type(error).__name__}: {error}")
    return Failed(alone, text)


if __name__ == "__main__":
    main()
