"""The pytest plugin, in pytest processes of its own: it is found by its entry point."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TWO_DEVICES = """
    import pytest

    @pytest.mark.gpus(2)
    def test_two():
        import torch
        assert torch.cuda.device_count() == 4
        moved = torch.ones(3, device="cuda:1") * 2
        assert moved.device == torch.device("cuda", 1)
        assert torch.cuda.get_device_name(1) == "NVIDIA A100-SXM4-80GB"
"""


# pytester moves HOME, and with it the built backend.
CACHE = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))


@pytest.fixture(autouse=True)
def processes_like_this_one(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # These plugins take a second to import, and the tests here do not use them.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:xdist")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)


def test_pytest_finds_the_plugin() -> None:
    (found,) = entry_points(group="pytest11", name="anyrig")
    assert found.value == "anyrig.testing.plugin"


def test_a_suite_that_asks_for_cuda_while_it_is_collected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        import pytest
        import torch

        several = pytest.mark.skipif(torch.cuda.device_count() < 3, reason="needs three")

        @several
        @pytest.mark.parametrize("device", range(torch.cuda.device_count()))
        def test_unmarked(device):
            total = torch.cuda.get_device_properties(device).total_memory
            assert total // 2**20 == (1024 if device == 0 else 14909)
        """
    )
    plain = pytester.runpytest_subprocess("-rs")
    plain.assert_outcomes(skipped=1)
    rig = pytester.runpytest_subprocess("-W", "error", "--rig", "1gib+t4*2")
    rig.assert_outcomes(passed=3)
    rig.stdout.fnmatch_lines(["anyrig: 3 CUDA devices, virtual, from `pytest --rig 1gib+t4*2`"])


