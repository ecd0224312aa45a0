"""Another process that holds leases, for tests of leases."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest

UUIDS = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")
posix_only = pytest.mark.skipif(os.name != "posix", reason="there is no fork, nor user, here")

# Takes the first devices that are free, or none at all.
TAKE = """
def take(uuids, count):
    with one_chooser_at_a_time():
        leases = [each for each in map(acquire_lease, uuids) if isinstance(each, Lease)]
        for lease in leases[count if len(leases) >= count else 0:]:
            lease.release()
    return leases[:count] if len(leases) >= count else []
"""

Start = Callable[[str], "Holder"]


class Holder:
    """Another process: it runs code, prints lines, and waits for a request to end."""

    def __init__(self, code: str) -> None:
        program = (
            "import os, sys, time\n"
            "from anyrig.devices.lease import *\n"
            "def say(text): print(text, flush=True)\n" + TAKE + textwrap.dedent(code)
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Reading from a process that is stuck ends, and fails the test.
        self.watchdog = threading.Timer(60, self.process.kill)
        self.watchdog.start()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)

    def close(self) -> None:
        self.watchdog.cancel()
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
