"""A model spread over a process group: real processes, over gloo, and NCCL on virtual GPUs.

The ranks have replicas (DDP), or the parameters are divided among them (FSDP2).
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from functools import cache

import batch_statistics_cases
import call_cases
import changed_module_cases
import compiled_cases
import counted_target_cases
import learning_cases
import lone_preview
import module_cases
import output_cases
import own_loss_cases
import psutil
import pytest
import shard_cases
import torch
import weight_cases
from learning_cases import FOUR_ON_GPUS, FOUR_ON_THE_CPU
from on_ranks import World, cases_of, run_cases
from torch import nn

import anyrig
from anyrig.errors import LaunchError, SpreadError
from anyrig.parallel.ranks.states import Packing
from anyrig.processes.group.membership import carrier_of, current_group, join_group
from forked_ranks import run_forked

IN_REPLICAS = ["shard_cases.case_shards_in_two_replicas_learn_like_one"]  # for four ranks
ON_TWO = [
    *cases_of(learning_cases, weight_cases, output_cases, call_cases, module_cases),
    *cases_of(changed_module_cases, batch_statistics_cases, counted_target_cases, own_loss_cases),
    "exact_cases.case_logical_shards_give_the_numbers_of_one_device",
    "exact_cases.case_sums_over_logical_shards_have_one_order",
    *(case for case in cases_of(shard_cases) if case not in IN_REPLICAS),
]
ON_FOUR = [
    *FOUR_ON_THE_CPU,
    "output_cases.case_gradients_of_inputs_are_those_of_what_is_returned",
    "weight_cases.case_models_follow_each_other",
    *IN_REPLICAS,
]
COMPILED = cases_of(compiled_cases)

# What runs in one group: the rig of virtual GPUs if there is one, the ranks, and the cases.
WORLDS: dict[str, tuple[str | None, int, list[str]]] = {
    "2 on the CPU": (None, 2, [*ON_TWO, *COMPILED]),
    "4 on the CPU": (None, 4, ON_FOUR),
    "2 on GPUs": ("2x1GiB", 2, ON_TWO),
    # All kinds of models were once run by hand; these are quick, and test what four ranks add.
    "4 on GPUs": ("4x1GiB", 4, [*FOUR_ON_GPUS, *IN_REPLICAS]),
}


@cache
def world(name: str) -> World:
    rig, ranks, cases = WORLDS[name]
    return run_cases(cases, ranks, rig)


@pytest.mark.parametrize("case", ON_TWO)
@pytest.mark.parametrize("name", ["2 on the CPU", "2 on GPUs"])
def test_two_ranks(name: str, case: str) -> None:
    assert world(name)[case] == {}


@pytest.mark.parametrize("case", COMPILED)
def test_two_ranks_with_a_compiler(case: str) -> None:
    assert world("2 on the CPU")[case] == {}


@pytest.mark.parametrize("case", ON_FOUR)
def test_four_ranks(case: str) -> None:
    assert world("4 on the CPU")[case] == {}


@pytest.mark.parametrize("case", [*FOUR_ON_GPUS, *IN_REPLICAS])
def test_four_ranks_on_gpus(case: str) -> None:
    assert world("4 on GPUs")[case] == {}


def test_ranks_that_wait_for_each_other_end_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    run_forked(lone_preview.__file__, "preview_alone", (60.0, True), 2)
    raised = json.loads(capsys.readouterr().out)
    assert re.search(
        r"rank 0 waits at forward 1 of spread model 1 \(\S+:\d+ in preview_alone\), while "
        r"rank 1 .*last reached a barrier at .*neither can continue.*anyrig.distribute.*model.join",
        raised[0],
    )
    assert re.search(
        r"rank 1 waits at a barrier .* rank 0 .*last reached forward 1.*anyrig.distribute",
        raised[1],
    )


def test_a_loss_of_all_ranks_names_whom_it_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    run_forked(lone_preview.__file__, "preview_alone", (4.0, False), 2)
    raised = json.loads(capsys.readouterr().out)
    assert re.search(
        r"rank 0 waited at forward 1 .* rank 1 did not .*last reached a download.*"
        r"anyrig.distribute\(loader\).*--timeout$",
        raised[0],
    )


ALONE = {"RANK": "0", "WORLD_SIZE": "1"}
HALF = [
    (
        {"RANK": "0", "WORLD_SIZE": "2"},
        "RANK=0, WORLD_SIZE=2, but no MASTER_ADDR and no MASTER_PORT",
    ),
    ({"RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "but no WORLD_SIZE"),
    ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "not name a rank"),
    ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK=x"),
]


@pytest.mark.parametrize("variables", [{}, ALONE, {"MASTER_ADDR": "node0", "MASTER_PORT": "1"}])
def test_one_rank_is_no_group(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert join_group() is None
    assert current_group() is None
    model = anyrig.spread(nn.Linear(2, 2), anyrig.Rig.parse("cpu"), plan=anyrig.Shards())
    assert anyrig.explain(model).way == "alone"
    with model.join():  # has no effect in one process
        model(torch.ones(1, 2))


@pytest.mark.parametrize(("variables", "message"), HALF)
def test_half_an_environment(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=message):
        anyrig.spread(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("backends", "carriers"),
    [
        ("cpu:gloo,cuda:nccl", ("gloo", "nccl")),
        ("cuda:nccl", (None, "nccl")),
        ("cpu:gloo", ("gloo", None)),
    ],
)
def test_what_carries_a_device(backends: str, carriers: tuple[str | None, ...]) -> None:
    devices = (torch.device("cpu"), torch.device("cuda:1"))
    assert tuple(carrier_of(backends, device) for device in devices) == carriers


def test_packing_tensors_of_all_kinds() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = [
        torch.tensor([True, False, True]),
        torch.tensor(5),
        whole[:, 1:3],
        whole.clone().T,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 1, 3).half(),
    ]
    expected = [tensor.clone() for tensor in tensors]
    message = Packing(tensors).pack()
    rest = whole[:, 0].clone()
    packing = Packing(tensors)
    for tensor in tensors:
        tensor.zero_()
    before = [tensor._version for tensor in tensors]
    packing.unpack(message)
    assert [tensor._version for tensor in tensors] == before
    for tensor, value in zip(tensors, expected, strict=True):
        assert torch.equal(tensor, value)
    assert torch.equal(whole[:, 0], rest)


@pytest.mark.gpus(2)
def test_shards_need_a_process_a_device() -> None:
    with pytest.raises(SpreadError, match=r"this process uses .* anyrig run"):
        anyrig.spread(nn.Linear(2, 2), plan=anyrig.Shards())


def test_others_that_do_not_come() -> None:
    """A rank without a launcher listens on the loopback only, and its wait ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = (
        "import sys, psutil; from anyrig.processes.group import membership as m\n"
        "listening = lambda: [c.laddr.ip for c in psutil.Process().net_connections('tcp') "
        "if c.status == 'LISTEN']\n"
        "choose = m._choose_backend\n"
        "m._choose_backend = lambda *a: (print(listening(), flush=True), choose(*a))[1]\n"
        "try: m.join_group(timeout_seconds=1)\n"
        "except m.LaunchError as error: print(error)\n"
    )
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**dict(psutil.Process().environ()), **environment, "MASTER_PORT": str(port)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    listening, error = done.stdout.strip().split("\n", 1)
    assert listening == "['127.0.0.1']"
    assert f"rank 0 of 2 could not join the other ranks at localhost:{port} within 1 s" in error
