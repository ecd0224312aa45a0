"""Everything that takes virtual time goes through the cost model in csrc/time/cost."""

from __future__ import annotations

import re
from pathlib import Path

import anyrig.virtual

SOURCES = Path(anyrig.virtual.__file__).parent / "csrc"

# Where coefficients and rates may be read, and why.
READERS = {
    "time/cost/": "the cost model",
    "time/coefficients.h": "the record of the coefficients",
    "time/gpu_facts.h": "the record of the facts",
    "time/ring.h": "the links that the cost model gets",
    "time/cost_bindings.cpp": "the cost model for Python",
    "time/clock.cpp": "the host's launches, and the multiprocessors that a collective takes",
    "time/links.cpp": "which links a copy or collective uses",
    "time/collective_time.cpp": "which links a collective uses",
    "extras/symmetric/peers.cpp": "whether there is a link at all",
}

# The calls that advance a stream by seconds, and where these seconds come from.
BY_SECONDS = {
    "run_for": {
        "module.cpp": "torch.cuda._sleep, which asks for seconds",
    },
    "run_collective": {
        "collectives/collective.cpp": "collective_seconds",
        "collectives/message.cpp": "collective_seconds",
        "extras/symmetric/symmetric_operators.cpp": "collective_seconds",
    },
}


def sources() -> list[tuple[str, str]]:
    files = [path for ending in ("*.cpp", "*.h") for path in sorted(SOURCES.rglob(ending))]
    return [(str(path.relative_to(SOURCES)), path.read_text()) for path in files]


def test_only_the_cost_model_reads_coefficients_and_rates() -> None:
    facts = re.compile(r"\bcoefficients\b|_bytes_per_second\b|\bflops_per_second\b")
    others = [
        name
        for name, text in sources()
        if facts.search(text) and not any(name.startswith(reader) for reader in READERS)
    ]
    assert not others, (
        f"{others} compute times by themselves; describe the work by a record (time/work.h) and "
        "give it to Clock::run"
    )


def test_streams_advance_by_records_of_work() -> None:
    for call, allowed in BY_SECONDS.items():
        callers = {
            name
            for name, text in sources()
            if re.search(rf"(\.|get\(\)\.){call}\(", text) and not name.startswith("time/clock")
        }
        assert callers == set(allowed), f"{call} has other callers: describe their work by records"


def test_collectives_get_their_seconds_from_the_cost_model() -> None:
    for name in BY_SECONDS["run_collective"]:
        assert "collective_seconds(" in (SOURCES / name).read_text()


def test_the_cost_model_does_not_depend_on_pytorch() -> None:
    # A script fits the coefficients by the same functions, without a rig.
    for path in [*(SOURCES / "time/cost").iterdir(), SOURCES / "time/work.h"]:
        includes = re.findall(r"#include [<\"]([^>\"]+)", path.read_text())
        assert not [name for name in includes if name.startswith(("ATen", "c10", "torch"))]
