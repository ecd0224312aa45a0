"""`anyrig rehearse`: an unchanged script sees the GPUs of the rig, and runs as usual otherwise."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.rich_utils

from anyrig.cli.app import main
from forked_programs import run_anyrig

ANYRIG = [sys.executable, "-W", "error", "-m", "anyrig"]


def anyrig(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process, which has not imported torch. See also `run_anyrig`."""
    kept = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    return subprocess.run(
        [*ANYRIG, *arguments],
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        input="typed",
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module", autouse=True)
def built() -> str:
    """Build in advance, so that no test prints the message of the first build."""
    done = anyrig("virtual", "build")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def test_a_script_finds_the_devices_of_the_rig(script: Path) -> None:
    script.write_text("""
import torch
for index in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
x = torch.ones(8, device="cuda:1", requires_grad=True)
(x * 3).sum().backward()
print(x.grad.tolist(), x.grad.device)
""")
    done = anyrig("rehearse", "--quiet", "--rig", "A100-40GB+2xT4", str(script))
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "NVIDIA A100-SXM4-40GB (8, 0)",
        "Tesla T4 (7, 5)",
        "Tesla T4 (7, 5)",
        "[3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0] cuda:1",
    ]
    assert done.returncode == 0


def test_arguments_streams_and_exit_code_are_the_scripts(script: Path) -> None:
    script.write_text(
        "import sys, torch\n"
        "print(sys.argv[1:], __name__, torch.cuda.device_count())\n"
        "print(sys.stdin.read(), end='', file=sys.stderr)\nsys.exit(7)"
    )
    options = ["--rig", "3xT4", "-m", "--shape-only", "-h", "--", "x"]
    done = anyrig("rehearse", "--rig", "2xT4", str(script), *options)
    assert done.stdout == f"{options} __main__ 2\n"
    assert done.stderr == "typed"
    assert done.returncode == 7


def test_a_file_that_the_script_leaves_open_is_written(script: Path) -> None:
    left = script.with_name("left.txt")
    script.write_text(
        f"import gc\nfile = open({str(left)!r}, 'w')\nloop = [file]\nloop.append(loop)\n"
        "file.write('kept')\ndel file\ngc.freeze()"
    )
    done = anyrig("rehearse", "--rig", "T4", str(script))
    assert (done.returncode, done.stderr) == (0, "")
    assert left.read_text() == "kept"


def test_a_module(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").write_text(
        "import sys, torch; print(sys.argv[1:], __package__, torch.cuda.device_count())"
    )
    done = run_anyrig("rehearse", "--rig", "5xL4", "-m", "tool", "-v", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("['-v'] tool 5\n", "")


def test_what_the_script_sets_above_its_import_of_torch_counts(script: Path) -> None:
    script.write_text(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '2,0'\n"
        "os.environ['OMP_NUM_THREADS'] = '1'\n"
        "import torch\nprint([torch.cuda.get_device_name(i) for i in range(2)])\n"
        "print(torch.cuda.device_count(), torch.get_num_threads())"
    )
    done = anyrig("rehearse", "--rig", "T4+L4+A10G", str(script), OMP_NUM_THREADS="2")
    assert done.stdout == "['NVIDIA A10G', 'Tesla T4']\n2 1\n"


IN_ORDER = "['Tesla T4', 'NVIDIA GeForce RTX 4090']"
STRONGEST_FIRST = "['NVIDIA GeForce RTX 4090', 'Tesla T4']"  # as ranks number them


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("python -m tool", [IN_ORDER]),
        pytest.param("torchrun --nproc-per-node 1 tool.py", [IN_ORDER], marks=pytest.mark.sweep),
        (
            "--nproc-per-device 1 -m tool",
            [f"[rank {rank}] {STRONGEST_FIRST}" for rank in range(2)],
        ),
    ],
)
def test_what_the_shell_sets_counts_in_every_form(
    form: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tool.py").write_text(
        "import sys, torch\n"
        "names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]\n"
        "sys.stdout.write(f'{names}\\n')\n"
    )
    command = form.replace("tool.py", str(tmp_path / "tool.py")).split()
    done = run_anyrig(
        *("rehearse", "--rig", "a100-80gb+RTX4090+T4x2", *command),
        cwd=tmp_path,
        CUDA_VISIBLE_DEVICES="2,1",
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )
    assert sorted(done.stdout.splitlines()) == expected, done.stderr


def test_a_script_without_torch_needs_no_build(script: Path) -> None:
    script.write_text("print('no torch')")
    done = anyrig("rehearse", "--rig", "T4", str(script), XDG_CACHE_HOME="/dev/null", CXX="absent")
    assert (done.stdout, done.stderr, done.returncode) == ("no torch\n", "", 0)


def test_out_of_memory_is_the_scripts_own_error(script: Path) -> None:
    script.write_text("import torch\ntorch.empty(2**34, device='cuda')")
    done = run_anyrig("rehearse", "--quiet", "--rig", "2x16GiB", str(script))
    assert done.returncode == 1
    assert f'  File "{script}", line 2, in <module>' in done.stderr
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 GiB" in done.stderr
    assert "anyrig" not in done.stderr


