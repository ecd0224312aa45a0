"""`--device` and `--disable-cuda` in a user's script."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import anyrig
from anyrig.devices import rig as rig_module
from anyrig.devices.device import Device
from anyrig.errors import DeviceTextError
from forked_programs import run_forked

ARGPARSE = """
import argparse, anyrig
parser = argparse.ArgumentParser()
anyrig.add_device_arguments(parser)
print(anyrig.rig_from_arguments(parser.parse_args()).reason)
"""
TYPER = """
import typer
from anyrig.devices import DeviceOption, DisableCudaOption, rig_from_options
def main(device: DeviceOption = None, disable_cuda: DisableCudaOption = False):
    print(rig_from_options(device, disable_cuda).reason)
typer.run(main)
"""


def rig_from(*arguments: str) -> anyrig.Rig:
    parser = argparse.ArgumentParser()
    anyrig.add_device_arguments(parser)
    return anyrig.rig_from_arguments(parser.parse_args(arguments))


@pytest.fixture(autouse=True)
def _no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYRIG_DEVICE", raising=False)
    monkeypatch.setattr(sys, "argv", ["some/where/train.py"])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--device", "cpu"], None),
        (["--disable-cuda"], None),
        (["--disable-cuda", "--device", "cpu"], None),
        ([], "cpu"),
        (["--device", "cpu"], "cuda:77"),
        (["--disable-cuda"], "cuda:77"),
    ],
)
def test_flag_then_environment(
    arguments: list[str], word: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if word is not None:
        monkeypatch.setenv("ANYRIG_DEVICE", word)
    assert rig_from(*arguments).reason == "named by 'cpu'"


def test_neither_flag_nor_environment_is_auto() -> None:
    assert rig_from().devices == anyrig.Rig.detect().devices


@pytest.mark.parametrize("text", ["cuda: 0", "cuda:77", "gpu0", ""])
@pytest.mark.parametrize("source", ["--device", "ANYRIG_DEVICE"])
def test_bad_text_ends_with_2_and_one_message(
    text: str,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ANYRIG_DEVICE", text)
    with pytest.raises(SystemExit) as end:
        rig_from(*(["--device", text] if source == "--device" else []))
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(f"train.py: error: {source}: cannot take {text!r} as devices: ")
    assert message.count("\n") == 1
    assert "There are: " in message


def test_the_values_of_a_configuration_file_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceTextError, match="--device: cannot take 'gpu0' as devices: "):
        anyrig.devices.rig_from_options("gpu0")
    with pytest.raises(DeviceTextError, match="--disable-cuda and --device cuda:0 contradict"):
        anyrig.devices.rig_from_options("cuda:0", disable_cuda=True)
    monkeypatch.setenv("ANYRIG_DEVICE", "cuda:77")
    with pytest.raises(DeviceTextError, match="ANYRIG_DEVICE: cannot take 'cuda:77' as devices: "):
        anyrig.devices.rig_from_options(None)


def test_a_device_that_cannot_be_used_ends_with_2_and_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = Device("cuda", 0, "T4", error="it is lost")
    monkeypatch.setattr(rig_module, "survey", lambda: (lost, Device("cpu", None, "CPU")))
    with pytest.raises(SystemExit) as end:
        rig_from("--device", "cuda:0")
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "train.py: error: --device: cuda:0 (T4) cannot be used: it is lost. `anyrig devices` lists "
        "the usable devices\n"
    )


def test_flags_that_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        rig_from("--disable-cuda", "--device", "cuda:0")
    assert "--disable-cuda and --device cuda:0 contradict each other" in capsys.readouterr().err


@pytest.mark.parametrize("script", [ARGPARSE, TYPER], ids=["argparse", "typer"])
def test_a_real_script(script: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return run_forked(str(path), *arguments, timeout=60)

    done = run("--disable-cuda")
    assert (done.returncode, done.stdout, done.stderr) == (0, "named by 'cpu'\n", "")
    for flags in (["--device", "gpu0"], ["--device", "cuda:0", "--disable-cuda"]):
        done = run(*flags)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        said = " ".join(done.stderr.replace("│", " ").split())
        expected = "--disable-cuda and --device cuda:0 contradict each other"
        if len(flags) == 2:
            expected = "--device: cannot take 'gpu0' as devices: "
        assert expected in said
    help_text = run("--help").stdout
    assert "--device" in help_text
    assert "--disable-cuda" in help_text
