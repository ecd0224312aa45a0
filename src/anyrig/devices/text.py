"""Parse a string that names devices.

::

    text     = "all" | item { "," item }
    item     = kind [ ":" index ] | index | uuid
    kind     = "cuda" | "xpu" | "mps" | "cpu"
    uuid     = "GPU-…" | "MIG-…", or a prefix that only one device has

Spaces are allowed around commas only. An index without a kind has the kind of the item before it,
or of the machine's accelerator.
"""

from __future__ import annotations

import re

from ..errors import DeviceTextError
from .device import Device
from .inventory import usable
from .probes import PROBES

_NAMED = re.compile(r"(?P<kind>[a-z]+)(?::(?P<index>\d+))?", re.ASCII)
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+", re.ASCII)

# The hint of errors if the machine has no GPU.
WITHOUT_GPUS = "To run on virtual GPUs: anyrig rehearse --rig 2xT4 SCRIPT"


def select_devices(text: str, present: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the devices among `present` that `text` names, in the order of the text.

    Raises:
        DeviceTextError: the text does not match the grammar above, or names no device of this
            machine; the message lists its devices.
    """
    if text == "all":
        return _every_accelerator(present)
    chosen: list[Device] = []
    kind: str | None = None
    for item in text.split(","):
        device = _select(item.strip(" "), text, kind, present)
        if device in chosen:
            raise _refusal(text, f"it names {device.text} twice", present)
        chosen.append(device)
        kind = device.kind
    return tuple(chosen)


def _every_accelerator(present: tuple[Device, ...]) -> tuple[Device, ...]:
    devices = usable(present)
    if devices[0].kind == "cpu":
        what = "there is no working accelerator; 'auto' would take the CPU"
        raise _refusal("all", what, present, wanted="cuda")
    return devices


def _select(item: str, text: str, kind: str | None, present: tuple[Device, ...]) -> Device:
    if _UUID.fullmatch(item):
        return _select_by_uuid(item, text, present)
    if item.isascii() and item.isdigit():
        kind = kind or usable(present)[0].kind
        if kind == "cpu":
            what = f"{item} is the index of an accelerator, and none works"
            raise _refusal(text, what, present, wanted="cuda")
        return _select_by_index(kind, _index(item, text, present), text, present)
    match = _NAMED.fullmatch(item)
    if match is None or match["kind"] not in PROBES:
        what = f"{item!r} is not a device" if item else "it names no device"
        raise _refusal(text, what, present)
    if match["index"] is None:
        return _select_by_index(match["kind"], _current_index(match["kind"]), text, present)
    index = _index(match["index"], text, present)
    return _select_by_index(match["kind"], index, text, present)


def _index(digits: str, text: str, present: tuple[Device, ...]) -> int:
    if len(digits) > 9:  # Python raises for thousands of digits
        raise _refusal(text, "no index has that many digits", present)
    return int(digits)


def _select_by_index(
    kind: str, index: int | None, text: str, present: tuple[Device, ...]
) -> Device:
    if kind == "cpu":
        index = None if index in (None, 0) else index
    for device in present:
        if device.kind == kind and device.index == index and _is_reachable(device):
            return device
    wanted = kind if index is None else f"{kind}:{index}"
    raise _refusal(text, f"there is no {wanted}", present, wanted=kind)


def _select_by_uuid(start: str, text: str, present: tuple[Device, ...]) -> Device:
    matches = [d for d in present if d.uuid is not None and d.uuid.startswith(start)]
    if len(matches) == 1:
        return matches[0]
    what = "no device has" if not matches else f"{len(matches)} devices have"
    what = f"{what} a UUID that starts with {start!r}"
    raise _refusal(text, what, present, wanted="cuda")


def _current_index(kind: str) -> int | None:
    """Return the current device of a kind, as PyTorch does for a kind without an index."""
    if kind == "cpu":
        return None
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != kind:
        return 0
    return torch.accelerator.current_device_index()


def _is_reachable(device: Device) -> bool:
    return device.index is not None or device.kind == "cpu"


def _refusal(
    text: str, what: str, present: tuple[Device, ...], wanted: str | None = None
) -> DeviceTextError:
    there = ", ".join(str(device) for device in present if device.error is None)
    broken = "; ".join(f"{device}: {device.error}" for device in present if device.error)
    unusable = f" Not usable: {broken}." if broken else ""
    has_gpu = any(device.kind == "cuda" for device in present)
    hint = f". {WITHOUT_GPUS}" if wanted == "cuda" and not has_gpu else ""
    named = [
        f"{device.kind}:{device.index}"
        for device in present
        if device.error is None and device.kind != "cpu" and device.index is not None
    ][:2]
    every = ["all"] if named else []
    both = [",".join(named)] if named[1:] else []
    examples = ["auto", *every, "cpu", *named[:1], *both]
    return DeviceTextError(
        f"cannot take {text!r} as devices: {what}. There are: {there}.{unusable} "
        f"Write for example {', '.join(map(repr, examples[:-1]))} or {examples[-1]!r}{hint}"
    )
