"""What the flags of `anyrig run` become."""

import inspect
import os
import socket
from pathlib import Path

import pytest
import typer

from anyrig.cli.chosen_device import chosen_device, named_in_errors
from anyrig.cli.group_flags import GroupFlags, with_group_flags
from anyrig.cli.run import alone
from anyrig.errors import DeviceTextError, LaunchError
from anyrig.parallel.ranks.options import RunOptions


def test_only_flags_that_were_given_are_passed_on() -> None:
    assert (GroupFlags().given, GroupFlags().options, GroupFlags().ranks_per_device) == ({}, {}, 1)
    flags = GroupFlags(device="cpu", processes_per_device=3, max_restarts=0)
    assert flags.given == {"device": "cpu", "processes_per_device": 3, "max_restarts": 0}
    assert flags.options == {"max_restarts": 0}
    assert flags.ranks_per_device == 3
    every = {name: object() for name in GroupFlags.__dataclass_fields__}
    assert GroupFlags(**every).options.keys() == every.keys() - {"device", "processes_per_device"}
    names = inspect.signature(RunOptions).parameters
    assert set(GroupFlags(**every).options) <= set(names)


def test_a_command_gets_its_own_arguments_and_the_flags() -> None:
    def command(flags: GroupFlags, script: str) -> None:
        """Say it."""
        seen.append((flags, script))

    seen: list[tuple[GroupFlags, str]] = []
    wrapped = with_group_flags(command)
    given = dict.fromkeys(GroupFlags.__dataclass_fields__) | {"nodes": "2"}
    wrapped(script="train.py", **given)
    assert seen == [(GroupFlags(nodes="2"), "train.py")]
    assert wrapped.__doc__ == "Say it."
    names = list(inspect.signature(wrapped).parameters)
    assert names == ["script", *GroupFlags.__dataclass_fields__]


def flags_of_typer(words: list[str]) -> GroupFlags:
    seen: list[GroupFlags] = []

    @with_group_flags
    def command(flags: GroupFlags) -> None:
        seen.append(flags)

    app = typer.Typer()
    app.command()(command)
    app(words, standalone_mode=False)
    return seen[0]


def test_every_flag_reaches_its_field() -> None:
    words = ["--device", "cpu", "--nproc-per-device", "2", "--nnodes", "1:3", "--rdzv-endpoint"]
    words += ["node0:1", "--rdzv-id", "job", "--rdzv-timeout", "5", "--max-restarts", "4"]
    words += ["--timeout", "6", "--local-addr", "10.0.0.2", "--log-dir", "logs"]
    assert flags_of_typer(words) == GroupFlags(
        device="cpu",
        processes_per_device=2,
        nodes="1:3",
        rdzv_endpoint="node0:1",
        rdzv_id="job",
        rdzv_timeout_seconds=5.0,
        max_restarts=4,
        timeout_seconds=6.0,
        local_address="10.0.0.2",
        log_folder=Path("logs"),
    )
    assert flags_of_typer([]) == GroupFlags()


def test_the_only_rank_has_torchruns_variables_and_a_free_port() -> None:
    variables = alone()
    port = int(variables.pop("MASTER_PORT"))
    with socket.create_server(("127.0.0.1", port)):
        pass
    assert variables == {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "ROLE_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def test_the_flag_counts_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYRIG_DEVICE", raising=False)
    assert chosen_device(None) == ("--device", None)
    monkeypatch.setitem(os.environ, "ANYRIG_DEVICE", "cuda:7")
    assert chosen_device(None) == ("ANYRIG_DEVICE", "cuda:7")
    assert chosen_device("cpu") == ("--device", "cpu")
    assert chosen_device("") == ("--device", "")


def test_only_errors_of_a_text_are_named_by_its_flag() -> None:
    with pytest.raises(DeviceTextError, match=r"^--rig: no such$"), named_in_errors("--rig"):
        raise DeviceTextError("no such")
    with pytest.raises(LaunchError, match=r"^other$"), named_in_errors("--rig"):
        raise LaunchError("other")
