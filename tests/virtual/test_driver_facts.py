"""What NVML's library and `nvidia-smi` are handed, and how a process finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyrig.errors import BuildError
from anyrig.virtual.extras.driver import library
from anyrig.virtual.extras.driver.facts import facts_of
from anyrig.virtual.rig import UUID_NAMESPACE, VirtualRig

HEAD = (
    "ledger\t/tmp/x/gpus\n"
    "driver\t580.95.05\t13000\n"
    "idle\t0\t30\t50000\t1410\n"
    f"uuids\t{UUID_NAMESPACE.hex}\n"
)
V100 = "Tesla V100-SXM2-32GB\t34080565493\t7\t0\t80\t5\t300000\t6\t2\t25000\t3"
T4 = "Tesla T4\t15633680957\t7\t5\t40\t6\t70000\t0\t0\t0\t3"
A100 = "NVIDIA A100-SXM4-80GB\t84986665369\t8\t0\t108\t7\t400000\t12\t4\t25000\t4"
H100 = "NVIDIA H100 80GB HBM3\t84986665369\t9\t0\t132\t9\t700000\t18\t6\t25000\t5"
PLAIN = "Virtual GPU 16GiB\t17179869184\t8\t0\t108\t7\t400000\t12\t4\t25000\t4"


@pytest.mark.parametrize(
    ("rig", "lines"),
    [
        ("2xT4", ["nodes\t1", f"gpus\t2\t{T4}"]),
        (
            "T4+V100-32GB+2xT4",
            ["nodes\t1", *(f"gpus\t{c}" for c in (f"1\t{T4}", f"1\t{V100}", f"2\t{T4}"))],
        ),
        ("3x(8xH100-SXM)", ["nodes\t3", f"gpus\t8\t{H100}"]),
        (
            "(A100-80GB)+2x(16GiB)+(A100-80GB)",
            [
                *("nodes\t1", f"gpus\t1\t{A100}"),
                *("nodes\t2", f"gpus\t1\t{PLAIN}"),
                *("nodes\t1", f"gpus\t1\t{A100}"),
            ],
        ),
    ],
)
def test_the_facts_of_a_rig(rig: str, lines: list[str]) -> None:
    text = facts_of(VirtualRig.parse(rig), "/tmp/x/gpus")
    assert text == HEAD + "".join(f"{line}\n" for line in lines)


def test_every_gpu_has_facts() -> None:
    for key, architecture in (("L4", 8), ("B200", 10), ("RTX-4090", 8)):
        (line,) = facts_of(VirtualRig.parse(key), "x").splitlines()[5:]
        assert line.split("\t")[7] == str(architecture)


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "/new"), ("/a:/b", "/new:/a:/b"), ("/a:/new:/b", "/new:/a:/b"), ("/a:", "/new:/a:")],
)
def test_a_folder_comes_first_on_a_path(before: str, after: str) -> None:
    assert library._in_front("/new", before) == after


@pytest.mark.skipif(sys.platform != "linux", reason="NVML is asked so on Linux only")
def test_without_a_library_a_process_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise BuildError("no compiler")

    assert library.driver_environment("facts")["ANYRIG_DRIVER"] == "facts"
    monkeypatch.setattr(library, "build_library", refuse)
    assert library.driver_environment("facts") == {}
    monkeypatch.setattr(library.sys, "platform", "darwin")
    assert library.driver_environment("facts") == {}


@pytest.mark.skipif(sys.platform != "linux", reason="NVML is asked so on Linux only")
def test_a_command_that_was_changed_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = library._command(tmp_path)
    command = folder / "nvidia-smi"
    text = command.read_text()
    assert os.access(command, os.X_OK)
    cache = tmp_path / "anyrig" / "virtual"
    assert (folder.parent, [file.name for file in folder.iterdir()]) == (cache, ["nvidia-smi"])
    command.write_text("other")
    assert library._command(tmp_path) == folder
    assert command.read_text() == text
    command.unlink()
    library._command(tmp_path)
    assert os.access(command, os.X_OK)
    done = subprocess.run([command, "-h"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nvidia-smi of a rehearsal")
