"""Each room of a PyTorch that is newer than the tested versions says which names are missing.

Real processes, in which a name is deleted and PyTorch's version is 2.99.
"""

from __future__ import annotations

import json

import pytest
import torch

from anyrig import errors
from anyrig.private_names import ROOMS, range_for_pip
from forked_programs import run_forked

NEWER = """
import torch
import torch._dynamo.eval_frame, torch.nn.modules.transformer, torch.autograd.graph
torch.__version__ = "2.99.0"
"""

# For each room: what to delete, and how the work of the room begins.
BEGINNINGS = {
    "checkpoint": (
        "torch.serialization, '_get_layout'",
        "import anyrig; anyrig.save('here', step=1)",
        errors.CheckpointError,
    ),
    "devices": (
        "torch.cuda, '_is_in_bad_fork'",
        "from anyrig.devices import watch_cuda_start; watch_cuda_start()",
        errors.AnyrigError,
    ),
    "hazards": (
        "torch._C, '_current_autograd_node'",
        "import anyrig; anyrig.hazards.watch_hazards().__enter__()",
        errors.HazardError,
    ),
    "memory": (
        "torch._C, '_current_graph_task_id'",
        "import anyrig; anyrig.memory.track().__enter__()",
        errors.MemoryTrackingError,
    ),
    "observe": (
        "torch.utils.data.dataloader, '_BaseDataLoaderIter'",
        "from anyrig.observe import events, hooks; hooks.Observer(events.Events()).start()",
        errors.AnyrigError,
    ),
    "parallel": (
        "torch.nn.modules.transformer, '_get_seq_len'",
        "import anyrig; anyrig.spread(torch.nn.Linear(1, 1), 'cpu')",
        errors.SpreadError,
    ),
    "processes": (
        "torch._C, '_dispatch_has_kernel_for_dispatch_key'",
        "import anyrig; anyrig.launch(print, rig='cpu')",
        errors.LaunchError,
    ),
    "rehearsal": (
        "torch.autograd, '_profiler_enabled'",
        "import anyrig; anyrig.rehearsal.watch().__enter__()",
        errors.ReportError,
    ),
    "verification": (
        "torch.distributed.distributed_c10d, '_update_default_pg'",
        "import anyrig; anyrig.verification.verify(print, 'cpu')",
        errors.VerificationError,
    ),
    "virtual": (
        "torch._C, '_jit_override_can_fuse_on_gpu'",
        "import anyrig.virtual; anyrig.virtual.install('1xA100-80GB')",
        errors.VirtualRigError,
    ),
}

REPORT = """
delattr({deleted})
try:
    {begin}
except Exception as error:
    print(type(error).__name__)
    print(error)
"""


def test_every_room_is_tried() -> None:
    assert BEGINNINGS.keys() == ROOMS.keys()


@pytest.mark.parametrize("room", BEGINNINGS)
def test_a_room_names_what_is_missing(room: str) -> None:
    deleted, begin, error = BEGINNINGS[room]
    done = run_forked("-c", NEWER + REPORT.format(deleted=deleted, begin=begin))
    kind, message = done.stdout.splitlines()[-2:]
    module, name = deleted.replace("'", "").split(", ")
    entry = next(one for one in ROOMS[room] if one.name == f"{module}.{name}")
    assert kind == error.__name__
    assert "cannot work with PyTorch 2.99.0, which does not have" in message
    assert f"{entry.name}, for {entry.breaks}" in message
    assert message.endswith(f"; install a tested version: pip install '{range_for_pip()}'")


def test_a_tested_version_is_not_searched() -> None:
    program = REPORT.format(
        deleted="torch.nn.modules.transformer, '_get_seq_len'",
        begin="import anyrig; print(type(anyrig.spread(torch.nn.Linear(1, 1), 'cpu')).__name__)",
    )
    done = run_forked("-c", f"import torch, torch.nn.modules.transformer\n{program}")
    assert done.stdout.splitlines() == ["SpreadModule"]


def test_a_room_that_cannot_be_imported_names_what_is_missing() -> None:
    program = REPORT.format(
        deleted="torch.overrides, '_push_mode'",
        begin="import anyrig; anyrig.spread(torch.nn.Linear(1, 1), 'cpu')",
    )
    done = run_forked("-c", f"{NEWER}\n{program}")
    assert done.stdout.startswith("SpreadError\n"), done.stdout + done.stderr
    assert "torch.overrides._push_mode, for" in done.stdout


DOCTOR = """
delattr({deleted})
import sys
sys.argv = ["anyrig", "doctor", "--device", "cpu", *{flags}]
from anyrig.cli.app import main
main()
"""


@pytest.mark.parametrize(("room", "status"), [("memory", 0), ("processes", 1)])
def test_doctor_lists_missing_names(room: str, status: int) -> None:
    deleted = BEGINNINGS[room][0]
    done = run_forked("-c", NEWER + DOCTOR.format(deleted=deleted, flags=["--json"]))
    name = deleted.replace("'", "").replace(", ", ".")
    told = json.loads(done.stdout)
    assert told["pytorch"]["version"] == "2.99.0"
    assert [each["room"] for each in told["pytorch"]["rooms"]] == [*ROOMS]
    missing = {
        each["room"]: [one["name"] for one in each["missing"]] for each in told["pytorch"]["rooms"]
    }
    # Under its own version, this PyTorch has every name but those that came with a later one.
    later = {one.name for one in ROOMS[room] if one.since and torch.__version__ < one.since}
    assert [each for each in missing[room] if each not in later] == [name]
    found = [each for each in told["findings"] if each["check"] == "PyTorch"]
    levels = {each["level"] for each in found if f"anyrig.{room} uses" in each["text"]}
    assert levels == {"bad" if status else "doubtful"}
    assert done.returncode == status


def test_doctor_prints_one_table() -> None:
    done = run_forked("-c", NEWER + DOCTOR.format(deleted=BEGINNINGS["memory"][0], flags=[]))
    lines = done.stdout.splitlines()
    start = lines.index("PyTorch 2.99.0, tested with 2.11 to 2.15")
    table = lines[start + 1 :]
    assert table[0].split() == "room private names missing, and what breaks".split()
    assert {line.split()[0] for line in table[1:] if line[:1].strip()} == ROOMS.keys()
    assert "torch._C._current_graph_task_id" in "".join(table).replace(" ", "")
