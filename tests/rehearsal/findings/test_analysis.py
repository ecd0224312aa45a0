"""When savings are computed, and the order of the findings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from promises import Layers, analysis_of, on_gpu, rehearse, training, watched


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_nothing_is_computed_from_a_schedule_that_is_not_that_of_the_record(factor: float) -> None:
    watching, facts = watched(training(Layers(), on_gpu(4096, 4096)))
    assert analysis_of(watching, facts) is not None
    steps = tuple(
        replace(step, end_seconds=step.begin_seconds + factor * step.seconds)
        for step in facts.steps
    )
    assert analysis_of(watching, replace(facts, steps=steps)) is None


def test_the_finding_that_saves_most_comes_first() -> None:
    host = torch.ones(4096, 4096)
    step = training(Layers(dtype=torch.float32), lambda: host.to("cuda", non_blocking=True))
    assert [finding.code for finding in rehearse(step).findings] == ["R09", "R03"]
