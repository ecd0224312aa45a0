"""`anyrig.launch`: a function in new processes."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed import distributed_c10d

from anyrig.devices.rig import Rig
from anyrig.errors import LaunchError
from anyrig.processes.launch import launch
from anyrig.processes.launcher import _quiet_agent
from forked_programs import run_forked

# As in a notebook, __main__ cannot be imported.
UNGUARDED = """
import anyrig.processes.launch as processes
import torch.distributed as dist

class Answer:
    def __init__(self, total): self.total = total

def work(start, *, step):
    import torch
    dist.init_process_group("gloo")
    total = torch.tensor([float(start + step * dist.get_rank())])
    dist.all_reduce(total)
    return Answer(total.item())

print("answer", processes.launch(work, (1,), {"step": 10}, rig="cpu", nproc_per_device=2).total)
"""


def test_a_function_of_an_unguarded_script(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    ended = run_forked(str(script), timeout=60)
    assert ended.stdout.splitlines() == ["answer 12.0"], ended.stderr


@pytest.fixture(autouse=True)
def _temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class LockedError(Exception):
    """An exception that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("no way")
        self.lock = threading.Lock()


def test_an_exception_is_raised_with_its_rank_and_cause() -> None:
    def divide() -> float:
        try:
            return 1 / int(os.environ["RANK"])
        except ZeroDivisionError as error:
            raise LockedError from error

    with pytest.raises(LaunchError, match=r"^rank 0 failed \(exit code 1\)") as caught:
        launch(divide, rig="cpu", nproc_per_device=2)
    text = str(caught.value)
    assert "in divide" in text
    assert text.index("ZeroDivisionError: division") < text.rindex("LockedError: no way")
    assert "ranks/call.py" not in text


def test_a_function_is_called_again_after_a_failure() -> None:
    def work() -> str:
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if attempt == "0":
            raise ValueError("not yet")
        return attempt

    assert launch(work, rig="cpu", max_restarts=1) == "1"


@pytest.mark.parametrize("threads", [None, "3"])
def test_the_program_may_set_its_threads(
    threads: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = launch(lambda: os.environ["OMP_NUM_THREADS"], rig="cpu")
    assert found == (threads or str(cores or 1))


def test_sys_exit_with_a_message(tmp_path: Path) -> None:
    def leave() -> None:
        sys.exit("there is no data")

    said = (
        r"failed \(exit code 1\)\n.* in leave: sys.exit\('there is no data'\)\n.*: there is no data"
    )
    with pytest.raises(LaunchError, match=said):
        launch(leave, rig="cpu", log_dir=tmp_path / "logs")
    assert [file.name for file in tmp_path.iterdir()] == ["logs"]


@pytest.mark.gpus(2)
def test_tensors_and_classes_are_sent(tmp_path: Path) -> None:
    class Weights:
        def __init__(self, *tensors: torch.Tensor) -> None:
            self.tensors = tensors

    def double(weights: Weights, big: torch.Tensor) -> dict[str, object]:
        devices = {tensor.device.type for tensor in weights.tensors}
        assert devices == {"cpu"}
        limit = distributed_c10d._get_default_timeout("gloo").total_seconds()
        doubled = Weights(*(2 * tensor for tensor in weights.tensors))
        return {"weights": doubled, "big": big + 1, "limit": limit}

    module = torch.nn.Linear(2, 2, device="cuda:1")
    big = torch.zeros(3 * 2**20)
    result = launch(double, (Weights(module.weight, big[5:7]), big), rig="cpu", timeout_seconds=77)
    assert isinstance(result["weights"], Weights)
    assert torch.equal(result["weights"].tensors[0], 2 * module.weight.cpu())
    assert result["big"].sum() == 3 * 2**20
    assert result["limit"] == 77
    assert list(tmp_path.iterdir()) == []


def test_no_launch_in_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LaunchError, match=r"in rank 1 of a group of 2.*call the function itself"):
        launch(os.getpid, rig="cpu")


def test_unpicklable_objects_are_named() -> None:
    lock = threading.Lock()

    def hold() -> None:
        lock.acquire()

    with pytest.raises(
        LaunchError, match=r"hold cannot be sent .*lock.*Create such objects inside"
    ):
        launch(hold, rig="cpu")


def test_a_launch_leaves_this_process_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    elastic = logging.getLogger("torch.distributed.elastic.agent.server.api")
    before = dict(os.environ), elastic.level, list(elastic.filters)
    seen, over = [], threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            seen.append(dict(os.environ) == before[0])

    def read() -> list[str | None]:
        names = ("CUDA_VISIBLE_DEVICES", "ANYRIG_DEVICE", "OMP_NUM_THREADS", "LOCAL_RANK")
        return [os.environ.get(name) for name in names]

    looking = threading.Thread(target=look)
    looking.start()
    try:
        variables = launch(read, rig="cpu")
    finally:
        over.set()
        looking.join()
    assert variables[:2] == ["", "cpu"]
    assert int(variables[2]) >= 1
    assert variables[3] == "0"
    assert all(seen)
    assert (dict(os.environ), elastic.level, list(elastic.filters)) == before


def test_concurrent_launches_restore_the_loggers() -> None:
    elastic = logging.getLogger("torch.distributed.elastic.agent.server.api")
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    elastic.addHandler(handler)
    first, second = _quiet_agent(), _quiet_agent()
    try:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        elastic.error("hushed")
        second.__exit__(None, None, None)
        elastic.error("heard")
    finally:
        elastic.removeHandler(handler)
    assert records == ["heard"]


@pytest.mark.gpus(4)
@pytest.mark.parametrize(("rig", "kind"), [("cpu", "cpu"), ("cuda:3,cuda:1", "cuda")])
def test_each_rank_detects_its_device(rig: str, kind: str, tmp_path: Path) -> None:
    chosen = Rig.parse(rig)

    def detect() -> None:
        own = Rig.detect()
        text = f"{own.kind} {own.lead.uuid} {own.reason}"
        (tmp_path / os.environ["RANK"]).write_text(text)

    launch(detect, rig=rig, nproc_per_device=2)
    found = [(tmp_path / str(rank)).read_text().split(" ", 2) for rank in range(2 * len(chosen))]
    expected = [(kind, device.uuid) for device in chosen for _ in range(2)]
    for (own_kind, uuid, reason), device in zip(found, expected, strict=True):
        assert (own_kind, uuid) == (device[0], str(device[1]))
        assert reason.startswith("named by ANYRIG_DEVICE=")