def test_a_build_shows_its_progress_past_the_capture(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = pytester.path / "refusing"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo refusing 1.0 && exit 0\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pytester.makepyfile(TWO_DEVICES)
    for arguments in ((), ("--rig", "2xT4")):
        run = pytester.runpytest_subprocess(*arguments)
        run.stderr.fnmatch_lines(["anyrig: building the virtual GPUs*about * s, with refusing 1.0"])


CHILDREN = """
    import os, subprocess, sys
    import pytest

    COUNT = "import torch; print(torch.cuda.device_count())"

    @pytest.mark.gpus(1)
    def test_marked():
        count = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True)
        assert (count.stdout, count.stderr) == ("4\\n", "")

    def test_unmarked():
        names = ("ANYRIG_REHEARSAL", "ANYRIG_LEASE_DIRECTORY")
        assert [name in os.environ for name in names] == [WITH_RIG, WITH_RIG]
        assert ("startup" in os.environ.get("PYTHONPATH", "")) == WITH_RIG
"""


@pytest.mark.parametrize("arguments", [(), ("--rig", "4xA100-80GB")])
def test_a_marked_test_and_its_processes_have_the_devices_and_with_a_rig_all_processes(
    arguments: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_children=f"WITH_RIG = {bool(arguments)}\n{textwrap.dedent(CHILDREN)}",
        test_devices=TWO_DEVICES,
    )
    done = pytester.runpytest_subprocess("-W", "error", "--strict-markers", *arguments)
    done.assert_outcomes(passed=3)


def test_a_conftest_counts_the_devices_and_too_few_skip_with_the_reason(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest("import torch; COUNT = torch.cuda.device_count()")
    pytester.makepyfile(
        "import pytest, torch\nfrom conftest import COUNT\n"
        "def test_count(): assert COUNT == 2\n"
        "@pytest.mark.gpus(3)\ndef test_three(): pass"
    )
    done = pytester.runpytest_subprocess("-W", "error", "--rig", "2xT4", "-rs")
    done.assert_outcomes(passed=1, skipped=1)
    done.stdout.fnmatch_lines(
        [
            "anyrig: 2 CUDA devices, virtual, from `pytest --rig 2xT4`",
            "SKIPPED*needs 3 CUDA devices, and there are 2: virtual*--rig 2xT4*",
        ]
    )


def test_a_rig_of_one_device_is_named_in_the_singular(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import torch, pytest\n"
        "@pytest.mark.gpus(1)\ndef test_one(): pass\n"
        "@pytest.mark.gpus(2)\ndef test_two(): pass"
    )
    done = pytester.runpytest_subprocess("--rig", "T4", "-rs")
    done.assert_outcomes(passed=1, skipped=1)
    done.stdout.fnmatch_lines(
        [
            "anyrig: 1 CUDA device, virtual, from `pytest --rig T4`",
            "SKIPPED*needs 2 CUDA devices, and there is 1: virtual, from `pytest --rig T4`",
        ]
    )


def test_a_plugin_that_a_conftest_names_takes_the_rig_too(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("pytest_plugins = ['anyrig.testing.plugin']")
    pytester.makepyfile(
        "import torch, pytest\n@pytest.mark.gpus(2)\n"
        "def test_two(): assert torch.cuda.get_device_name(1) == 'Tesla T4'"
    )
    done = pytester.runpytest_subprocess("-p", "no:anyrig", "-W", "error", "--rig", "2xT4")
    done.assert_outcomes(passed=1)


def test_without_a_compiler_a_marked_test_is_skipped_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "empty"))
    monkeypatch.setenv("CXX", "absent-g++")
    pytester.makepyfile(TWO_DEVICES)
    for arguments in ((), ("--rig", "4xA100-80GB")):
        done = pytester.runpytest_subprocess("-W", "error", "-rs", *arguments)
        done.assert_outcomes(skipped=1)
        done.stdout.fnmatch_lines(["SKIPPED*absent-g++*install one with: *"])


def test_a_fault_of_the_build_is_no_skip(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    pytester.makepyfile(TWO_DEVICES)
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*BuildError*XDG_CACHE_HOME*"])


def test_a_rig_of_no_known_gpu_stops_pytest(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest_subprocess("--rig", "4xA1000")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--rig 4xA1000: no GPU is called 'A1000'*A100*"])


def test_a_rig_without_kernels_is_refused_or_allowed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import torch

        @pytest.mark.gpus(2)
        def test_sum():
            assert torch.ones(2, device="cuda:0").sum() == 2
        """
    )
    arguments = ("-W", "error", "--rig", "V100-16GB+B200")  # no build of PyTorch has both
    refused = pytester.runpytest_subprocess(*arguments)
    assert refused.ret != pytest.ExitCode.OK
    refused.stdout.fnmatch_lines(["*VirtualRigError: *--without-kernels*"])
    pytester.runpytest_subprocess(*arguments, "--without-kernels").assert_outcomes(passed=1)


def test_a_mark_without_a_count_says_how_to_write_it(pytester: pytest.Pytester) -> None:
    marks = ["gpus()", "gpus('2')", "gpus(count=2)", "gpus(1, 2)", "gpus(1, x=2)", "gpus(2.0)"]
    pytester.makepyfile(
        "import pytest\n"
        + "".join(
            f"@pytest.mark.{mark}\ndef test_{number}(): pass\n" for number, mark in enumerate(marks)
        )
    )
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(errors=len(marks))
    for number, mark in enumerate(marks):
        text = f"::test_{number} is marked {mark}; write how many CUDA devices it needs: "
        assert f"{text}@pytest.mark.gpus(2)" in done.stdout.str()


def test_the_marker_is_listed(pytester: pytest.Pytester) -> None:
    pytester.runpytest_subprocess("--markers").stdout.fnmatch_lines(["*pytest.mark.gpus(count): *"])


def test_a_start_of_pytest_imports_nothing_heavy() -> None:
    heavy = ["torch", "rich", "typer", "filelock", "psutil", "anyrig.virtual", "anyrig.rehearsal"]
    source = (
        "import sys, pytest; pytest.main(['--collect-only', '-qq', '-p', 'no:cacheprovider']); "
    )
    source += f"print([name for name in {heavy} if name in sys.modules], 'anyrig' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd="/dev"
    )
    assert done.stdout.splitlines()[-1] == "[] True"
