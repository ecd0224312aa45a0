"""Prints which device each rank of many forms of start has, on virtual GPUs and a stand-in driver.

Arguments: the virtual rig, and forms as JSON: ``[{"visible": "2,0", "device": "0", "each": 2}]``.
`visible` is the shell's CUDA_VISIBLE_DEVICES or null; `device` is what the launcher parses, or null
for torchrun, which names no device; `each` is how many ranks a device has, and torchrun in all.
Every launcher and every rank is a forked process, in which CUDA starts anew.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch  # noqa: F401 - once, not in each process

import anyrig
import anyrig.virtual
from anyrig.devices import nvml
from anyrig.devices.environment import environments_of_ranks
from anyrig.devices.rig import Rig

PREFIXES = ("GPU-", "MIG-")


def in_child(call: Callable[[], Any], variables: dict[str, str]) -> Any:
    """Return what `call` returns in a forked process with these variables."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ.update(variables)
        try:
            answer = call()
        except anyrig.errors.AnyrigError as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        answer = json.loads(stream.read())
    os.wait()
    return answer


def own_device() -> str:
    device = Rig.detect().lead
    return device.uuid or device.text


def variables_of_ranks(device: str, each: int) -> list[dict[str, str]]:
    rig = Rig.parse(device)
    return environments_of_ranks(rig, len(rig) * each)


def try_form(visible: str | None, device: str | None, each: int) -> Any:
    shell = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    environments: Any = [{}] * each
    if device is not None:
        environments = in_child(lambda: variables_of_ranks(device, each), shell)
        if isinstance(environments, str):
            return environments
    size = str(len(environments))
    return [
        in_child(
            own_device,
            {**shell, **environment, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": size},
        )
        for rank, environment in enumerate(environments)
    ]


def main() -> None:
    for name in ("ANYRIG_DEVICE", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    assert nvml.gpus()  # before the virtual rig brings a driver of its own
    anyrig.virtual.install(sys.argv[1])
    print(json.dumps([try_form(**form) for form in json.loads(sys.argv[2])]))


main()
