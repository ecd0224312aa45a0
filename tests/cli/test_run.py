"""`anyrig run` passes arguments, streams, the exit code and signals through unchanged."""

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forked_programs import run_anyrig

ANYRIG = [sys.executable, "-m", "anyrig"]
SHOW = """
import os, sys
words = [os.environ.get(word) for word in ("ANYRIG_DEVICE", "CUDA_VISIBLE_DEVICES")]
print(sys.argv[1:], __name__, *words)
print(sys.stdin.read(), file=sys.stderr, end="")
sys.exit(7)
"""


def anyrig(*arguments: str, **options: object) -> subprocess.CompletedProcess:
    """Run a command in a new process. See also `run_anyrig`."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("ANYRIG_DEVICE", "CUDA_VISIBLE_DEVICES")
    }
    command = [*ANYRIG, *arguments]
    options = {"env": environment, "capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run(command, **options)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "show.py"
    path.write_text(SHOW)
    return str(path)


def test_everything_behind_the_script_is_its_own(script: str) -> None:
    done = anyrig("run", script, "--device", "x", "-h", "--", "-m", input="typed")
    assert done.stdout == "['--device', 'x', '-h', '--', '-m'] __main__ None None\n"
    assert done.stderr == "typed"
    assert done.returncode == 7


def test_a_device_is_passed_on(script: str) -> None:
    assert run_anyrig("run", "--device", "cpu", script).stdout == "[] __main__ cpu \n"


def test_a_module(script: str) -> None:
    done = run_anyrig("run", "-m", "show", "one", cwd=Path(script).parent)
    assert done.stdout == "['one'] __main__ None None\n"
    assert done.returncode == 7


def test_a_signal_reaches_the_script(tmp_path: Path) -> None:
    path = tmp_path / "wait.py"
    path.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    with subprocess.Popen([*ANYRIG, "run", str(path)], stdout=subprocess.PIPE) as process:
        # The same process: there is no parent between the sender and the script.
        assert process.stdout.readline() == b"%d\n" % process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM


def test_a_single_rank_within_a_rank_does_not_write_its_files(tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text("import os; print(os.environ['WORLD_SIZE']); 1 / 0")
    inherited = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "outer" / "error.json")}
    (tmp_path / "outer").mkdir()
    done = run_anyrig("run", "--device", "cpu", str(tmp_path / "fail.py"), **inherited)
    assert (done.stdout, done.returncode) == ("1\n", 1)
    assert list((tmp_path / "outer").iterdir()) == []


FILES_LEFT_OPEN = """
import gzip
plain, packed = open("plain", "w"), gzip.open("packed", "wt")
plain.write("one"), packed.write("two"), print("three", end="")
raise KeyboardInterrupt
"""


def test_what_was_written_is_there_and_an_interrupt_is_one(tmp_path: Path) -> None:
    (tmp_path / "write.py").write_text(FILES_LEFT_OPEN)
    done = run_anyrig("run", "write.py", cwd=tmp_path)
    assert (tmp_path / "plain").read_text() == "one"
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"two"
    assert done.stdout == "three"
    assert done.returncode == -signal.SIGINT  # a shell's script ends then, too
    assert done.stderr.count("\n") == 4, done.stderr  # the traceback has the script's frame only


@pytest.mark.parametrize("text", ["cuda: 0", "cuda:77", "gpu0", ""])
def test_bad_device_text(text: str, script: str) -> None:
    done = run_anyrig("run", "--device", text, script)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"anyrig: error: --device: cannot take {text!r} as devices: ")
    assert "There are: " in done.stderr
    assert done.stderr.count("\n") == 1


def test_version_and_help() -> None:
    assert anyrig("--version").stdout.startswith("anyrig 0.")
    assert "devices" in anyrig("--help").stdout


def test_one_rank_is_started_again(tmp_path: Path) -> None:
    path = tmp_path / "again.py"
    path.write_text("import os; exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')")
    done = run_anyrig("run", "--device", "cpu", "--max-restarts", "1", str(path))
    assert done.returncode == 0, done.stderr
    assert "attempt 1 of 2 failed, restarting" in done.stderr
