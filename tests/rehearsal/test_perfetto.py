"""Perfetto's own trace processor reads the trace of a rehearsal."""

from __future__ import annotations

import json
from pathlib import Path

from test_records import two_ranks

from anyrig.rehearsal.facts import Facts
from anyrig.rehearsal.read_facts import read_facts
from anyrig.rehearsal.reporting import Reporting
from anyrig.virtual.rig import VirtualRig
from forked_programs import run_anyrig
from perfetto_processor import check_busy_times, loaded, needs_perfetto

PROGRAM = Path(__file__).parent / "programs" / "computes_on_two_streams.py"
STREAMS = """
select distinct thread.name from slice join thread_track on track_id = thread_track.id
join thread using (utid) where category = 'kernel'
"""

pytestmark = needs_perfetto


def test_the_busy_times_of_a_rehearsal(tmp_path: Path) -> None:
    words = ["--rig", "2xT4", "--shape-only", "--trace", "trace.json", "--json", "facts.json"]
    done = run_anyrig("rehearse", *words, str(PROGRAM), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "facts.json").read_text())
    with loaded(tmp_path / "trace.json") as processor:
        check_busy_times(processor, facts)
        streams = {row.name for row in processor.query(STREAMS)}
        counters = [row.name for row in processor.query("select name from counter_track")]
    assert streams == {"cuda:0 stream 0", "cuda:0 stream 1", "cuda:1 stream 0"}
    layers = ("tensors", "workspaces", "cached", "context")
    assert counters == [f"cuda:{index} memory {layer}" for index in range(2) for layer in layers]


def test_the_busy_times_and_arrows_of_two_ranks(tmp_path: Path) -> None:
    about = Facts("train.py", (), "2xA100-80GB", False, "2.13.0", "0.1.0")
    facts = read_facts(about, VirtualRig.parse("2xA100-80GB"), two_ranks())
    Reporting(quiet=True, trace=tmp_path / "trace.json").write(facts)
    with loaded(tmp_path / "trace.json") as processor:
        check_busy_times(processor, facts.as_json())
        arrows = list(
            processor.query(
                "select source.name as source, target.name as target from flow"
                " join slice source on slice_out = source.id"
                " join slice target on slice_in = target.id"
            )
        )
    assert [(arrow.source, arrow.target) for arrow in arrows] == [("work 3", "work 3")]
