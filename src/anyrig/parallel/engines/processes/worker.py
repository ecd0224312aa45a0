"""The program of the fork server and its workers: ``python -m …processes.worker FD PARENT``.

A worker never imports the script of its parent: what it computes with comes from the parent, by
value.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .link import Link

_LOOK_SECONDS = 0.3
_STATUS_SECONDS = 1.0


def main() -> NoReturn:
    """Fork workers until the parent closes the socket, or has ended."""
    descriptor, parent = map(int, sys.argv[1:])
    # An interrupt of the whole program is meant for the parent, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = socket.socket(fileno=descriptor)
    # While torch is imported, which takes seconds.
    is_imported = threading.Event()
    watch = threading.Thread(target=_end_with, args=(parent, server, is_imported), daemon=True)
    watch.start()
    _import_for_workers()
    from .fork_server import REQUEST, STATUS

    is_imported.set()
    watch.join()  # a fork needs a process of one thread
    gc.freeze()  # so that no collection writes to the pages that workers share
    workers: set[int] = set()
    while not _has_ended(parent, server):
        if not _waits(server):
            continue
        head, descriptors, *_ = socket.recv_fds(server, REQUEST.size, 1)
        if len(head) < REQUEST.size:
            break
        worker, number = REQUEST.unpack(head)
        if worker:
            server.sendall(STATUS.pack(_status_of(worker, workers)))
            continue
        forked = os.fork()
        if not forked:
            server.close()
            _work(descriptors[0], number)
        workers.add(forked)
        os.close(descriptors[0])
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    for worker in workers:
        os.waitpid(worker, 0)
    os._exit(0)


def _import_for_workers() -> None:
    """Import what all workers need, so that they share its pages."""
    from ....processes import whole_lines  # noqa: F401
    from . import link, part_request, sent_errors, worker_parts  # noqa: F401

    with contextlib.suppress(ImportError):  # what a backward pass imports, of PyTorch 2.13
        import torch.fx.experimental.symbolic_shapes  # noqa: F401


def _end_with(parent: int, server: socket.socket, is_imported: threading.Event) -> None:
    """End this process when its parent has ended, or wants no workers any more."""
    while not is_imported.wait(_LOOK_SECONDS):
        if _has_ended(parent, server):
            os._exit(1)


def _has_ended(parent: int, server: socket.socket) -> bool:
    poll = select.poll()
    poll.register(server, 0)
    return os.getppid() != parent or bool(poll.poll(0))


def _waits(server: socket.socket) -> bool:
    """Return whether a request waits, after a short time."""
    return bool(select.select([server], [], [], _LOOK_SECONDS)[0])


def _status_of(worker: int, workers: set[int]) -> int:
    """Return how a worker has ended."""
    from .fork_server import RUNS

    until = time.monotonic() + _STATUS_SECONDS
    while worker in workers:
        found, status = os.waitpid(worker, os.WNOHANG)
        if found:
            workers.remove(worker)
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            break
        time.sleep(0.001)
    return RUNS


def _work(descriptor: int, number: int) -> NoReturn:
    """Compute parts of batches until the parent closes the link, or the fork server has ended."""
    try:
        threading.Thread(target=_end_with_server, args=(os.getppid(),), daemon=True).start()
        from ....processes.whole_lines import write_whole_lines
        from .link import Link, LinkClosed
        from .part_request import Started

        write_whole_lines()  # what the module prints is not lost when this process is killed
        link = Link(socket.socket(fileno=descriptor))
        with contextlib.suppress(LinkClosed):
            link.send(Started(os.getpid()))
            os.chdir(link.receive())
            _serve(link, number)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # Threads of the module, or a graph that is slow to free, must not keep the process.
    os._exit(0)


def _end_with_server(server: int) -> None:
    while os.getppid() == server:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _serve(link: Link, number: int) -> None:
    from .link import LinkClosed, Segment
    from .part_request import Computed, Failed, SearchPath
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
            answer = Failed(SentError.of(error))
            used = link.send(answer)
        if isinstance(answer, Computed):  # the parent is busy, and reads no gradients
            parts.prepare()
        del answer


if __name__ == "__main__":
    main()
