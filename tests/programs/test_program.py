"""A program that `Program` runs is the program that the interpreter runs: compared side by side."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SEEN = """
import json, os, sys
spec = __spec__ and __spec__.name
here = sys.modules["__main__"].__dict__ is globals()
print(json.dumps([sys.argv, __name__, __file__, spec, __package__, __cached__, sys.path[0], here]))
print(sys.stdin.read(), end="", file=sys.stderr)
"""
ENDINGS = {
    "end": "",
    "code": "sys.exit(7)",
    "none": "sys.exit()",
    "true": "sys.exit(True)",
    "beyond a byte": "sys.exit(260)",
    "negative": "sys.exit(-1)",
    "text": "sys.exit('words')",
    "exception": "def f():\n    raise ValueError('seen')\nf()",
    "cause": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(1) from e",
    "syntax": "def f(:",
    "hook": "sys.excepthook = lambda *e: print('hooked', e[0], file=sys.stderr)\nraise KeyError",
    "broken hook": "sys.excepthook = lambda: None\nraise KeyError",
    "raising hook": "sys.excepthook = lambda *e: 1 / 0\nraise KeyError",
    "at exit": "import atexit\natexit.register(lambda: print(SECRET))\nSECRET = 'kept'",
    # Read as the script's own `from __future__ import` says, not as that of the file which runs it.
    "annotations": "def f(x: int): pass\nprint(f.__annotations__)",
    "thread": (
        "import threading, time\nSECRET = 'kept'\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print(SECRET))).start()"
    ),
    "pickle": ("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)"),
    "spawn": (
        "import multiprocessing\ndef f(): print('in', __name__, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=f)\n"
        "    child.start()\n    child.join()"
    ),
}
AS_PROGRAM = """
import sys
from anyrig.programs.program import Program
names = sys.argv[1:]
is_module = names[0] == "-m"
sys.exit(Program(names[is_module], tuple(names[is_module + 1:]), is_module=is_module).run())
"""


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        input="typed",
        capture_output=True,
        text=True,
        timeout=60,
    )


def both(*words: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], ...]:
    return run(*words, cwd=cwd), run("-c", AS_PROGRAM, *words, cwd=cwd)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_runs_and_ends_as_under_the_interpreter(ending: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SEEN + ENDINGS[ending])
    plain, program = both("script.py", "--rig", "-m", "--", "-x", cwd=tmp_path)
    assert program.returncode == plain.returncode
    assert program.stdout == plain.stdout
    assert program.stderr == plain.stderr


def test_a_script_found_through_a_link_sees_the_folder_it_lies_in(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "script.py").write_text(SEEN)
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "script.py")
    plain, program = both("link.py", cwd=tmp_path)
    assert program.stdout == plain.stdout
    assert json.loads(program.stdout)[6] == str(tmp_path / "real")


def test_a_module_a_package_a_folder_and_a_zip_file(tmp_path: Path) -> None:
    (tmp_path / "tool" / "inner").mkdir(parents=True)
    (tmp_path / "tool" / "__init__.py").write_text("")
    (tmp_path / "tool" / "inner" / "__init__.py").write_text("import sys; print(sys.argv)")
    for name in ("__main__.py", "inner/__main__.py", "inner/other.py"):
        (tmp_path / "tool" / name).write_text(SEEN)
    with zipfile.ZipFile(tmp_path / "tool.zip", "w") as archive:
        archive.write(tmp_path / "tool" / "__main__.py", "__main__.py")
    calls = (
        ["-m", "tool"],
        ["-m", "tool.inner"],
        ["-m", "tool.inner.other"],
        ["tool"],
        ["tool.zip"],
    )
    for words in calls:
        plain, program = both(*words, "-m", cwd=tmp_path)
        assert (program.stdout, program.stderr) == (plain.stdout, plain.stderr), words
        assert program.returncode == plain.returncode == 0


@pytest.mark.parametrize(
    "source", ["import not_there", "raise ImportError('mine')", "from . import not_there"]
)
def test_a_module_that_fails_to_import_something_says_so(source: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(source)
    plain, program = both("-m", "module", cwd=tmp_path)
    assert program.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
    assert program.returncode == plain.returncode == 1


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    for name in ("not_there", "not_there.either"):
        done = run("-c", AS_PROGRAM, "-m", name, cwd=tmp_path)
        assert f"No module named {name}" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.returncode == 1


def test_a_package_that_cannot_import_is_not_taken_for_missing(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("import not_there")
    (tmp_path / "broken" / "__main__.py").write_text("")
    done = run("-c", AS_PROGRAM, "-m", "broken", cwd=tmp_path)
    assert "No module named 'not_there'" in done.stderr
    assert done.returncode == 1


def test_ctrl_c_ends_with_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-c", AS_PROGRAM, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.endswith("KeyboardInterrupt\n")
    assert "anyrig" not in err


def test_the_safe_path_is_left_alone(tmp_path: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no -P")
    (tmp_path / "script.py").write_text(SEEN)
    plain, program = (
        run("-P", "script.py", cwd=tmp_path),
        run("-P", "-c", AS_PROGRAM, "script.py", cwd=tmp_path),
    )
    assert program.stdout == plain.stdout


def test_a_module_without_python_code_is_refused_as_the_interpreter_does(tmp_path: Path) -> None:
    plain, program = both("-m", "_ctypes", cwd=tmp_path)
    assert program.stderr == plain.stderr
    assert "No code object available for _ctypes" in plain.stderr
    assert program.returncode == plain.returncode == 1
