"""Perfetto's own trace processor, by its Python package: what it reads in a trace of ours."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BINARY = shutil.which("trace_processor_shell")

needs_perfetto = pytest.mark.skipif(
    BINARY is None,
    reason="needs Perfetto's trace_processor_shell in PATH (CONTRIBUTING.md says where to get it)",
)

# Kernels of all streams of a device, cut to the typical steps. A kernel adds what lies after the
# latest end of those that began before it.
_BUSY = """
with steps as (
  select min(ts) as begin, max(ts + dur) as finish from slice
  where category = 'step' and name in ({typical})
),
kernels as (
  select process.pid as rank,
    substr(thread.name, instr(thread.name, 'cuda:') + 5) as place,
    max(slice.ts, steps.begin) as begin,
    min(slice.ts + slice.dur, steps.finish) as finish
  from slice join thread_track on slice.track_id = thread_track.id
  join thread using (utid) join process using (upid) join steps
  where slice.category = 'kernel' and slice.ts < steps.finish
    and slice.ts + slice.dur > steps.begin
),
placed as (
  select rank, cast(substr(place, 1, instr(place, ' ') - 1) as int) as device, begin, finish
  from kernels
),
ordered as (
  select *, max(finish) over (
    partition by rank, device order by begin, finish
    rows between unbounded preceding and 1 preceding
  ) as reached from placed
)
select rank, device, count(*) as kernels, sum(finish - begin) as sum_ns,
  sum(max(0, finish - max(begin, coalesce(reached, begin)))) as busy_ns
from ordered group by rank, device
"""
_PROBLEMS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


@contextmanager
def loaded(trace: Path) -> Iterator[Any]:
    """A trace processor that has read a trace, without an error and without dropping anything."""
    api = pytest.importorskip("perfetto.trace_processor", reason="needs the package perfetto")
    config = api.TraceProcessorConfig(bin_path=BINARY)
    with api.TraceProcessor(trace=str(trace), config=config) as processor:
        assert {row.name: row.value for row in processor.query(_PROBLEMS)} == {}
        yield processor


def check_busy_times(processor: Any, facts: dict[str, Any]) -> list[int]:
    """Compare the busy time of each device with the report's.

    Returns:
        for each device, how long kernels ran at the same time as another one, in nanoseconds.
    """
    numbers = facts["typical_step"]["of_steps"]
    typical = ", ".join(f"'step {number}'" for number in numbers)
    rows = list(processor.query(_BUSY.format(typical=typical)))
    steps = {step["number"]: step for step in facts["steps"]}
    seconds = steps[numbers[-1]]["end_seconds"] - steps[numbers[0]]["begin_seconds"]
    expected = {
        (device["rank"], device["index"]): 1e9 * seconds * device["busy_share"]
        for device in facts["devices"]
        if device["busy_share"]
    }
    # The trace has whole nanoseconds.
    assert {(row.rank, row.device): row.busy_ns for row in rows} == {
        (row.rank, row.device): pytest.approx(expected[row.rank, row.device], abs=row.kernels)
        for row in rows
    }
    assert len(rows) == len(expected)
    return [row.sum_ns - row.busy_ns for row in rows]
