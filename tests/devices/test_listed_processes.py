"""What `torch.cuda.list_gpu_processes` writes, read where NVML does not know a GPU."""

import os

import pytest

from anyrig.devices.probes.cuda import read_processes
from anyrig.devices.process import DeviceProcess, process_name

HEAD = "GPU:1"
OWN = f"process {os.getpid():>10d} uses      512.500 MB GPU memory"
GONE = "process    4194305 uses        1.000 MB GPU memory"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["no processes are running"], ()),
        (
            [GONE, OWN],
            (
                DeviceProcess(4194305, None, 2**20),
                DeviceProcess(os.getpid(), process_name(os.getpid()), 1025 * 2**19),
            ),
        ),
        (["process list in a form of its own", GONE], (DeviceProcess(4194305, None, 2**20),)),
        (["process list in a form of its own"], None),
        ([], None),
    ],
)
def test_processes_are_read(lines: list[str], expected: tuple[DeviceProcess, ...] | None) -> None:
    assert read_processes("\n".join([HEAD, *lines])) == expected
