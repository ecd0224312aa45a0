"""Forty architectures of transformers train and evaluate in shape-only mode without a question.

Each is a tiny model of random weights that were drawn on the GPU, so that nothing but masks,
positions and other constants can be known. Both modes count the same bytes.
"""

from __future__ import annotations

import importlib.util

import pytest
from on_a_rig import PROGRAMS, output_of

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="needs transformers: pip install transformers",
    ),
]
PROGRAM = str(PROGRAMS / "architectures.py")


def answers(*options: str) -> dict[str, str]:
    """Return what became of each architecture."""
    lines = output_of(PROGRAM, *options, timeout=500, HF_HUB_OFFLINE="1").splitlines()
    return dict(line.split(" -> ", 1) for line in lines if " -> " in line)


@pytest.fixture(scope="module")
def computed() -> dict[str, str]:
    return answers("--compute")


def test_there_are_forty_and_all_run_on_a_gpu(computed: dict[str, str]) -> None:
    assert len(computed) >= 40
    expected = "building ok; training ok; evaluation ok; "
    assert [name for name, answer in computed.items() if not answer.startswith(expected)] == []


def test_no_architecture_asks_for_a_value(computed: dict[str, str]) -> None:
    assert answers() == computed


def test_nor_with_weights_from_the_host(computed: dict[str, str]) -> None:
    assert answers("--weights-from-host") == computed


def test_language_models_do_not_ask_for_tokens_drawn_on_the_gpu(computed: dict[str, str]) -> None:
    drawn = answers("--tokens-on-gpu")
    assert len(drawn) > 30
    assert drawn == {name: computed[name] for name in drawn}
