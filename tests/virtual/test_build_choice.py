"""The CUDA build that PyTorch is or passes for: chosen, reported, refused, or allowed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from on_a_rig import output_of_lines

from anyrig.errors import VirtualRigError
from anyrig.virtual.build_choice import choose_published
from anyrig.virtual.rig import VirtualRig
from forked_programs import run_anyrig

IS_CPU_BUILD = "+cpu" in torch.__version__
NO_BUILD_HAS = "V100-16GB+B200"  # the last builds with Volta have no Blackwell

V100 = "Tesla V100-SXM2-16GB (compute capability 7.0)"
GO_ON = (
    "or go on as if there were kernels, with --without-kernels (in Python: without_kernels=True)"
)


def choice(version: str, rig: str, *, allow: bool = False) -> tuple[str, str | None]:
    build, reason = choose_published(version, VirtualRig.parse(rig), without_kernels=allow)
    return build.cuda, reason


def test_a_cpu_build_passes_for_the_one_on_pypi_if_that_has_all_kernels() -> None:
    assert choice("2.13.0+cpu", "T4+8xB200+L4+2x16GiB") == ("13.0", None)
    assert choice("2.15.1+cpu", "RTX-5090") == ("13.2", None)


def test_a_cpu_build_passes_for_the_newest_that_has_all_kernels() -> None:
    assert choice("2.13.0+cpu", "T4+2xV100-16GB") == (
        "12.6",
        "PyTorch 2.13.0+cpu passes for PyTorch 2.13 for CUDA 12.6, because the build on PyPI, for "
        f"CUDA 13.0, has no kernels for {V100}",
    )
    _, reason = choice("2.11.0+cpu", "V100-16GB+P100-PCIe-16GB+V100-16GB")
    assert reason is not None
    assert reason.endswith(
        f"has no kernels for {V100} and Tesla P100-PCIE-16GB (compute capability 6.0)"
    )


def test_a_version_without_any_build_for_the_gpus_is_refused() -> None:
    with pytest.raises(VirtualRigError) as refused:
        choice("2.15.0+cpu", "V100-16GB")
    assert str(refused.value) == (
        "no published build of PyTorch 2.15 has kernels for all GPUs of the rig V100-16GB, and the "
        f"one on PyPI has none for {V100}; they are compiled for CUDA 13.0, 13.2: sm_75 sm_80 "
        "sm_86 sm_90 sm_100 sm_120. On the real GPU, the first kernel would fail; install PyTorch "
        f"2.14 for CUDA 12.6, which has them, {GO_ON}"
    )
    assert choice("2.15.0+cpu", "V100-16GB", allow=True) == ("13.2", None)


def test_gpus_that_no_build_has_together_are_refused() -> None:
    with pytest.raises(VirtualRigError, match="would fail; choose another rig, or go on"):
        choice("2.13.0+cpu", NO_BUILD_HAS)
    assert choice("2.13.0+cpu", NO_BUILD_HAS, allow=True) == ("13.0", None)


def test_a_newer_version_passes_for_the_newest_known() -> None:
    assert choice("2.16.0a0+git12", "T4") == (
        "13.2",
        "PyTorch 2.16.0a0+git12 passes for PyTorch 2.15 for CUDA 13.2, the newest known",
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program that uses the first GPU, as does a process that it starts."""
    file = tmp_path / "train.py"
    file.write_text(
        "import subprocess, sys, warnings\n"
        "import torch\n"
        "warnings.simplefilter('always')\n"
        "print(torch.cuda.get_device_name(0), int(torch.ones(2, device='cuda:0').sum()))\n"
        "if 'child' not in sys.argv:\n"
        "    sys.stdout.flush()\n"
        "    subprocess.run([sys.executable, __file__, 'child'], check=True)\n"
    )
    return file


