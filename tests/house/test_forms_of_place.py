"""Every public function that takes a device or a rig takes it in every form."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import anyrig

pytestmark = pytest.mark.gpus(2)

SECOND = torch.device("cuda:1")
BOTH = [SECOND, torch.device("cuda:0")]

ONE = {
    "rig": lambda: anyrig.Rig.parse("cuda:1"),
    "rig of two": lambda: anyrig.Rig.parse("cuda:1,0"),
    "Device": lambda: anyrig.Rig.parse("cuda:1").lead,
    "torch.device": lambda: SECOND,
    "text": lambda: "cuda:1",
    "text of a rig": lambda: "1,0",
    "index": lambda: 1,
}
SEVERAL = {
    "rig": lambda: anyrig.Rig.parse("cuda:1,0"),
    "text": lambda: "cuda:1,0",
    "indices": lambda: [1, 0],
    "texts": lambda: ("cuda:1", "cuda:0"),
    "torch.devices": lambda: BOTH,
    "Devices": lambda: list(anyrig.Rig.parse("1,0")),
    "mixed": lambda: [anyrig.Rig.parse("1"), 0],
}


def _ones() -> torch.Tensor:
    return torch.ones(4, 2)


def _within(block: Any) -> torch.device:
    with block:
        return anyrig.current_device()


def _selected(place: Any) -> torch.device:
    before = anyrig.current_device()
    anyrig.devices.select_device(place)
    found = anyrig.current_device()
    anyrig.devices.select_device(before)
    return found


def _gathered(place: Any) -> torch.device:
    parts = [torch.ones(2, device=device) for device in BOTH]
    return anyrig.parallel.gather(parts, place).device


def _parallel_loss(place: Any) -> torch.device:
    outputs = anyrig.parallel.scatter(_ones(), BOTH)
    return anyrig.ParallelLoss(nn.MSELoss(), place)(outputs, _ones()).device


def _output_device(call: Callable[..., Any], **kwargs: Any) -> torch.device:
    return call(nn.Linear(2, 2).to("cuda:0"), [0, 1], **kwargs)(_ones()).device


# Of each function that takes one device: a call, which returns where something came to be.
OF_ONE: dict[str, Callable[[Any], torch.device]] = {
    "move": lambda place: anyrig.move(_ones(), place).device,
    "prefetch": lambda place: next(iter(anyrig.prefetch([_ones()], place))).device,
    "use_device": lambda place: _within(anyrig.use_device(place)),
    "ParallelLoss": _parallel_loss,
    "devices.as_torch_device": anyrig.devices.as_torch_device,
    "devices.defaults": lambda place: _within(anyrig.devices.defaults(place)),
    "devices.select_device": _selected,
    "devices.read": lambda place: anyrig.devices.read(place).device.torch_device,
    "parallel.gather": _gathered,
    "spread(output_device)": lambda place: _output_device(anyrig.spread, output_device=place),
    "DataParallel(output_device)": lambda place: _output_device(
        anyrig.DataParallel, output_device=place
    ),
}


def _called(model: Any) -> list[torch.device]:
    return list(anyrig.explain(model).devices)


def _on_second() -> nn.Module:
    return nn.Linear(2, 2).to("cuda:1")


def _lines(places: Any) -> list[torch.device]:
    text = io.StringIO()
    anyrig.show_utilization(places, file=text)
    return [torch.device(word) for word in text.getvalue().split() if word.startswith("cuda:")]


def _written(places: Any) -> list[torch.device]:
    environ: dict[str, str] = {}
    anyrig.devices.write_visibility(places, environ)
    uuids = environ["CUDA_VISIBLE_DEVICES"].split(",")
    return [anyrig.Rig.parse(uuid).lead.torch_device for uuid in uuids]


def _applied(places: Any) -> list[torch.device]:
    modules = anyrig.parallel.replicate(_on_second(), BOTH)
    parts = anyrig.parallel.scatter(_ones(), BOTH)
    return [each.device for each in anyrig.parallel.parallel_apply(modules, parts, devices=places)]


# Of each function that takes several: a call, which returns the devices in order.
OF_SEVERAL: dict[str, Callable[[Any], list[torch.device]]] = {
    "spread": lambda places: _called(anyrig.spread(_on_second(), places)),
    "DataParallel": lambda places: _called(anyrig.DataParallel(_on_second(), places)),
    "show_utilization": _lines,
    "devices.read_all": lambda places: [
        reading.device.torch_device for reading in anyrig.devices.read_all(places)
    ],
    "devices.write_visibility": _written,
    "parallel.scatter": lambda places: [
        part.device for part in anyrig.parallel.scatter(_ones(), places)
    ],
    "parallel.replicate": lambda places: [
        module.weight.device for module in anyrig.parallel.replicate(_on_second(), places)
    ],
    "parallel.parallel_apply": _applied,
}
# What each returns of a place is not where something lies.
OTHERWISE: dict[str, Callable[[Any], bool]] = {
    "devices.device_name": lambda place: "A100" in anyrig.devices.device_name(place),
    "devices.device_capability": lambda p: anyrig.devices.device_capability(p) == (8, 0),
    "devices.peak_bytes": lambda place: anyrig.devices.peak_bytes(place) is not None,
    "distribute": lambda place: len(anyrig.distribute([_ones()], rig=place)) == 1,
    "choose": lambda place: anyrig.choose(lease=False, devices=place).rig.lead.index == 1,
}
# Starts processes: see tests/processes/test_launch.py.
ELSEWHERE = {"launch"}


@pytest.mark.parametrize("form", ONE)
@pytest.mark.parametrize("function", OF_ONE)
def test_one_device(function: str, form: str) -> None:
    assert OF_ONE[function](ONE[form]()) == SECOND


@pytest.mark.parametrize("form", SEVERAL)
@pytest.mark.parametrize("function", OF_SEVERAL)
def test_several_devices(function: str, form: str) -> None:
    assert OF_SEVERAL[function](SEVERAL[form]()) == BOTH


@pytest.mark.parametrize("form", ["rig", "Device", "torch.device", "text", "index"])
@pytest.mark.parametrize("function", ["spread", "DataParallel", "devices.read_all"])
def test_one_device_where_several_could_be(function: str, form: str) -> None:
    assert OF_SEVERAL[function](ONE[form]()) == [SECOND]


@pytest.mark.parametrize("form", ["rig", "Device", "torch.device", "text", "index"])
@pytest.mark.parametrize("function", OTHERWISE)
def test_what_is_told_of_a_device(function: str, form: str) -> None:
    assert OTHERWISE[function](ONE[form]())


def test_no_function_that_takes_a_place_is_left_out() -> None:
    rooms = {"": anyrig, "devices.": anyrig.devices, "transfer.": anyrig.transfer}
    rooms["parallel."] = anyrig.parallel
    taking, seen = set(), set()
    for prefix, room in rooms.items():
        for name in room.__all__:
            value = getattr(room, name)
            if not callable(value) or id(value) in seen:
                continue
            seen.add(id(value))
            try:
                annotations = inspect.get_annotations(
                    value.__init__ if isinstance(value, type) else value
                )
            except TypeError:
                continue
            if any("Place" in str(annotation) for annotation in annotations.values()):
                taking.add(prefix + name)
    assert taking == {*OF_ONE, *OF_SEVERAL, *OTHERWISE, *ELSEWHERE} - {
        "spread(output_device)",
        "DataParallel(output_device)",
    }
