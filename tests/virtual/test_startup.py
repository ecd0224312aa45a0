"""The start-up hook: invisible, nearly free, and compatible with a user's own `sitecustomize`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyrig.virtual.inheritance import STARTUP, VARIABLE, Inheritance

SEEN = (
    "import sys, json; print(json.dumps([sorted(set(sys.modules) - {'json'}), sys.path, "
    "sorted(sys.path_importer_cache), [type(f).__name__ for f in sys.meta_path], sys.argv]))"
)
OF_THE_DRIVER = {"ANYRIG_DRIVER", "LD_LIBRARY_PATH"} if sys.platform == "linux" else set()


def handed_down(gpus: Path) -> dict[str, str]:
    """The environment of a process of a rehearsal."""
    with Inheritance({"rig": "2xT4"}, str(gpus)).handed_down():
        return dict(os.environ)


@pytest.fixture
def inside(tmp_path: Path) -> dict[str, str]:
    return handed_down(tmp_path / "gpus")


def run(source: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_process_without_torch_sees_nothing_of_it(inside: dict[str, str]) -> None:
    outside, seen = (
        json.loads(run(SEEN, environment).stdout) for environment in (dict(os.environ), inside)
    )
    assert seen[3].pop(0) == "_Hook"
    assert seen == outside


def test_the_environment_is_given_back_after_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    before = dict(os.environ)
    inside = handed_down(tmp_path)
    assert dict(os.environ) == before
    assert inside.keys() - before.keys() == {VARIABLE, "ANYRIG_LEASE_DIRECTORY", *OF_THE_DRIVER}
    assert inside["PYTHONPATH"] == str(STARTUP)


def test_what_is_handed_down_is_read_again(tmp_path: Path) -> None:
    given = Inheritance({"rig": "2xT4", "shape_only": False}, str(tmp_path), 5.5)
    with given.handed_down():
        assert Inheritance.read() == given
        assert os.environ["ANYRIG_LEASE_DIRECTORY"] == str(tmp_path / "leases")
    assert Inheritance.read() is None


@pytest.mark.skipif(sys.platform != "linux", reason="NVML is asked so on Linux only")
def test_own_folders_stay_on_the_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/own:")
    monkeypatch.setenv("PATH", "/a:/b")
    with Inheritance({"rig": "2xT4"}, str(tmp_path)).handed_down():
        inside = handed_down(tmp_path)  # a second time, as the children of a child
    for variable, own in (("LD_LIBRARY_PATH", "/own:"), ("PATH", "/a:/b")):
        first, _, others = inside[variable].partition(":")
        assert others == own
        assert "anyrig" in first


@pytest.mark.parametrize(
    "own",
    [
        "import sys; sys.seen = __name__, __file__",
        "raise ValueError('of its own')",
        "import absent",
    ],
)
def test_a_sitecustomize_of_the_users_runs_as_it_would(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(own)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    look = (
        "import sys; module = sys.modules.get('sitecustomize');"
        "print(getattr(sys, 'seen', None), getattr(module, '__file__', None))"
    )
    outside, inside = (
        run(look, environment) for environment in (dict(os.environ), handed_down(tmp_path))
    )
    assert (inside.stdout, inside.stderr) == (outside.stdout, outside.stderr)
    assert "sitecustomize" in outside.stdout + outside.stderr


def test_another_python_without_anyrig_goes_on_until_it_imports_torch(
    inside: dict[str, str], tmp_path: Path
) -> None:
    look = "import sys; sys.path = [p for p in sys.path if not p.endswith(('-packages', 'src'))]"
    absent = run(f"{look}\ntry:\n  import torch\nexcept ImportError as e: print(e)", inside)
    assert (absent.stdout, absent.stderr) == ("No module named 'torch'\n", "")
    (tmp_path / "torch.py").touch()
    there = run(f"{look}\nsys.path.append({str(tmp_path)!r})\nimport torch\nprint(1)", inside)
    assert (there.returncode, there.stdout) == (1, "")
    assert f"{sys.executable}, has torch but not anyrig" in there.stderr


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (
            "yes",
            "='yes' is not what a rehearsal passes on to its processes (JSONDecodeError: "
            "Expecting value: line 1 column 1 (char 0)); unset it\n",
        ),
        ("{}", "(KeyError: 'gpus'); unset it\n"),
        ('{"rig": "2xT4", "gpus": "/tmp/x"}', "use one version of anyrig in all processes"),
    ],
)
def test_a_word_that_cannot_be_read_ends_the_process_at_its_import_of_torch(
    word: str, told: str, inside: dict[str, str]
) -> None:
    source = "print(1)\ntry:\n    import torch\nexcept Exception:\n    pass\nprint(2)"
    done = run(source, {**inside, VARIABLE: word})
    assert (done.returncode, done.stdout) == (1, "1\n")
    assert done.stderr.startswith(f"anyrig: error: {VARIABLE}")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_process_that_unsets_the_variable_is_not_virtual(inside: dict[str, str]) -> None:
    source = (
        f"import os; del os.environ['{VARIABLE}']\n"
        "import torch, sys; print('anyrig_virtual_extension' in sys.modules, torch.ones(1).item())"
    )
    assert run(source, inside).stdout == "False 1.0\n"
