"""Turn the records of a rehearsal into facts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from ..virtual.record_reading import Record
from ..virtual.rig import VirtualRig
from .critical_path import Timeline
from .facts import Facts, Finding
from .findings.analysis import analyse
from .findings.find import find_all
from .process_record import ProcessRecord, merge_records
from .record_facts import PathReader, RecordTexts, read_record_facts
from .step_interval import interval_of_step


def read_facts(
    about: Facts,
    rig: VirtualRig,
    processes: Sequence[ProcessRecord],
    *,
    with_timelines: bool = True,
    with_findings: bool = True,
) -> Facts:
    """Return `about` with all that is known about the processes of a program.

    Without `with_timelines`, the intervals and the critical paths are left out: a summary does not
    show them. Without `with_findings`, nothing looks for what costs time.
    """
    record = merge_records(processes)
    facts = read_record_facts(
        about,
        record,
        processes,
        path_reader=_path_reader,
        with_timelines=with_timelines,
        alike=1 if about.assumed_ranks is None else about.assumed_ranks.ranks,
    )
    works = [process.works for process in processes if process.works is not None]
    interval = interval_of_step(
        facts.typical_step,
        facts.devices,
        works,
        host_launch_is_given=facts.clock.host_launch_seconds is not None,
    )
    facts = replace(facts, step_interval=interval)
    return replace(facts, findings=_find(facts, record, rig, processes)) if with_findings else facts


def _find(
    facts: Facts, record: Record, rig: VirtualRig, processes: Sequence[ProcessRecord]
) -> tuple[Finding, ...]:
    try:
        analysis = analyse(record, processes, rig, facts)
        return () if analysis is None else tuple(find_all(analysis))
    except Exception as error:  # a mistake here must not cost the figures of a long rehearsal
        said = f"{type(error).__name__}: {error}"
        warnings.warn(f"no findings, because looking for them failed: {said}", stacklevel=3)
        return ()


def _path_reader(record: Record, texts: RecordTexts) -> PathReader:
    timeline = Timeline(record)
    return lambda begin, end: texts.path(record, timeline.critical_path(begin, end))
