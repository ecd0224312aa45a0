"""Perfetto's own trace processor reads the trace of `anyrig run --trace`."""

from __future__ import annotations

import json
from pathlib import Path

from hand_written_trace import call, work, write
from test_measured_facts import process_of

from anyrig.programs.program import Program
from anyrig.rehearsal.measured.measured_facts import write_report
from anyrig.rehearsal.reporting import Reporting
from forked_programs import run_anyrig
from perfetto_processor import check_busy_times, loaded, needs_perfetto

pytestmark = needs_perfetto

TRAIN = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(4):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def test_the_busy_times_of_two_ranks(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "kineto.json",
        [
            call("cudaLaunchKernel", 165, 167, 15),
            work("kernel", "early", 185, 195, 7, 15),  # its predecessor on the stream ends at 190
            call("cudaLaunchKernel", 167, 169, 16),
            work("kernel", "other", 192, 205, 9, 16),
        ],
    )
    reporting = Reporting(json=tmp_path / "facts.json", trace=tmp_path / "trace.json")
    processes = [process_of(rank, trace) for rank in range(2)]
    write_report(reporting, Program("train.py"), processes, 0, None, 2)
    facts = json.loads((tmp_path / "facts.json").read_text())
    with loaded(tmp_path / "trace.json") as processor:
        assert check_busy_times(processor, facts) == [8_000, 8_000]


def test_a_training_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["--device", "cpu", "--trace", "trace.json", "--json", "facts.json"]
    done = run_anyrig("run", *words, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "facts.json").read_text())
    seconds = [step["end_seconds"] - step["begin_seconds"] for step in facts["steps"]]
    with loaded(tmp_path / "trace.json") as processor:
        assert check_busy_times(processor, facts) == []
        query = "select category, count(*) as count, sum(dur) as ns from slice group by category"
        slices = {row.category: row for row in processor.query(query)}
    assert slices["step"].count == len(seconds)
    assert abs(slices["step"].ns - 1e9 * sum(seconds)) <= len(seconds)
    assert slices["host"].count == len(facts["intervals"]["track"])
