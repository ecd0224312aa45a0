"""Quantised weights over two ranks: replicas have rank 0's, and other ways are refused by name."""

from __future__ import annotations

import quantised_cases

from forked_ranks import run_forked


def test_replicas_compute_one_device_s_numbers_and_other_ways_are_refused() -> None:
    run_forked(quantised_cases.__file__, "run", [], 2)
