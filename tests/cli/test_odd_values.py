"""Every flag of every command with odd values: a message that names the flag, and exit status 2.

No process is started: the script does not exist, which is checked after all flags.
"""

from __future__ import annotations

import keyword
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import typer.rich_utils

import anyrig
from anyrig.cli.app import app, main
from anyrig.errors import GroupOptionError, LaunchError
from anyrig.processes.preflight import preflight
from anyrig.processes.time_limit import time_limit_seconds

LONG = "a" * 5000
VALUES = [
    "",
    " ",
    "0",
    "-1",
    "+1",
    "1.5",
    "1e20",
    "100000",
    "9" * 20,
    "9" * 5000,
    "nan",
    "inf",
    "-inf",
    "1e-400",
    "0x10",
    "1_000_000_000",
    "é",
    "\ud800",
    "\x00",
    "\x1b[31mred",
    "a\nb",
    "None",
    "true",
    "%s",
    "{0}",
    "$(id)",
    "--",
    "..",
    "/dev/null",
    "/dev/null/x",
    LONG,
    ":",
    "1:",
    ":1",
    "2:1",
    "0:1",
    "1:2:3",
    "node0",
    "node0:",
    "node0:0",
    "node0:65536",
    "node0:2 9400",
    "no de:29400",
    "node0:29400",
    "[::1]:29400",
    "gpu",
    "auto",
    "static",
    "etcd",
    "spawn",
    "0,1",
    "0:3,1:0",
    "timeout=0",
    "join_timeout=9,read_timeout=9",
    "overlap_timeout=9",
    "=9",
    f"{LONG}:29400",
    "cpu,cpu",
    "cpu:1",
    "cuda:99999",
    "GPU-",
    "1x20000000000GiB",
    "1x1YiB",
    "0xT4",
    "65xT4",
    "2000x(T4)",
    "2x(",
    "T4@0B/s",
    "MI300X",
]
# The values that each flag accepts. All others are refused.
SECONDS = {"+1", "1.5", "100000"}
HOSTS = {"0", "-1", "1.5", "1e20", "100000", "9" * 20, "nan", "inf", "-inf", "1e-400", "0x10"}
HOSTS |= {"1_000_000_000", "None", "true", "--", "GPU-", "node0"}
HOSTS |= {"gpu", "auto", "static", "etcd", "spawn"}
PLACES = {"2:1", "0:1", "cpu:1", "node0:0", "node0:29400", "[::1]:29400"}
RIGS = {"1x20000000000GiB", "1x1YiB", "0xT4", "65xT4", "MI300X"}
FOLDERS = {value for value in VALUES if len(value) < 255 and "\x00" not in value}
FILES = {value for value in FOLDERS - {"", "..", "\ud800"} if "/" not in value}
# Every odd value is some words of a shell, but for an unclosed quote.
OF_VERIFY = {"--steps": {"+1"}, "--single-arguments": set(VALUES)}
REPORTS = dict.fromkeys(("--json", "--trace", "--report"), FILES)
POSSIBLE = {
    "--device": {"auto"},
    "--nproc-per-device": {"+1"},
    "--nproc-per-node": {"auto"},
    "--node-rank": {"0"},
    "--master-addr": HOSTS | RIGS,
    "--master-port": {"0", "+1"},
    "--rdzv-backend": {"static"},
    "--rdzv-endpoint": PLACES | HOSTS | RIGS,
    "--rdzv-conf": {"", " ", "join_timeout=9,read_timeout=9"},
    "--redirects": {"0", "0:1", "2:1", "0:3,1:0"},
    "--tee": {"0", "0:1", "2:1", "0:3,1:0"},
    "--local-ranks-filter": {"", "0", "0,1"},
    "--role": {value for value in VALUES if value.isprintable() and 1 <= len(value) <= 200},
    "--monitor-interval": {"+1", "1.5", "1e20", "100000", "9" * 20, "1_000_000_000"},
    "--start-method": {"spawn"},
    "--rdzv-id": {value for value in VALUES if value.isprintable() and 1 <= len(value) <= 200},
    "--timeout": SECONDS,
    "--max-restarts": {"0", "+1", "100000"},
    "--interval": {"+1", "1.5"},
    "--local-addr": HOSTS | RIGS,
    "--tries": {"+1"},
    "--verify": set(VALUES),
    "--steps": {"+1", "100000", "9" * 20, "1_000_000_000"},
    "--step-marker": {v for v in VALUES if v.isidentifier() and not keyword.iskeyword(v)},
    "--log-dir": FOLDERS - {"", "/dev/null", "/dev/null/x"},
}


# Their errors depend on the checkpoint: tests/cli/test_checkpoint.py tries these values.
ELSEWHERE = ("--key", "--output")
# Typer builds its commands anew in each call of the app, which takes longer than all else here.
COMMANDS = typer.main.get_command(app)

SHARING = ("doctor", "rehearse", "verify")


def flags_of(name: str) -> set[str]:
    return {
        next(part for part in parameter.opts if part.startswith("--"))
        for parameter in COMMANDS.commands[name].params
        if parameter.param_type_name == "option"
    }


SHARED = flags_of("run")
# `rehearse compare` and `rehearse fail` take these from `rehearse`.
OF_REHEARSALS = flags_of("rehearse") - {"--rig"}

