"""The program of a worker: ``python -m anyrig.parallel.engines.processes.worker FD PARENT NUMBER``.

It never imports the script of its parent: what it computes with comes from the parent, by value.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .link import Link

_LOOK_SECONDS = 0.3


def main() -> NoReturn:
    """Compute parts of batches until the parent closes the link, or has ended."""
    descriptor, parent, number = map(int, sys.argv[1:])
    # An interrupt of the whole program is meant for the parent, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before torch is imported, which takes seconds.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from ....processes.whole_lines import write_whole_lines
    from .link import Link, LinkClosed

    write_whole_lines()  # what the module prints is not lost when this process is killed
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
    from .link import LinkClosed, Segment
    from .part_request import Failed, SearchPath
    from .sent_errors import SentError
    from .worker_parts import WorkerParts

    parts = WorkerParts(link, number)
    used: Segment | None = None
    answer: Any
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
            answer = Failed(SentError.of(error))
        if used is not None:  # the parent has taken over what it needed of the last answer
            used.is_free = True
        try:
            used = link.send(answer)
        except LinkClosed:
            raise
        except Exception as error:  # the result cannot be pickled, or memory is exhausted
            used = link.send(Failed(SentError.of(error)))
        del answer


if __name__ == "__main__":
    main()
