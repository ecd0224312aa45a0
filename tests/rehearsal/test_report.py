"""What `anyrig rehearse` reports at the end, and where it writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from anyrig.errors import ReportError
from anyrig.rehearsal.reporting import Reporting
from anyrig.rehearsal.step_ends import count_first_steps
from anyrig.rehearsal.step_marker import StepMarker, check_name
from anyrig.rehearsal.summary import describe
from anyrig.rehearsal.texts import name_lines
from anyrig.virtual.build import build_extension
from anyrig.virtual.extras.driver.library import build_library
from forked_programs import run_anyrig

PROGRAM = Path(__file__).parent / "programs" / "trains.py"
RIG = "A100-80GB+1GiB"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Build ahead, so that no test meets the message of the first build."""
    build_extension()
    build_library()


def rehearse(
    *words: str, program: Sequence[str] = (str(PROGRAM),), rig: str = RIG
) -> tuple[int, str, str]:
    done = run_anyrig("rehearse", "--rig", rig, *words, *program, timeout=180)
    return done.returncode, done.stdout, done.stderr


def steps_printed(count: int) -> str:
    return "".join(f"step {number}\n" for number in range(count))


def test_the_summary_and_the_files_of_a_training(tmp_path: Path) -> None:
    facts_file, trace_file = tmp_path / "facts.json", tmp_path / "trace.json"
    status, out, err = rehearse("--json", str(facts_file), "--trace", str(trace_file))
    assert (status, out) == (0, steps_printed(6))
    lines = err.splitlines()
    assert lines[0] == f"anyrig: {PROGRAM} on virtual GPUs {RIG}"
    assert "median of 5; the first took " in lines[1]
    assert lines[1].endswith(" samples/s")
    assert "the host waits for a GPU 3 times in a step" in err
    assert "in the data loader, by the clock of this machine" in err
    assert "how far that is off is not known: kernels run in " in err
    facts = json.loads(facts_file.read_text())
    check_facts(facts)
    check_trace(json.loads(trace_file.read_text()), facts)


def check_facts(facts: dict[str, Any]) -> None:
    assert (facts["format"], facts["version"]) == ("anyrig-rehearsal", 1)
    assert (facts["status"], facts["error"]) == (0, None)
    assert [step["is_first"] for step in facts["steps"]] == [True, *[False] * 5]
    assert {step["samples"] for step in facts["steps"]} == {16}
    assert {step["waits"] for step in facts["steps"][1:]} == {3}
    for step in facts["steps"]:
        seconds = step["end_seconds"] - step["begin_seconds"]
        assert sum(piece["seconds"] for piece in step["path"]) == pytest.approx(seconds, rel=1e-3)
    columns = facts["intervals"]
    assert len({len(column) for column in columns.values()}) == 1
    assert columns["begin_seconds"] == sorted(columns["begin_seconds"])
    texts = facts["texts"]
    products = [i for i, name in enumerate(columns["name"]) if texts[name] == "aten::addmm"]
    assert {texts[columns["module"][i]] for i in products} == {"0", "2"}
    line = (
        PROGRAM.read_text()
        .splitlines()
        .index("def train_step(x: torch.Tensor, y: torch.Tensor) -> float:")
    )
    assert {texts[columns["line"][i]] for i in products} == {f"trains.py:{line + 2}"}
    (device,) = facts["devices"]
    shares = device["busy_share"] + device["waiting_share"] + device["idle_share"]
    assert shares == pytest.approx(1)
    assert device["gpu"] == "A100-80GB"
    (memory,) = facts["memory"]
    assert max(memory["tensor_bytes"]) >= device["peak"]["tensor_bytes"] > 0


def check_trace(trace: dict[str, Any], facts: dict[str, Any]) -> None:
    events = trace["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    texts, columns = facts["texts"], facts["intervals"]
    seconds = sum(
        columns["seconds"][i] for i, kind in enumerate(columns["kind"]) if texts[kind] == "kernel"
    )
    assert sum(event["dur"] for event in kernels) / 1e6 == pytest.approx(seconds, rel=1e-3)
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"steps", "rank 0 host", "cuda:0 stream 0"} <= names