def test_shape_only_stops_where_a_value_is_needed_and_can_assume_it(script: Path) -> None:
    script.write_text("import torch\nx = torch.rand(2, device='cuda').sum()\nprint(x.item() > 0)")
    stopped = run_anyrig("rehearse", "--rig", "T4", "--shape-only", str(script))
    assert stopped.returncode == 1
    assert re.search(r"--assume-values", stopped.stderr)
    assumed = run_anyrig("rehearse", "--rig", "T4", "--assume-values", "--quiet", str(script))
    assert (assumed.returncode, assumed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--rig", "4xA1000"],
            "error: --rig: no GPU is called 'A1000'; the nearest are A100-40GB, A100-80GB",
        ),
        (["--rig", "2x16"], "anyrig: error: --rig: '16' is neither a GPU nor a size"),
        (["compare", "--rig", "T4,L4", "--report", "x"], "No such option: --report"),
        (["compare", "--rig", "T4,T4"], "error: --rig: the rig T4 is named twice"),
        (["compare", "--rig", "T4,A1000"], "error: --rig: no GPU is called 'A1000'"),
        (["compare", "--rig", "T4", "--prices", "x.toml"], "for --prices: 'x.toml' cannot"),
        (["fail", "--rig", "T4", "--fault", "rank=0,step=1"], "for --fault: it needs several"),
        (
            ["fail", "--rig", "2xT4", "--fault", "rank=2,step=1"],
            "for --fault: there is no rank 2; the ranks are 0 to 1",
        ),
        (["fail", "--rig", "2xT4"], "Missing option '--fault'"),
        ([], "no rig is given; write --rig 4xA100-80GB"),
        (
            ["--compare", "T4,L4"],
            "No such option: --compare. Did you mean anyrig rehearse compare?",
        ),
        (["--rig", "2xT4", "--fail", "rank=0,step=1"], "Did you mean anyrig rehearse fail?"),
    ],
)
def test_a_call_that_cannot_be_meant(
    arguments: list[str],
    message: str,
    script: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script.write_text("print('ran')")
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 1000)
    monkeypatch.setattr(sys, "argv", ["anyrig", "rehearse", *arguments, str(script)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert message in err
    assert (ended.value.code, out) == (2, "")


# torchrun's is in tests/rehearsal/test_processes.py.
@pytest.mark.parametrize("command", ["python -u", "python3 -m"])
def test_a_command_line_of_a_shell(command: str, script: Path) -> None:
    script.write_text("import sys, torch; print(torch.cuda.device_count(), sys.argv[1:], __name__)")
    name = script.stem if command.endswith("-m") else str(script)
    words = ("rehearse", "--rig", "2xT4", *command.split(), name, "--lr", "1")
    done = run_anyrig(*words, cwd=script.parent)
    assert (done.stdout, done.returncode) == ("2 ['--lr', '1'] __main__\n", 0), done.stderr


def test_a_module_as_ranks(script: Path) -> None:
    script.write_text(
        "import os; os.write(1, (__spec__.name + os.environ['RANK'] + '\\n').encode())"
    )
    words = ("rehearse", "--rig", "2xT4", "--nproc-per-device", "1", "-m", script.stem)
    done = run_anyrig(*words, cwd=script.parent)
    lines = sorted(line.rpartition(" ")[2] for line in done.stdout.splitlines())
    assert (lines, done.returncode) == ([f"{script.stem}0", f"{script.stem}1"], 0), done.stderr


@pytest.mark.parametrize("words", [["-X", "dev", "a.py"], [], ["-c", "1"]])
def test_flags_of_python_that_come_too_late(words: list[str]) -> None:
    done = run_anyrig("rehearse", "--rig", "T4", "python", *words)
    assert "python must be followed by a script" in done.stderr
    assert (words[0] if words else "nothing") in done.stderr
    assert done.returncode == 2


def test_no_compiler_is_one_message_without_a_traceback(script: Path) -> None:
    script.write_text("try:\n    import torch\nexcept Exception:\n    print('went on')")
    done = anyrig(
        "rehearse", "--rig", "T4", str(script), XDG_CACHE_HOME=str(script.parent), CXX="no"
    )
    assert done.stdout == ""
    assert re.fullmatch(r"anyrig: error: .*'no', which CXX names.* with: .*\n", done.stderr)
    assert done.returncode == 1


def test_ctrl_c_ends_a_build_at_once_and_without_a_traceback(script: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "endless"
    # It compiles NVIDIA's driver libraries, which come first and are small.
    compiler.write_text('#!/bin/sh\ncase "$*" in *unit_*) sleep 120;; *) exec g++ "$@";; esac\n')
    compiler.chmod(0o755)
    script.write_text("import torch; print(torch.cuda.device_count())")
    with subprocess.Popen(
        [*ANYRIG, "rehearse", "--rig", "2xT4", str(script)],
        env={**os.environ, "CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "building the virtual GPUs" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
    assert "Traceback" not in errors
    assert not list((tmp_path / "cache").rglob("*.building-*"))


def test_building_ahead_names_the_library(built: str) -> None:
    library = re.fullmatch(r"(/.*\.so) \(\d+\.\d s\)\n", built)
    assert library is not None
    assert Path(library[1]).is_file()
