"""Every process of a rehearsal has its rig, all share the GPUs, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from anyrig.virtual.build import build_extension
from anyrig.virtual.extras.driver.library import build_library
from forked_programs import run_anyrig

# From Python 3.12 on, a fork of a process with threads warns.
WARNINGS = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
ANYRIG = [sys.executable, *WARNINGS, "-m", "anyrig"]
REHEARSE = [*ANYRIG, "rehearse", "--quiet"]
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Build ahead, so that no test meets the message of the first build."""
    build_extension()
    build_library()


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """An environment whose folder for temporary files may have none of ours in the end."""
    # Not in `tmp_path`: multiprocessing puts sockets there, and their paths have to be short.
    with tempfile.TemporaryDirectory(prefix="anyrig-") as place:
        yield {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": place}
        assert list(Path(place).glob("anyrig*")) == []


def rehearse(*arguments: str, environment: dict[str, str], fresh: bool = False) -> list[str]:
    if fresh:
        command = [*REHEARSE, *arguments]
        options = {"capture_output": True, "text": True, "timeout": 180}
        done = subprocess.run(command, env=environment, check=False, **options)
    else:
        done = run_anyrig("rehearse", "--quiet", *arguments, timeout=180, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_processes_started_in_every_way_find_the_rig(environment: dict[str, str]) -> None:
    program = str(PROGRAMS / "starts_every_way.py")
    lines = rehearse("--rig", "T4+L4", program, environment=environment, fresh=True)
    assert lines == [
        "spawn (2, 3.0)",
        "fork (2, 3.0)",
        "forkserver (2, 3.0)",
        "['NVIDIA L4', 'Tesla T4']",
        "this process already has the virtual rig T4+L4, and a rig stays until its process ends; "
        "start another process for T4, without ANYRIG_REHEARSAL in its environment",
        "['GPU:1', 'process', 'PID', 'uses', '446.000', 'MB', 'GPU', 'memory']",
        f"True {(20 + 426) * 2**20}",
        "[2, 2] 3",
    ]


@pytest.mark.parametrize(
    ("mode", "allocator"), [([], ""), (["--shape-only"], "expandable_segments:True")]
)
def test_a_gpu_that_two_processes_do_not_fit_on(
    mode: list[str], allocator: str, environment: dict[str, str]
) -> None:
    environment["PYTORCH_ALLOC_CONF"] = allocator
    program = str(PROGRAMS / "takes_sixty_percent.py")
    assert rehearse("--rig", "500MiB", *mode, program, environment=environment) == [
        "CUDA out of memory. Tried to allocate 300.00 MiB. GPU 0 has a total capacity of "
        "500.00 MiB of which 200.00 MiB is free. Including non-PyTorch memory, this process has "
        "0 bytes memory in use. Process PID has 300.00 MiB memory in use. 400.00 MiB allowed; ",
        "200 MiB free",
        "500 MiB free",
        "200 MiB free",
    ]


def test_ranks_of_torchrun(tmp_path: Path, environment: dict[str, str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, torch\n"
        "rank = int(os.environ['LOCAL_RANK'])\n"
        "torch.cuda.set_device(rank)\n"
        "total = torch.ones(2, device='cuda').sum().item()\n"
        "os.write(1, f'{rank} {torch.cuda.device_count()} {total} {sys.argv[1:]}\\n'.encode())\n"
    )
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    launcher = ["torchrun", "--nproc-per-node", "2", str(script), "--lr", "1"]
    lines = rehearse("--rig", "2xT4", *launcher, environment=environment)
    assert sorted(lines) == ["0 2 2.0 ['--lr', '1']", "1 2 2.0 ['--lr', '1']"]


def test_ranks_of_anyrig_run_on_some_of_the_gpus(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, anyrig, torch\n"
        "own = anyrig.Rig.detect().lead\n"
        "print(own.text, own.name, torch.cuda.device_count(), os.environ['LOCAL_WORLD_SIZE'])\n"
    )
    launcher = ["-m", "anyrig", "run", "--device", "1,3", "--nproc-per-device", "1", str(script)]
    lines = rehearse("--rig", "T4+L4+T4+A100-80GB", *launcher, environment=environment)
    assert sorted(lines) == [
        "[rank 0] cuda:0 NVIDIA L4 2 2",
        "[rank 1] cuda:1 NVIDIA A100-SXM4-80GB 2 2",
    ]


def test_a_pipeline_over_ranks_needs_no_values_of_the_loss(environment: dict[str, str]) -> None:
    flags = ["--rig", "2xT4", "--nproc-per-device", "1", "--shape-only", "--assume-values"]
    program = str(PROGRAMS / "trains_in_stages.py")
    done = run_anyrig("rehearse", "--quiet", *flags, program, timeout=180, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[rank 0] a loss of shape () in torch.float32\n"


def test_leases_are_of_one_rehearsal(environment: dict[str, str]) -> None:
    program = str(PROGRAMS / "chooses.py")
    lines = rehearse("--rig", "2xL4", program, "with others", environment=environment)
    assert lines == ["cuda:0", "cuda:1", "cuda:0"]


@pytest.mark.parametrize(
    ("ending", "arguments", "status"),
    [
        (signal.SIGINT, [], 130),
        (signal.SIGTERM, [], -signal.SIGTERM),
        (signal.SIGTERM, ["alone"], -signal.SIGTERM),
    ],
)
def test_a_signal_ends_all_processes(
    ending: signal.Signals, arguments: list[str], status: int, environment: dict[str, str]
) -> None:
    with subprocess.Popen(
        [*REHEARSE, "--rig", "T4", str(PROGRAMS / "waits_for_a_rank.py"), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        if ending == signal.SIGINT:  # Ctrl-C goes to every process of the terminal
            os.killpg(process.pid, ending)
        else:
            process.send_signal(ending)
        assert process.stdout.read() == b""  # the last process has ended
    assert process.returncode == status