def test_a_program_that_fails_or_fills_the_memory_is_reported_too(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    status, out, err = rehearse("--json", str(file), program=[str(PROGRAM), "fails"])
    assert (status, out) == (1, steps_printed(4))
    assert "ValueError: the fourth step fails" in err
    assert "  ended by   ValueError at trains.py:" in err
    error = json.loads(file.read_text())["error"]
    assert (error["kind"], error["text"]) == ("ValueError", "the fourth step fails")
    status, _, err = rehearse(program=[str(PROGRAM), "fills"])
    assert status == 1
    assert "  ended by   OutOfMemoryError at trains.py:" in err
    assert "peak " in err


def test_a_program_ends_after_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    words = ["--quiet", "--steps", "2", "--step-marker", "train_step", "--json", str(file)]
    assert rehearse(*words) == (0, steps_printed(1), "")
    assert len(json.loads(file.read_text())["steps"]) == 2


def test_a_program_without_gpus_has_no_summary(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(torch.ones(2).sum())\n")
    assert rehearse(program=[str(script)]) == (0, "tensor(2.)\n", "")


def test_what_cannot_be_reported_is_refused_before_the_program_runs(tmp_path: Path) -> None:
    status, out, err = rehearse("--json", str(tmp_path / "missing" / "facts.json"))
    assert (status, out) == (2, "")
    shown = "".join(re.sub(r"[│╭╮╰╯─]", " ", err).split())
    assert f"--json:{tmp_path}/missingisnotafolder;createitfirst" in shown
    status, out, err = rehearse("--step-marker", "train_stp")
    assert (status, out) == (1, "")
    assert "has no function 'train_stp' whose calls could be steps" in err
    assert "its functions are train_step" in err


@pytest.mark.parametrize("output", ["json", "trace", "report"])
def test_a_quiet_rehearsal_with_a_file_is_watched(output: str) -> None:
    assert Reporting(quiet=True, **{output: Path("out")}).is_wanted
    assert not Reporting(quiet=True).is_wanted


@pytest.mark.parametrize("name", ["", "a.b.c", "None", "1st", "a b"])
def test_names_that_no_function_has(name: str) -> None:
    with pytest.raises(ReportError, match="cannot be the name of a function"):
        check_name(name)


def test_marked_functions() -> None:
    source = "class Trainer:\n    def step(self):\n        return 3\n\ndef other(): pass\n"
    calls: list[int] = []
    marker = StepMarker("Trainer.step", lambda: calls.append(1))
    names = marker.names()
    exec(marker.compile(source, "train.py"), names)
    assert names["Trainer"]().step() == 3
    assert calls == [1]
    with pytest.raises(ReportError, match=r"no function 'step' .* are Trainer.step, other$"):
        StepMarker("step", calls.clear).compile(source, "train.py")


@pytest.mark.parametrize(
    ("seconds", "first"),
    [
        *[([], 0), ([1], 1), ([9, 1], 1), ([9, 1, 1, 1], 1), ([9, 2, 1, 1, 1, 1], 2), ([1] * 4, 1)],
        *[([9, 1.04, 1, 1, 1, 1], 1), ([9, 1.06, 1, 1, 1, 1], 2)],  # within 5 %, or not
        ([9, 1.06, 1, 1], 2),  # of the median of the later ones, not of all
    ],
)
def test_the_first_steps(seconds: list[float], first: int) -> None:
    assert count_first_steps(seconds) == first


def test_lines_are_named_by_their_file() -> None:
    lines = [("/a/train.py", 3), ("/a/layers/model.py", 7), ("/a/heads/model.py", 8)]
    assert name_lines(lines) == ["train.py:3", "layers/model.py:7", "heads/model.py:8"]


def test_a_summary_without_steps_says_so() -> None:
    from anyrig.rehearsal.facts import Facts, ProgramError

    text = describe(Facts("train.py", (), "T4", False, "2.13.0", "0.1.0"))
    assert "no torch.optim.Optimizer took a step; name the function of a step with" in text
    error = ProgramError("KeyError", "'lr'", "train.py:3")
    failed = describe(Facts("train.py", (), "T4", False, "2.13.0", "0.1.0", error=error))
    assert "none: the script ended before the end of its first one" in failed
    assert "--step-marker" not in failed


def test_the_summary_has_the_three_findings_that_save_most() -> None:
    from anyrig.rehearsal.facts import Facts, Finding

    seconds = {"R04": 1.0, "R02": 3.0, "R13": None, "R09": 2.0, "R08": 0.5}
    findings = tuple(
        Finding(code, "", None, saved, None, "", "") for code, saved in seconds.items()
    )
    text = describe(Facts("train.py", (), "T4", False, "2.13.0", "0.1.0", findings=findings))
    assert re.findall(r"^  (R\d\d) ", text, re.MULTILINE) == ["R02", "R09", "R04"]
    assert text.endswith("2 more findings are in the files of --report and --json")


RANKS = """
import os
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_script_that_leaves_a_gpu_alone_and_ends_itself(tmp_path: Path) -> None:
    script, file = tmp_path / "one.py", tmp_path / "facts.json"
    script.write_text("import sys, torch\ntorch.ones(3, device='cuda')\nsys.exit(3)\n")
    status, _, err = rehearse("--json", str(file), program=[str(script)], rig="2xT4")
    assert status == 3
    assert "  ended by   sys.exit(3) at one.py:3\n" in err
    assert (
        "  cuda:1     not used: the script computes on cuda:0 only. Rehearse it with --rig T4"
        in err
    )
    assert json.loads(file.read_text())["unused_devices"] == [1]


def test_the_report_of_ranks_is_one(tmp_path: Path) -> None:
    script, file = tmp_path / "ranks.py", tmp_path / "facts.json"
    script.write_text(RANKS)
    words = ["--json", str(file), "--shape-only", "--nproc-per-device", "1"]
    status, _, err = rehearse(*words, program=[str(script)], rig="2xA100-80GB")
    assert status == 0, err
    assert err.count(" on virtual GPUs ") == 1
    assert "cuda:1     rank 1, busy" in err
    facts = json.loads(file.read_text())
    assert [(device["rank"], device["index"]) for device in facts["devices"]] == [(0, 0), (1, 1)]
    assert len(facts["steps"]) == 3
    texts, columns = facts["texts"], facts["intervals"]
    reductions = [i for i, name in enumerate(columns["name"]) if texts[name] == "all_reduce"]
    flows = [columns["flow"][i] for i in reductions if columns["flow"][i] >= 0]
    assert flows
    assert all(flows.count(flow) == 2 for flow in flows)
    for step in facts["steps"]:
        seconds = step["end_seconds"] - step["begin_seconds"]
        assert sum(piece["seconds"] for piece in step["path"]) == pytest.approx(seconds, rel=1e-3)