FLAGS_OF_LAUNCH = {
    "nproc_per_device": "nproc-per-device",
    "rdzv_endpoint": "rdzv-endpoint",
    "max_restarts": "max-restarts",
    "timeout_seconds": "timeout",
    "log_dir": "log-dir",
}


def flags() -> Iterator[tuple[list[str], str]]:
    commands = {tuple(name.split()): command for name, command in COMMANDS.commands.items()}
    for group_name in ("virtual", "checkpoint"):
        inner = commands.pop((group_name,)).commands
        commands |= {(group_name, name): command for name, command in inner.items()}
    for words, command in commands.items():
        for parameter in command.params:
            if parameter.opts[0] in ELSEWHERE or parameter.param_type_name != "option":
                continue
            if words[0] == "rehearse" and words[1:] and parameter.opts[0] in OF_REHEARSALS:
                continue
            if parameter.opts[0].startswith("--"):
                yield list(words), parameter.opts[0]


@pytest.fixture(autouse=True)
def _built_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyrig.cli.app.app", COMMANDS)


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Call the command in this process; return its exit status and its output."""
    sys.argv = ["anyrig", *words]
    with pytest.raises(SystemExit) as ended:
        main()
    written = capsys.readouterr()
    # Without the box that typer draws around messages.
    text = re.sub(r"[╭╮╰╯│─\s]+", " ", written.out + written.err)
    return int(ended.value.code or 0), text


@pytest.mark.parametrize(
    ("command", "flag"), list(flags()), ids=lambda part: part if isinstance(part, str) else part[-1]
)
def test_an_odd_value_is_refused_by_the_name_of_its_flag(
    command: list[str],
    flag: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)  # where --log-dir names folders
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(
        preflight, "examine", lambda *_: iter(())
    )  # the doctor's look at this machine
    # Or typer breaks lines within names.
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 1000)
    before, after, possible = [], [], POSSIBLE.get(flag, set())
    if command[0] in ("run", "rehearse", "verify", "fit", "plan"):
        after = ["no_such_script.py"]
    if command == ["verify"] and flag in OF_VERIFY:
        possible = OF_VERIFY[flag]
    if command[0] == "run":
        possible = possible | REPORTS.get(flag, set())
    if command[0] in ("rehearse", "verify", "fit", "plan"):
        before = [] if flag == "--rig" else ["--rig", "2xT4" if flag == "--fault" else "T4"]
        before += ["--fault", "rank=0,step=1"] if command[1:] == ["fail"] and not before else []
        more = {"--device": {"0"}, "--nproc-per-node": {"gpu"}, **REPORTS}
        possible = possible | more.get(flag, set())
    if command[0] in ("run", "doctor") and flag != "--device":
        before += ["--device", "cpu"]
    # Flags that several commands share are tried in full with one command.
    for value in VALUES[::4] if command[0] in SHARING and flag in SHARED else VALUES:
        if flag == "--device" and value in ("0", "0,1") and value not in possible:
            continue  # depends on this machine's devices
        status, output = call(capsys, *command, *before, f"{flag}={value}", *after)
        assert "Traceback" not in output, output[-1000:]
        if value in possible:
            expected = "there is no script 'no_such_script.py'" if after else ""
            assert expected in output, (value[:80], output[:300])
            assert flag not in output, (value[:80], output[:300])
        else:
            assert status == 2, (value[:80], output[:300])
            assert flag in output, (value[:80], output[:300])
            assert len(output) < 3 * len(value) + 2000, "a page of it"
            assert "\x1b[31mred" not in output
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nproc_per_device", 10**20),
        ("nproc_per_device", 0),
        ("nnodes", ""),
        ("rdzv_endpoint", "node0"),
        ("max_restarts", -1),
        ("timeout_seconds", math.nan),
        ("log_dir", "/dev/null/x"),
    ],
)
def test_launch_has_the_same_bounds(name: str, value: object) -> None:
    with pytest.raises(GroupOptionError) as refusal:
        anyrig.launch(print, rig="cpu", **{name: value})
    assert str(refusal.value).startswith(f"--{FLAGS_OF_LAUNCH.get(name, name)} ")
    assert str(value) in str(refusal.value)


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e300", "ten"])
def test_the_variable_of_the_time_limit(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYRIG_TIMEOUT_SECONDS", value)
    with pytest.raises(LaunchError, match=r"ANYRIG_TIMEOUT_SECONDS is '.*above 1000000"):
        time_limit_seconds()


@pytest.mark.parametrize(
    "command",
    [["run"], ["rehearse", "--rig", "T4"], ["verify", "--rig", "T4"]],
    ids=lambda it: it[0],
)
@pytest.mark.parametrize(
    "words",
    [
        [""],
        [LONG],
        ["a\x00b"],
        ["."],
        ["-m", "."],
        ["-m", ""],
        ["-m", "__main__"],
        ["-m", "package."],
        ["-m", ".train"],
        ["-m", "a..b"],
        ["no_such_script.py"],
        ["/dev/null/x.py"],
    ],
    ids=lambda words: " ".join(words)[:20].encode("unicode_escape").decode() or "nothing",
)
def test_a_name_that_no_program_has(
    command: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 1000)
    status, output = call(capsys, *command, *words)
    assert status == 2, output
    assert "SCRIPT" in output
    assert "Traceback" not in output
    assert len(output) < 2000
