"""The options that the flags of `anyrig run` become."""

import inspect
import os
import socket
from pathlib import Path

import pytest
import typer

from anyrig.cli.app import FLAG_CONTEXT
from anyrig.cli.chosen_device import chosen_device, named_in_errors
from anyrig.cli.group_flags import GroupFlags
from anyrig.cli.run import single_rank_variables
from anyrig.cli.torchrun_flags import run_options
from anyrig.cli.with_flags import with_flags
from anyrig.errors import DeviceTextError, LaunchError
from anyrig.processes.options import RunOptions


def test_only_flags_that_were_given_are_passed_on() -> None:
    assert GroupFlags().given == {}
    assert run_options(GroupFlags(), 3) == RunOptions(processes=3)
    flags = GroupFlags(device="cpu", processes_per_device=3, max_restarts=0)
    assert flags.given == {"device": "cpu", "processes_per_device": 3, "max_restarts": 0}
    assert run_options(flags, 3) == RunOptions(processes=3, max_restarts=0)


def test_a_command_gets_its_own_arguments_and_the_flags() -> None:
    def command(script: str, flags: GroupFlags) -> None:
        """Say it."""
        seen.append((flags, script))

    seen: list[tuple[GroupFlags, str]] = []
    wrapped = with_flags(command)
    given = dict.fromkeys(GroupFlags.__dataclass_fields__) | {"nodes": "2"}
    wrapped(script="train.py", **given)
    assert seen == [(GroupFlags(nodes="2"), "train.py")]
    assert wrapped.__doc__ == "Say it."
    names = list(inspect.signature(wrapped).parameters)
    assert names == ["script", *GroupFlags.__dataclass_fields__]


def flags_of_typer(words: list[str]) -> GroupFlags:
    seen: list[GroupFlags] = []

    @with_flags
    def command(flags: GroupFlags) -> None:
        seen.append(flags)

    app = typer.Typer()
    app.command(context_settings=FLAG_CONTEXT)(command)
    app(words, standalone_mode=False)
    return seen[0]


def test_every_flag_reaches_its_field() -> None:
    given = {
        "--device": ("device", "cpu"),
        "--nproc-per-node": ("processes_per_node", "gpu"),
        "--nproc-per-device": ("processes_per_device", 2),
        "--nnodes": ("nodes", "1:3"),
        "--node-rank": ("node_rank", 0),
        "--master-addr": ("master_address", "node0"),
        "--master-port": ("master_port", 0),
        "--rdzv-backend": ("rdzv_backend", "c10d"),
        "--rdzv-endpoint": ("rdzv_endpoint", "node0:1"),
        "--rdzv-id": ("rdzv_id", "job"),
        "--rdzv-conf": ("rdzv_conf", "timeout=5"),
        "--max-restarts": ("max_restarts", 4),
        "--timeout": ("timeout_seconds", 6.0),
        "--local-addr": ("local_address", "10.0.0.2"),
        "--log-dir": ("log_dir", Path("logs")),
        "--redirects": ("redirects", "3"),
        "--tee": ("tee", "0:1"),
        "--local-ranks-filter": ("local_ranks_filter", "0"),
        "--role": ("role", "trainer"),
        "--monitor-interval": ("monitor_interval_seconds", 1.0),
        "--start-method": ("start_method", "spawn"),
    }
    words = ["--standalone"]
    for flag, (_, value) in given.items():
        words += [flag, str(value)]
    flags = GroupFlags(standalone=True, **dict(given.values()))
    assert flags.given.keys() == GroupFlags.__dataclass_fields__.keys()
    assert flags_of_typer(words) == flags
    spelled = [f"--{word[2:].replace('-', '_')}" if word in given else word for word in words]
    assert flags_of_typer(spelled) == flags
    assert flags_of_typer([]) == GroupFlags()
    assert flags_of_typer(["-r", "1", "-t3"]) == GroupFlags(redirects="1", tee="3")


def test_torchruns_variables_stand_for_flags_that_were_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"NNODES": "2", "NPROC_PER_NODE": "gpu", "STANDALONE": "0"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    monkeypatch.setenv("PET_DEVICE", "cpu")  # no flag of torchrun's
    flags = flags_of_typer(["--nnodes", "1"])
    assert flags == GroupFlags(nodes="1", processes_per_node="gpu", standalone=False)


def test_the_only_rank_has_torchruns_variables_and_a_free_port() -> None:
    variables = single_rank_variables()
    port = int(variables.pop("MASTER_PORT"))
    assert single_rank_variables(port)["MASTER_PORT"] == str(port)
    with socket.create_server(("127.0.0.1", port)):
        assert single_rank_variables(port)["MASTER_PORT"] != str(port)
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