def said_by_anyrig(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return anyrig's lines, except on ports that other programs of this machine have."""
    said = [line for line in done.stderr.splitlines() if line.startswith("anyrig:")]
    return [line for line in said if not line.startswith("anyrig: port ")]


RAN = ["Tesla V100-SXM2-16GB 2"] * 2


def test_a_rehearsal_is_refused_or_goes_on(script: Path) -> None:
    command = ("rehearse", "--quiet", "--rig", NO_BUILD_HAS)
    refused = run_anyrig(*command, str(script))
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = said_by_anyrig(refused)
    assert line.startswith("anyrig: error: ")
    assert V100 in line
    assert line.endswith(GO_ON)
    done = run_anyrig(*command, "--without-kernels", str(script))
    assert (done.returncode, said_by_anyrig(done)) == (0, [])
    assert done.stdout.splitlines() == RAN


def test_ranks_are_refused_once_or_go_on(script: Path) -> None:
    command = ("rehearse", "--quiet", "--rig", NO_BUILD_HAS, "--nproc-per-device", "1")
    refused = run_anyrig(*command, str(script))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("anyrig: error: ") == refused.stderr.count("V100-SXM2") == 1
    done = run_anyrig(*command, "--without-kernels", str(script))
    assert (done.returncode, said_by_anyrig(done)) == (0, [])
    # The ranks have the strongest GPU first.
    assert [line.split("] ")[-1] for line in done.stdout.splitlines()] == ["NVIDIA B200 2"] * 4


def test_verify_is_refused_with_the_reason_or_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "weight = torch.ones(2, device='cuda', requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(3):\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
    )
    command = ("verify", "--rig", NO_BUILD_HAS)
    refused = run_anyrig(*command, str(script))
    assert refused.returncode == 2
    assert "--without-kernels" in refused.stdout + refused.stderr
    done = run_anyrig(*command, "--without-kernels", str(script))
    assert (done.returncode, said_by_anyrig(done)) == (0, [])


def test_install_is_refused_or_goes_on_without_warnings_of_pytorch() -> None:
    assert output_of_lines(
        f"""
        import anyrig.virtual
        import torch
        from anyrig.errors import VirtualRigError
        try:
            anyrig.virtual.install("{NO_BUILD_HAS}")
        except VirtualRigError as error:
            print("refused", torch.cuda.is_available())
        anyrig.virtual.install("{NO_BUILD_HAS}", without_kernels=True)
        print(torch.ones(1, device="cuda").item(), "sm_70" in torch.cuda.get_arch_list())
        """
    ) == ["refused False", "1.0 False"]


@pytest.mark.skipif(not IS_CPU_BUILD, reason="a CUDA build passes for no other build")
def test_the_choice_is_reported_once(script: Path) -> None:
    single = run_anyrig("rehearse", "--quiet", "--rig", "2xV100-16GB", str(script))
    assert single.stdout.splitlines() == RAN
    (line,) = said_by_anyrig(single)
    assert line.startswith(f"anyrig: PyTorch {torch.__version__} passes for PyTorch 2.")
    assert line.endswith(f"{V100}.")
    flags = ("--quiet", "--rig", "2xV100-16GB", "--nproc-per-device", "1")
    assert said_by_anyrig(run_anyrig("rehearse", *flags, str(script))) == [line]


@pytest.mark.skipif(not IS_CPU_BUILD, reason="a CUDA build passes for no other build")
def test_the_chosen_build_is_seen_in_all_processes(tmp_path: Path) -> None:
    script = tmp_path / "reads.py"
    script.write_text(
        "import subprocess, sys\n"
        "import torch\n"
        "print(torch.version.cuda, *torch.cuda.get_arch_list(), flush=True)\n"
        "if 'child' not in sys.argv:\n"
        "    subprocess.run([sys.executable, __file__, 'child'], check=True)\n"
    )
    done = run_anyrig("rehearse", "--quiet", "--rig", "V100-16GB", str(script))
    assert done.stdout.splitlines() == ["12.6 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"] * 2
