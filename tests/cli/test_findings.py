"""The findings that `anyrig doctor` prints, and its exit status."""

import json
import os
from collections.abc import Iterator

import pytest
import torch
import typer.testing

from anyrig.cli.app import app
from anyrig.devices.rig import Rig
from anyrig.private_names import ROOMS
from anyrig.processes.options import RunOptions
from anyrig.processes.preflight import preflight
from anyrig.processes.preflight.finding import Finding, Level

GOOD = Finding("torch", Level.GOOD, "version [2.13]")
DOUBTFUL = Finding("clock", Level.DOUBTFUL, "7 s apart", "set [it]", "node1")
BAD = Finding("disk", Level.BAD, "full", "empty it")


def examine(
    monkeypatch: pytest.MonkeyPatch, findings: list[Finding], *flags: str
) -> tuple[int, str]:
    monkeypatch.setattr(preflight, "examine", lambda *_: iter(findings))
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")  # the command sets it for its process
    done = typer.testing.CliRunner().invoke(app, ["doctor", "--device", "cpu", *flags])
    return done.exit_code, done.output


def test_findings_are_printed_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = examine(monkeypatch, [GOOD, DOUBTFUL, BAD])
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[:5] == [
        "good torch: version [2.13]",
        "doubtful clock (seen from node1): 7 s apart",
        "→ set [it]",
        "bad disk: full",
        "→ empty it",
    ]
    assert lines[6] == f"PyTorch {torch.__version__}, tested with 2.11 to 2.15"
    assert lines[7] == "room private names missing, and what breaks"
    rows = [line.split() for line in lines[8:]]
    assert [(row[0], row[2:]) for row in rows] == [(room, ["none"]) for room in ROOMS]
    assert status == 1


@pytest.mark.parametrize(("findings", "status"), [([], 0), ([GOOD, DOUBTFUL], 0), ([BAD, GOOD], 1)])
def test_only_what_is_bad_fails(
    findings: list[Finding], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examine(monkeypatch, findings)[0] == status


def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = examine(monkeypatch, [DOUBTFUL, BAD], "--json")
    found = json.loads(output)
    assert found["findings"] == [
        {
            "check": "clock",
            "level": "doubtful",
            "text": "7 s apart",
            "advice": "set [it]",
            "host": "node1",
        },
        {"check": "disk", "level": "bad", "text": "full", "advice": "empty it", "host": None},
    ]
    rooms = found["pytorch"].pop("rooms")
    assert found["pytorch"] == {
        "version": torch.__version__,
        "oldest_tested": "2.11",
        "newest_tested": "2.15",
    }
    assert {each["room"]: each["missing"] for each in rooms} == {name: [] for name in ROOMS}
    assert all(each["private_names"] > 0 for each in rooms)
    assert status == 1


def test_the_device_of_the_environment_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def examine(rig: Rig, options: RunOptions) -> Iterator[Finding]:
        seen.append(f"{rig} x {options.processes}")
        yield GOOD

    monkeypatch.setattr(preflight, "examine", examine)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "restored after the test")
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")
    monkeypatch.setenv("ANYRIG_DEVICE", "cpu")
    flags = ["--nproc-per-device", "3"]
    assert typer.testing.CliRunner().invoke(app, ["doctor", *flags]).exit_code == 0
    assert os.environ["TORCH_CPP_LOG_LEVEL"] == "FATAL"  # a finding says what PyTorch would log
    assert seen[0].startswith("cpu (")
    assert seen[0].endswith(" x 3")
    monkeypatch.setenv("ANYRIG_DEVICE", "gpu0")
    refused = typer.testing.CliRunner().invoke(app, ["doctor"]).exception
    assert str(refused).startswith("ANYRIG_DEVICE: cannot take 'gpu0' as devices")
