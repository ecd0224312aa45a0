"""Python programs that are forked from one process, which has imported torch and its compiler.

A program starts in a tenth of a second instead of two seconds, and otherwise runs as with
``python -W error``. Not for tests of how programs start, import torch or end: a forked program
finds torch imported, and ends as the commands of anyrig do.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from watched_process import VARIABLE, watched_process

# The option of pytest that `conftest.py` adds.
WATCH = "--watch-hazards"

_ONE_PROGRAM = threading.Lock()  # the others wait


def run_forked(
    *command: str,
    timeout: float = 300,
    cwd: Path | None = None,
    finalizes: bool = True,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a program, and return how it ended and what it printed.

    Args:
        command: what stands after ``python``: ``-c`` and a source, ``-m`` and the name of a module,
            or the path of a script; and arguments.
        timeout: after how many seconds the program and its children are killed.
        cwd: the folder in which the program runs; None for this process's.
        finalizes: whether the program's end writes the files that it left open, which takes a
            quarter of a second, and leaves the virtual GPUs. Otherwise the process ends after its
            exit handlers.
        variables: environment variables, in addition to this process's and ``OMP_NUM_THREADS=1``.
            The dynamic linker reads LD_LIBRARY_PATH when a process starts, so the programs with
            another one are forked from another process.

    Raises:
        TimeoutExpired: the program took longer; the output is in the exception.
    """
    with tempfile.TemporaryDirectory(prefix="forked-") as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        environment = {**_own_environment(), **variables}
        place = str(cwd or Path.cwd())
        order = [finalizes, command, environment, place, str(output), str(errors)]
        with _ONE_PROGRAM:
            in_time, status = _server(environment.get("LD_LIBRARY_PATH")).run(order, timeout)
        done = subprocess.CompletedProcess(command, status, output.read_text(), errors.read_text())
    if not in_time:
        raise subprocess.TimeoutExpired(command, timeout, done.stdout, done.stderr)
    return done


def run_anyrig(
    *words: str, timeout: float = 300, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command `anyrig`; see `run_forked`. The processes that it starts are new ones."""
    command = ("-m", "anyrig", *words)
    # The last process that leaves the virtual GPUs removes the folder of a rehearsal.
    finalizes = words[0] in ("rehearse", "verify")
    return run_forked(*command, timeout=timeout, cwd=cwd, finalizes=finalizes, **variables)


def run_pytest(
    *words: str, timeout: float = 300, watches_tests: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run tests; see `run_forked`.

    Args:
        words: the arguments of pytest.
        timeout: after how many seconds the process is killed.
        watches_tests: whether each test is watched for hazards if this process's tests are; for
            tests below this folder.
        variables: environment variables.
    """
    # The plugin is imported, so pytest cannot rewrite its assertions, of which it has none.
    imported = "ignore:Module already imported so cannot be rewritten"
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", imported)
    if watches_tests and VARIABLE in os.environ:
        words = (*words, WATCH)
    return run_forked(*pytest, *words, timeout=timeout, **variables)


@dataclass
class _Server:
    """The process that forks programs, one at a time."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    program: int | None = None

    def run(self, order: list[Any], timeout: float) -> tuple[bool, int]:
        """Return whether a program ended in time, and its exit status."""
        self.connection.sendall(json.dumps(order).encode() + b"\n")
        self.program = int(self._read())
        in_time = bool(select.select([self.connection], [], [], timeout)[0])
        if not in_time:
            os.killpg(self.program, signal.SIGKILL)
        status = int(self._read())
        self.program = None
        return in_time, status

    def _read(self) -> bytes:
        message = self.connection.recv(16)
        assert message, "the process that forks programs has ended"
        return message

    def end(self) -> None:
        if self.program is not None:  # a thread waits for it
            os.killpg(self.program, signal.SIGKILL)
        self.connection.close()
        self.process.wait(30)


def _own_environment() -> dict[str, str]:
    # This process may have a virtual rig, which its children would inherit.
    own = {name: value for name, value in os.environ.items() if name != "ANYRIG_REHEARSAL"}
    return {**own, "OMP_NUM_THREADS": "1"}


@cache
def _server(libraries: str | None) -> _Server:
    own, other = socket.socketpair()
    paths = {} if libraries is None else {"LD_LIBRARY_PATH": libraries}
    with other:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(other.fileno())],
            env=_own_environment() | paths,
            pass_fds=[other.fileno()],
        )
    server = _Server(process, own)
    atexit.register(server.end)
    return server


def serve(connection: socket.socket) -> None:
    """Fork a program for each order, until the connection ends."""
    from anyrig.process_end import end_process
    from anyrig.virtual.installed import leave_gpus

    gc.disable()  # a collection visits all that was imported, and frees nothing
    for name in (
        "torch._dynamo",
        "torch.distributed.run",
        "anyrig.cli.app",
        "anyrig.processes.launcher",
        "anyrig.rehearsal.rehearsal",
        "anyrig.virtual.installed",
    ):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else a program's first collection copies the memory that it shares
    gc.enable()
    with connection, connection.makefile() as orders:
        for line in orders:
            program = os.fork()
            if program == 0:
                os.close(connection.detach())
                finalizes, *words = json.loads(line)
                status = run_program(*words)
                if finalizes:
                    end_process(status, leave_gpus)
                end_program(status)
            connection.sendall(b"%-16d" % program)
            _, status = os.waitpid(program, 0)
            connection.sendall(b"%-16d" % os.waitstatus_to_exitcode(status))


def run_program(
    command: list[str], environment: dict[str, str], cwd: str, output: str, errors: str
) -> int:
    """Run a program in this process; return its exit status."""
    import torch.distributed as dist

    os.setsid()
    for file, number in ((os.devnull, 0), (output, 1), (errors, 2)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(file, flags, 0o600), number)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    os.chdir(cwd)
    dist.set_debug_level_from_env()
    del sys.modules["__main__"]
    watches_itself = Path(command[0]).name in ("forked_ranks.py", "ranks.py")
    with nullcontext() if watches_itself or WATCH in command else watched_process():
        return run_command(command)


def run_command(command: list[str]) -> int:
    """Run a program as ``python`` would, in this process."""
    from anyrig.programs.program import Program, _status_of

    if command[0] == "-m":
        return Program(command[1], tuple(command[2:]), is_module=True).run()
    if command[0] != "-c":
        return Program(command[0], tuple(command[1:])).run()
    sys.argv, sys.path[0] = ["-c", *command[2:]], ""
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        exec(compile(command[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    except BaseException as error:
        return _status_of(error)
    return 0


def end_program(status: int) -> NoReturn:
    """Wait for threads, run exit handlers and end this process."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
