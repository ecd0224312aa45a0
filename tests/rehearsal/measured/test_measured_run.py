"""`anyrig run --report`: the same page, trace and facts as from a rehearsal, but measured."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anyrig.programs.watcher import variables_of
from anyrig.rehearsal.measured.options import MeasureOptions
from anyrig.rehearsal.reporting import Reporting
from forked_programs import run_anyrig, run_forked

TRAIN = """
import os, sys
import torch
from torch import nn
{before}
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(48, 8))
for step, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=4), 1):
    model(x.to(device)).sum().backward()
    {in_step}
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def place() -> Iterator[str]:
    """A folder for temporary files, in which none of ours may be left in the end."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder
        assert list(Path(folder).glob("anyrig-records*")) == []
        assert list(Path(folder).glob("anyrig-trace*")) == []


def write_script(folder: Path, in_step: str = "pass", before: str = "") -> str:
    path = folder / "train.py"
    path.write_text(TRAIN.format(in_step=in_step, before=before))
    return str(path)


def measure(folder: Path, place: str, script: str) -> tuple[dict[str, Any], Any]:
    """Measure a script as the only rank; return the facts, and how the process ended."""
    files = Reporting(
        json=folder / "facts.json", trace=folder / "trace.json", report=folder / "page.html"
    )
    variables = variables_of([MeasureOptions(time.time_ns(), None, files).order])
    done = run_forked("-m", "anyrig.cli.rank", script, TMPDIR=place, **variables)
    return read_facts(folder, done), done


def read_facts(folder: Path, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert (folder / "facts.json").exists(), done.stderr
    return json.loads((folder / "facts.json").read_text())


def test_a_training_on_the_cpu(tmp_path: Path, place: str) -> None:
    script = write_script(tmp_path, before="os.chdir(os.sep)")  # the files stay where they were
    words = ["--report", "page.html", "--trace", "trace.json", "--json", "facts.json"]
    words = ["run", "--device", "cpu", "--watch", "hazards", *words, script]
    done = run_anyrig(*words, cwd=tmp_path, TMPDIR=place)
    assert (done.returncode, done.stdout) == (0, "")
    facts = read_facts(tmp_path, done)
    assert [step["number"] for step in facts["steps"]] == list(range(2, 10))
    assert [step["samples"] for step in facts["steps"]] == [4] * 8
    assert facts["measurement"]["steps_taken"] == 12
    assert (facts["rig"], facts["devices"], facts["findings"]) == ("the CPU", [], [])
    texts, columns = facts["texts"], facts["intervals"]
    names = {
        (texts[name], texts[module])
        for name, module in zip(columns["name"], columns["module"], strict=True)
        if module >= 0
    }
    # The nodes of the backward pass have the modules of the forward pass.
    assert {("aten::addmm", "0"), ("AddmmBackward0", "2"), ("aten::relu", "1")} <= names
    seconds = [step["end_seconds"] - step["begin_seconds"] for step in facts["steps"]]
    assert 0 < sum(columns["seconds"]) <= sum(seconds) * 1.01
    assert (
        "anyrig: no hazards found; writes to values that backward had saved were not looked"
        in done.stderr
    )
    assert "train.py on the CPU, measured\n" in done.stderr
    assert "of 12 steps; " in done.stderr
    assert "in the data loader\n" in done.stderr
    assert "USDT" not in done.stderr  # what Kineto prints
    page = (tmp_path / "page.html").read_text()
    assert "measured on <bdi>the CPU</bdi>" in page
    assert "rehearsed on" not in page
    assert "measured by PyTorch&#x27;s profiler" in page
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"step 2", "aten::addmm"} <= {event["name"] for event in events}


def test_a_training_on_virtual_gpus(tmp_path: Path, place: str) -> None:
    before = "from anyrig.virtual import install; install('2xT4')"
    facts, done = measure(tmp_path, place, write_script(tmp_path, before=before))
    assert done.returncode == 0
    (device,) = facts["devices"]
    assert (device["gpu"], facts["rig"]) == ("Tesla T4", "Tesla T4")
    # The profiler sees no work of virtual GPUs; what it cannot see is unknown, and not zero.
    assert device["busy_share"] is None
    assert device["peak"]["total_bytes"] >= device["peak"]["tensor_bytes"] > 0
    assert device["peak"]["context_bytes"] is None
    (memory,) = facts["memory"]
    assert len(memory["seconds"]) > 50
    assert max(memory["tensor_bytes"]) <= device["peak"]["tensor_bytes"]
    assert memory["workspace_bytes"] is None
    assert any("the work of cuda:0" in note for note in facts["measurement"]["notes"])
    assert "cuda:0     how busy it was is not measured\n" in done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "not measured" in page
    assert "cached, free" in page
    assert "workspaces</li>" not in page  # no layer of the chart
    counters = {
        name
        for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if event["ph"] == "C"
        for name in event["args"]
    }
    assert counters == {"tensors", "cached"}


@pytest.mark.parametrize(
    ("in_step", "steps", "text"),
    [
        ("1 / (step - 5)", [2, 3, 4], "median of steps 3 to 4 of 4 steps"),
        ("sys.exit(3) if step == 3 else None", [2], "step 2 of 2 steps"),
        ("if step == 4: raise KeyboardInterrupt", [2, 3], "of 3 steps"),
        ("1 / 0", [], "no step ended before the error, so nothing was profiled"),
        ("1 / (step - 2)", [], "the profile begins after the first step"),
        ("continue", [], "no torch.optim.Optimizer took a step, so nothing was profiled"),
    ],
)
def test_programs_that_end_early(
    in_step: str, steps: list[int], text: str, tmp_path: Path, place: str
) -> None:
    facts, done = measure(tmp_path, place, write_script(tmp_path, in_step))
    assert [step["number"] for step in facts["steps"]] == steps
    assert text in done.stderr
    assert "--step-marker" not in done.stderr
    if "/" in in_step:
        assert (facts["error"]["kind"], facts["error"]["line"]) == (
            "ZeroDivisionError",
            "train.py:12",
        )
        assert "ended by   ZeroDivisionError at train.py:12" in done.stderr
        assert done.returncode == facts["status"] == 1
    elif in_step.startswith("sys.exit"):
        assert (facts["error"]["kind"], facts["error"]["line"]) == ("SystemExit", "train.py:12")
        assert "ended by   sys.exit(3) at train.py:12" in done.stderr
        assert done.returncode == facts["status"] == 3
    else:
        assert facts["error"] is None
        assert "ended by" not in done.stderr
        own = (130, -signal.SIGINT) if "Interrupt" in in_step else (0, 0)
        assert (facts["status"], done.returncode) == own
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_report_after_an_out_of_memory_error(tmp_path: Path, place: str) -> None:
    before = "from anyrig.virtual import install; install('500MiB')"
    in_step = "step == 4 and torch.empty(2**30, device='cuda')"
    facts, done = measure(tmp_path, place, write_script(tmp_path, in_step, before))
    assert done.returncode == 1
    assert facts["error"]["kind"] == "OutOfMemoryError"
    assert [step["number"] for step in facts["steps"]] == [2, 3]
    assert facts["devices"][0]["peak"]["total_bytes"] > 0


@pytest.mark.parametrize(("begin", "end", "steps"), [(0, 5, []), (4, 5, [2, 3]), (4, 11, [2, 3])])
def test_a_program_that_profiles_itself_keeps_its_profile(
    begin: int, end: int, steps: list[int], tmp_path: Path, place: str
) -> None:
    before = (
        # Without `acc_events`, PyTorch 2.11 warns at the start of every profile.
        "own = torch.profiler.profile(\n"
        "    activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True\n)\n"
        f"if {begin} == 0: own.start()"
    )
    in_step = (
        f"step == {begin} and own.start()\n    if step == {end}:\n        own.stop()\n"
        "        print(sum(one.name == 'aten::addmm' for one in own.events()))"
    )
    facts, done = measure(tmp_path, place, write_script(tmp_path, in_step, before))
    forwards = end - begin  # in which the profile of the program ran
    assert (done.returncode, done.stdout) == (0, f"{2 * forwards}\n")
    assert [step["number"] for step in facts["steps"]] == steps
    assert "the program runs PyTorch's profiler itself" in done.stderr
    assert ("none profiled of 12\n" in done.stderr) == (steps == [])


def test_a_compiled_module_is_not_compiled_again(tmp_path: Path, place: str) -> None:
    before = (
        "def count(graph, inputs):\n    print('compiled')\n    return graph.forward\n"
        "def compile_it(model):\n    return torch.compile(model, backend=count)"
    )
    in_step = (
        "compiled = compile_it(model) if step == 1 else compiled\n"
        "    compiled(x.to(device)).sum().backward()"
    )
    facts, done = measure(tmp_path, place, write_script(tmp_path, in_step, before))
    assert (done.returncode, done.stdout) == (0, "compiled\n"), done.stderr  # warnings are errors
    assert len(facts["steps"]) == 8


# A rank that is stopped leaves no record, so rank 1 fails once rank 0 has ended by itself.
FAIL_AFTER_RANK_0 = """
import time
from pathlib import Path

