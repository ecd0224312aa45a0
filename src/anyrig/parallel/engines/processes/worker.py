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
    from ....errors import SpreadError
    from .part_request import SearchPath
    from .worker_parts import WorkerParts

    parts = WorkerParts(link, number)
    used: Segment | None = None
    while True:
        try:
            request = link.receive()
            if isinstance(request, SearchPath):
                sys.path[:] = request.folders
                continue
            answer = parts.answer(request)
            del request
        except LinkClosed:
            raise
        except BaseException as error:
            answer = _failure(error)
        if used is not None:  # the parent has taken over what it needed of the last answer
            used.is_free = True
        try:
            used = link.send(answer)
        except SpreadError as error:  # the result cannot be pickled
            used = link.send(_failure(error))
        del answer


def _failure(error: BaseException) -> Any:
    from .part_request import Failed

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
