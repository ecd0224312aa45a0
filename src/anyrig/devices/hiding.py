"""Hide devices from CUDA, by UUID and before CUDA starts.

CUDA reads `CUDA_VISIBLE_DEVICES` once, when it starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping

from ..errors import NoDeviceError, TooLateError
from .cuda_start import cuda_start
from .identity import normalise_uuid
from .place import Places, as_devices
from .visibility import UUID_PREFIXES, VARIABLE, Visibility, read_visibility


def write_visibility(devices: Places, environ: MutableMapping[str, str] = os.environ) -> Visibility:
    """Make only `devices` visible to CUDA, by UUID and in this order.

    Args:
        devices: a rig, devices, or UUIDs; a UUID may be unknown on this machine.
        environ: this process's environment, or the environment for a child.

    Raises:
        TooLateError: `environ` is this process's own, and CUDA has started.
        NoDeviceError: a device has no UUID, no device is given, or GPUs and MIG instances are
            mixed.
    """
    uuids = list(dict.fromkeys(_uuids_of(devices)))
    if not uuids:
        raise NoDeviceError("no device is named; to hide every device, call hide_all()")
    if len({uuid[:4] for uuid in uuids}) > 1:
        raise NoDeviceError(
            f"CUDA shows either whole GPUs or MIG instances, never both: {', '.join(uuids)}; "
            "leave one kind out"
        )
    return _write(",".join(uuids), environ)


def hide_all(environ: MutableMapping[str, str] = os.environ) -> Visibility:
    """Make no device visible to CUDA.

    Raises:
        TooLateError: `environ` is this process's own, and CUDA has started.
    """
    # Not the empty string: on Windows, setting a variable to the empty string removes it.
    return _write("-1", environ)


def _write(text: str, environ: MutableMapping[str, str]) -> Visibility:
    start = cuda_start() if environ is os.environ and environ.get(VARIABLE) != text else None
    if start is not None:
        raise TooLateError(
            f"{VARIABLE} is {environ.get(VARIABLE)!r} and cannot become {text!r}: CUDA has started "
            f"in this process and read it then. What started it: {start.reason}. Set it earlier, "
            f"or for the whole program: `{VARIABLE}={text} python …`"
        )
    environ[VARIABLE] = text
    return read_visibility(environ)


def _uuids_of(devices: Places) -> Iterator[str]:
    if isinstance(devices, str) and devices.startswith(UUID_PREFIXES):
        yield normalise_uuid(devices)
    elif isinstance(devices, (list, tuple)):
        for device in devices:
            yield from _uuids_of(device)
    else:
        for found in as_devices(devices):
            if not found.uuid:
                raise NoDeviceError(
                    f"{found} has no UUID for {VARIABLE}; only CUDA devices have one"
                )
            yield normalise_uuid(found.uuid)
