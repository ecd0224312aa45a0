"""Public command lines of torchrun, with the word replaced by `anyrig run`.

What each resolves to is compared with what torchrun's own reading of the same words gives. Nothing
is started but the few groups at the end.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.rich_utils
from public_torchrun_lines import LINES
from torch.distributed import run as torchrun

from anyrig.cli import run as cli_run
from anyrig.cli.app import main
from anyrig.devices.device import Device
from anyrig.devices.rig import Rig
from anyrig.processes import launcher
from anyrig.processes.options import RunOptions
from forked_programs import run_anyrig

EIGHT = tuple(Device("cuda", index, "A100", uuid=f"GPU-{index}") for index in range(8))


@dataclass(frozen=True)
class Started:
    """The call that would have started the ranks of `anyrig run`."""

    options: RunOptions
    command: Sequence[str]
    environments: Sequence[Mapping[str, str]]


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch):
    """Return what a command line resolves to on a machine with eight GPUs."""
    found: list[Started] = []

    def run_group(options: RunOptions, command: Sequence[str], environments: object) -> object:
        found.append(Started(options, command, environments))
        return launcher.GroupResult()

    def become(command: Sequence[str], environment: Mapping[str, str]) -> None:
        found.append(Started(RunOptions(processes=1), command[1:], [environment]))

    def resolve(words: Sequence[str], devices: Sequence[Device] = EIGHT) -> Started:
        monkeypatch.setattr(Rig, "parse", lambda _: Rig(tuple(devices)))
        monkeypatch.setattr(sys, "argv", ["anyrig", "run", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, None)
        return found.pop()

    def ended(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.delenv("ANYRIG_DEVICE", raising=False)
    monkeypatch.setattr(launcher, "run_group", run_group)
    monkeypatch.setattr("anyrig.processes.torch_faults.end_launcher", ended)
    monkeypatch.setattr(cli_run, "_replace_process", lambda *words: (become(*words), ended(0)))
    monkeypatch.setattr(cli_run, "check_program", lambda *_, **__: None)  # the scripts do not exist
    return resolve


@pytest.fixture
def torchruns_reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else it sets the variable

    def read(words: Sequence[str]) -> tuple[object, list[str]]:
        # There is no GPU here.
        arguments = torchrun.parse_args([word.replace("=gpu", "=8") for word in words])
        config, _, command = torchrun.config_from_args(arguments)
        return config, command[1:]  # without -u

    return read


@pytest.mark.parametrize(("source", "line"), LINES, ids=[source for source, _ in LINES])
def test_a_public_line_resolves_as_torchrun_reads_it(
    source: str, line: str, resolve, torchruns_reading
) -> None:
    assert not source.startswith("/")
    name, *words = shlex.split(line)
    assert name == "torchrun"
    config, command = torchruns_reading(words)
    started = resolve(words)
    options = started.options
    assert list(started.command[:2]) == ["-m", "anyrig.cli.rank"]
    assert list(started.command[2:]) == command
    assert options.processes == config.nproc_per_node
    assert options.node_counts == (config.min_nodes, config.max_nodes)
    assert options.max_restarts == config.max_restarts
    if config.max_nodes > 1:
        default = {"123.456.123.456": 1234}.get(config.rdzv_endpoint.split(":")[0], 29500)
        assert options.rdzv_endpoint == config.rdzv_endpoint.replace("None", str(default))
        is_static = config.rdzv_backend == "static"
        assert options.node_rank == (config.rdzv_configs["rank"] if is_static else None)
        assert options.rdzv_id == config.run_id or config.run_id == "none"
    else:
        assert options.rdzv_endpoint is None
    # Rank i has device i, and sees all eight in this order.
    own = [environment["ANYRIG_DEVICE"] for environment in started.environments]
    assert own == [f"GPU-{rank}" for rank in range(options.processes)] or own == ["auto"]
    every = ",".join(device.uuid or "" for device in EIGHT)
    assert {each["CUDA_VISIBLE_DEVICES"] for each in started.environments} == {every}


SHOWN = [
    [],
    ["--tee", "3"],
    ["-t", "1"],
    ["-r", "3"],
    ["--redirects=2"],
    ["-r3", "-t1"],
    ["--redirects", "0:1,1:2"],
    ["-r", "3", "--tee", "0:3"],
    ["--local-ranks-filter", "1,2"],
    ["--local_ranks_filter=0", "--tee", "3"],
    ["--local-ranks-filter", "0", "-r", "0:1"],
    ["--local-ranks-filter", ""],
]


@pytest.mark.parametrize("flags", SHOWN, ids=" ".join)
def test_what_torchrun_shows_is_shown(flags: list[str], resolve, torchruns_reading) -> None:
    words = ["--nproc-per-node", "3", *flags, "train.py"]
    config, _ = torchruns_reading(words)
    files = config.logs_specs.reify({rank: {} for rank in range(3)})
    shown = {
        (rank, stream)
        for stream, to, tee in (
            ("stdout", files.stdouts, files.tee_stdouts),
            ("stderr", files.stderrs, files.tee_stderrs),
        )
        for rank in range(3)
        if to[rank] == "" or rank in tee  # its own stream, or a log file that is followed
    }
    every = {(rank, stream) for rank in range(3) for stream in ("stdout", "stderr")}
    assert every - resolve(words).options.hidden_streams == shown


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
CPU = Device("cpu", None, "CPU")
UNEQUAL = (Device("cuda", 1, "A100", uuid="GPU-a"), Device("cuda", 0, "T4", uuid="GPU-t"))


@pytest.mark.parametrize(
    ("word", "devices", "ranks"),
    [
        ("gpu", EIGHT, 8),
        ("auto", EIGHT, 8),
        ("cpu", EIGHT[:1], CORES),
        ("auto", (CPU,), CORES),
        ("cpu", (CPU,), CORES),
        ("xpu", (Device("xpu", 0, "Arc"), Device("xpu", 1, "Arc")), 2),
        ("3", (CPU,), 3),
        ("16", EIGHT, 16),
    ],
)
def test_words_for_a_number_of_ranks(
    word: str, devices: tuple[Device, ...], ranks: int, resolve
) -> None:
    assert resolve(["--nproc-per-node", word, "train.py"], devices).options.processes == ranks


def test_ranks_share_devices_evenly(resolve) -> None:
    started = resolve(["--nproc-per-node", "5", "train.py"], UNEQUAL)
    own = [environment["ANYRIG_DEVICE"] for environment in started.environments]
    assert own == ["GPU-a", "GPU-a", "GPU-a", "GPU-t", "GPU-t"]
    assert resolve(["train.py"], UNEQUAL).options.processes == 2  # without a flag, one for each


@pytest.mark.parametrize(
    ("words", "port"),
    [
        ([], 0),
        (["--master-port", "29501"], 29501),
        (["--master_addr", "node7", "--rdzv-endpoint", "localhost:29502"], 29502),
        (["--rdzv-endpoint", "node7"], 0),
        (["--rdzv-endpoint", "[::1]:29503", "--node-rank", "0"], 29503),
        (["--standalone", "--rdzv-endpoint", "localhost:29504", "--rdzv-id", "x"], 0),
    ],
)
def test_one_node_meets_itself(words: list[str], port: int, resolve) -> None:
    options = resolve(["--nproc-per-node", "2", *words, "train.py"]).options
    assert (options.rdzv_endpoint, options.node_rank, options.master_port) == (None, None, port)


@pytest.mark.parametrize(
    ("words", "place", "node_rank", "seconds"),
    [
        (["--rdzv-endpoint", "node0"], "node0:29400", None, 600),
        (["--rdzv-endpoint", "[::1]:7"], "::1:7", None, 600),
        (["--master-addr", "node0"], "node0:29500", None, 600),
        (["--master-port", "7"], "127.0.0.1:7", None, 600),
        (["--node-rank", "1"], "127.0.0.1:29500", 1, 600),
        (["--master-addr", "[::1]", "--rdzv-conf", "timeout=9"], "::1:29500", None, 9),
        (
            ["--master-addr", "a", "--rdzv-conf", " join_timeout = 900 ,close_timeout=3"],
            "a:29500",
            None,
            900,
        ),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint=b:1", "--node-rank=7"], "b:1", None, 600),
    ],
)
def test_where_two_nodes_meet(
    words: list[str], place: str, node_rank: int | None, seconds: float, resolve
) -> None:
    options = resolve(["--nnodes", "2", *words, "train.py"]).options
    assert (options.rdzv_endpoint, options.node_rank) == (place, node_rank)
    assert options.rdzv_timeout_seconds == seconds


def test_the_role_and_programs_that_are_not_pythons(resolve) -> None:
    words = ["--nproc-per-node", "2", "--role", "actor", "--no-python", "bash", "-c", "true"]
    started = resolve(words)
    assert {environment["ROLE_NAME"] for environment in started.environments} == {"actor"}
    assert list(started.command[2:]) == ["--no-python", "bash", "-c", "true"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nproc-per-node", "2", "--nproc-per-device", "1"], "--nproc-per-node '2' and --nproc-"),
        (["--nproc-per-node", "gpu"], "--nproc-per-node gpu needs at least one GPU"),
        (["--nproc-per-node", "gpu"], "anyrig rehearse --rig"),
        (["--standalone", "--nnodes", "2"], "--standalone is for one node, and --nnodes is 2"),
        (["--nnodes", "2", "--node-rank", "2", "--master-addr", "a"], "--node-rank is 2"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:0"], "--rdzv-endpoint makes 'a:0' the rendezvous"),
        (["--nnodes", "2", "--master-port", "0"], "--master-port makes '127.0.0.1:0' the rend"),
        (["--nnodes", "2"], "--rdzv-endpoint HOST:PORT, or --master-addr HOST"),
        (["--rdzv-backend", "etcd-v2"], "--rdzv-backend is 'etcd-v2', and must be c10d or static"),
        (["--rdzv-conf", "overlap_timeout=5"], "unknown key 'overlap_timeout'; torchrun's keys"),
        (["--rdzv-conf", "timeout"], "--rdzv-conf is 'timeout', and must be KEY=VALUE"),
        (["--no-python", "-m"], "-m and --no-python exclude each other"),
        (["--no-python"], "no program 'no_such_script.py' that --no-python could"),
    ],
)
def test_what_does_not_go_together(
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 1000)
    monkeypatch.setattr(
        sys, "argv", ["anyrig", "run", "--device", "cpu", *words, "no_such_script.py"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


SHOW = """
import os, sys
names = "RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_PORT".split()
sys.stdout.write(" ".join([*(os.environ[name] for name in names), *sys.argv[1:]]) + "\\n")
sys.stderr.write("to stderr\\n")
"""
RUN = [sys.executable, "-m", "anyrig", "run"]


def run(folder: Path, words: str) -> tuple[str, str, int]:
    (folder / "show.py").write_text(SHOW)
    done = run_anyrig("run", "--device", "cpu", *shlex.split(words), cwd=folder, timeout=60)
    return done.stdout, done.stderr, done.returncode


def start(folder: Path, words: str) -> subprocess.Popen[str]:
    (folder / "show.py").write_text(SHOW)
    return subprocess.Popen(
        [*RUN, "--device", "cpu", *shlex.split(words)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_torchtitans_line_runs(tmp_path: Path) -> None:
    flags = "--nproc_per_node=2 --rdzv_backend c10d --rdzv_endpoint=localhost:0"
    flags = f"{flags} --local-ranks-filter 1 --role rank --tee 3"
    out, err, status = run(tmp_path, f"{flags} -m show -- a")
    assert status == 0, err
    (line,) = out.splitlines()
    assert line.startswith("[rank 1] 1 1 0 2 2 ")
    assert line.endswith(" a")
    assert err == "[rank 1] to stderr\n"


def test_a_single_rank_has_the_port_that_was_given(tmp_path: Path) -> None:
    port = free_port()
    out, err, _ = run(tmp_path, f"--nproc-per-node 1 --master-port {port} show.py")
    assert (out, err) == (f"0 0 0 1 1 {port}\n", "to stderr\n")


def test_redirected_streams_are_in_the_log_files_alone(tmp_path: Path) -> None:
    ended = run(tmp_path, "--nproc-per-node=1 --log-dir logs -r 1 show.py")
    assert ended == ("", "[rank 0] to stderr\n", 0)
    (kept,) = (tmp_path / "logs").glob("**/stdout.log")
    assert kept.read_text().startswith("0 0 0 1 1 ")


def test_a_single_rank_shows_nothing_of_what_is_hidden(tmp_path: Path) -> None:
    assert run(tmp_path, "--nproc-per-node=1 --redirects 3 show.py") == ("", "", 0)


def test_a_shell_script_on_the_port_that_was_given(tmp_path: Path) -> None:
    port = free_port()
    words = f"--nproc-per-node 2 --master_port {port} --no-python sh -c 'echo $RANK $MASTER_PORT'"
    out, err, status = run(tmp_path, words)
    assert status == 0, err
    assert sorted(out.splitlines()) == [f"[rank 0] 0 {port}", f"[rank 1] 1 {port}"]


def test_two_nodes_have_the_numbers_that_they_were_given(tmp_path: Path) -> None:
    flags = f"--nnodes=2 --master_addr=127.0.0.1 --master_port={free_port()} --nproc_per_node=1"
    nodes = [start(tmp_path, f"{flags} --node_rank={number} show.py") for number in (1, 0)]
    for number, node in zip((1, 0), nodes, strict=True):
        out, err = node.communicate(timeout=60)
        assert node.returncode == 0, err
        assert out.startswith(f"[rank {number}] {number} 0 {number} 2 1 ")
