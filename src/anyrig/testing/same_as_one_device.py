"""Tests whose function is a training run: ``@pytest.mark.same_as_one_device``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from ..devices.rig import Rig

MARKER = (
    "same_as_one_device(steps=3, ranks=False): the test is a training run on the fixture `rig`; it "
    "passes if its steps are the same on the rig and on one device. With ranks=True, a rank for "
    "each device runs it"
)
_RIG = "rig"


def verify_item(item: pytest.Function, marker: pytest.Mark) -> None:
    """Run a marked test on its rig and on one device.

    Raises:
        UsageError: the test has no argument `rig`, or the marker has unknown arguments.
    """
    from ..verification import verify

    unknown = marker.kwargs.keys() - {"steps", "ranks"}
    names = [*inspect.signature(item.obj).parameters]
    if marker.args or unknown or _RIG not in names:
        raise pytest.UsageError(
            f"{item.nodeid} is marked same_as_one_device: its function needs an argument `rig`, "
            "the devices to train on, and the marker takes steps and ranks: "
            "@pytest.mark.same_as_one_device(steps=3)"
        )
    others = {name: item.funcargs[name] for name in names if name != _RIG}
    rig = cast("Rig", item.funcargs[_RIG])
    verdict = verify(_training(item.obj, others), rig, **marker.kwargs)
    if not verdict:
        pytest.fail(str(verdict), pytrace=False)


def _training(function: Callable[..., object], others: dict[str, Any]) -> Callable[[Any], object]:
    return lambda rig: function(rig=rig, **others)
