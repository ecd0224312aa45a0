"""Optimizer state that is not sharded like its parameter, and loads that a rank refuses."""

from __future__ import annotations

from pathlib import Path

import cases_of_rank_states

from forked_ranks import run_forked


def test_state_goes_on_between_shards_replicas_and_one_device(tmp_path: Path) -> None:
    run_forked(cases_of_rank_states.__file__, "run", [str(tmp_path)], 2)
