"""Perfetto's own trace processor reads the trace of a rehearsal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_records import two_ranks

from anyrig.rehearsal.facts import Facts
from anyrig.rehearsal.read_facts import read_facts
from anyrig.rehearsal.trace import trace_events
from anyrig.virtual.rig import VirtualRig

BINARY = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
BUSY = """
select process.pid as rank, sum(slice.dur) as nanoseconds
from slice join thread_track on slice.track_id = thread_track.id
join thread using (utid) join process using (upid)
where slice.category = 'kernel' group by process.pid order by process.pid
"""


@pytest.mark.skipif(BINARY is None, reason="no trace_processor_shell of ui.perfetto.dev in PATH")
def test_the_busy_time_in_perfetto_is_that_of_the_report(tmp_path: Path) -> None:
    api = pytest.importorskip("perfetto.trace_processor", reason="needs the package perfetto")
    about = Facts("train.py", (), "2xA100-80GB", False, "2.13.0", "0.1.0")
    facts = read_facts(about, VirtualRig.parse("2xA100-80GB"), two_ranks())
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": list(trace_events(facts))}))
    config = api.TraceProcessorConfig(bin_path=BINARY)
    with api.TraceProcessor(trace=str(file), config=config) as processor:
        busy = {row.rank: row.nanoseconds for row in processor.query(BUSY)}
        flows = next(iter(processor.query("select count(*) as count from flow"))).count
    (step,) = facts.steps
    assert busy == {
        device.rank: pytest.approx(1e9 * device.busy_share * step.seconds)
        for device in facts.devices
    }
    assert flows == 1
