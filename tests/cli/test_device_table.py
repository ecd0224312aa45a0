"""`anyrig devices` of given readings, as a table and as JSON."""

import io

import pytest
from rich.console import Console

from anyrig.cli.device_facts import device_facts
from anyrig.cli.device_table import device_table, show_utilization
from anyrig.devices.device import Device
from anyrig.devices.process import DeviceProcess
from anyrig.devices.reading import Reading
from anyrig.devices.rig import Rig
from anyrig.hardware import spec_of_key

GIB = 2**30
GPU = Device(
    "cuda",
    1,
    "Tesla T4",
    uuid="GPU-1",
    pci_bus_id="0000:3b:00.0",
    capability=(7, 5),
    total_bytes=15 * GIB,
    spec=spec_of_key("T4"),
)
READING = Reading(
    GPU,
    free_bytes=4 * GIB,
    own_bytes=GIB,
    others_bytes=10 * GIB,
    utilization=0.356,
    temperature_celsius=41.6,
    processes=(DeviceProcess(7, "small", GIB), DeviceProcess(8, None, 9 * GIB)),
)


def lines(*readings: Reading) -> list[str]:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(device_table(readings))
    return [" ".join(line.split()) for line in capture.get().splitlines()[1:]]


@pytest.mark.parametrize(
    ("reading", "shown"),
    [
        (READING, "cuda:1 Tesla T4 4.00 GiB 15.00 GiB 36% 42 process 8 +1"),
        (Reading(GPU), "cuda:1 Tesla T4 ? 15.00 GiB ? ? ?"),
        (Reading(GPU, processes=()), "cuda:1 Tesla T4 ? 15.00 GiB ? ? nobody"),
        (
            Reading(GPU, utilization=0.0, temperature_celsius=0.0, processes=READING.processes[:1]),
            "cuda:1 Tesla T4 ? 15.00 GiB 0% 0 small 7",
        ),
        (Reading(Device("cpu", None, "EPYC")), "cpu EPYC ? ? ? ?"),
    ],
)
def test_a_row(reading: Reading, shown: str) -> None:
    assert lines(reading) == [shown]


def test_troubles_stand_below_all_rows() -> None:
    hidden = Device("cuda", None, "T4", uuid="GPU-2", error="hidden")
    shown = lines(Reading(hidden, error="silent"), Reading(GPU, error="lost"), READING)
    assert [line.split()[0] for line in shown[:3]] == ["cuda", "cuda:1", "cuda:1"]
    assert shown[3:] == ["cuda (T4, GPU-2): hidden", "cuda:1 (Tesla T4): lost"]


def test_json_has_every_fact() -> None:
    assert device_facts(READING) == {
        "device": "cuda:1",
        "kind": "cuda",
        "index": 1,
        "name": "Tesla T4",
        "uuid": "GPU-1",
        "pci_bus_id": "0000:3b:00.0",
        "capability": (7, 5),
        "spec": "T4",
        "total_bytes": 15 * GIB,
        "free_bytes": 4 * GIB,
        "used_bytes": 11 * GIB,
        "own_bytes": GIB,
        "others_bytes": 10 * GIB,
        "utilization": 0.356,
        "temperature_celsius": 41.6,
        "processes": [
            {"pid": 7, "name": "small", "used_bytes": GIB},
            {"pid": 8, "name": None, "used_bytes": 9 * GIB},
        ],
        "error": None,
    }
    unknown = device_facts(Reading(Device("cuda", 0, "X", error="broken"), error="silent"))
    known = {"device", "kind", "index", "name", "error"}
    assert {name for name, value in unknown.items() if value is not None} == known
    assert unknown["error"] == "broken"
    assert device_facts(Reading(GPU, processes=()))["processes"] == []


def test_a_file_has_80_columns_whatever_the_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    file = io.StringIO()
    show_utilization(Rig.parse("cpu"), file)
    assert "used by" in file.getvalue().splitlines()[0]