is_first = os.environ["RANK"] == "0"
if is_first:
    Path("pid.new").write_text(str(os.getpid()))
    os.rename("pid.new", "pid")

def fail_in(step):
    if is_first or step < 7:
        return
    end = time.monotonic() + 120
    while not os.path.exists("pid") or os.path.exists("/proc/" + Path("pid").read_text()):
        assert time.monotonic() < end, "rank 0 has not ended"
        time.sleep(0.05)
    1 / (step - 7)
"""


def test_two_ranks_of_which_one_fails(tmp_path: Path, place: str) -> None:
    script = write_script(tmp_path, "fail_in(step)", FAIL_AFTER_RANK_0)
    words = ["run", "--device", "cpu", "--nproc-per-node", "2", "--json", "facts.json", script]
    done = run_anyrig(*words, "--lr", "1", cwd=tmp_path, TMPDIR=place)
    assert done.returncode == 1
    facts = read_facts(tmp_path, done)
    assert [track["rank"] for track in facts["tracks"]] == [0, 1]
    assert [step["number"] for step in facts["steps"]] == [2, 3, 4, 5, 6]  # of both
    assert [step["samples"] for step in facts["steps"]] == [8] * 5
    assert facts["error"]["kind"] == "ZeroDivisionError"
    assert (facts["program"], facts["arguments"], facts["status"]) == (script, ["--lr", "1"], 1)
    assert facts["measurement"]["steps_taken"] == 12
