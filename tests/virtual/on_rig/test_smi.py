"""`nvidia-smi` run in this process, which holds memory of the GPUs it lists."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="NVML is asked so on Linux only"),
    pytest.mark.virtual_only("the command is that of virtual GPUs"),
]

DEVICE = 5  # used by few other tests
MIB = 2**20


@pytest.fixture(autouse=True)
def kept(own_device: None) -> Iterator[torch.Tensor]:
    return torch.empty(48 * MIB, dtype=torch.uint8, device="cuda")


def smi(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    from anyrig.virtual.extras.driver.smi.command import main

    capsys.readouterr()
    assert main(list(arguments)) == status
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def used_mebibytes() -> int:
    return torch.cuda.device_memory_used(DEVICE) // MIB


def test_who_holds_memory(capsys: pytest.CaptureFixture[str]) -> None:
    used = used_mebibytes()
    assert used >= 48
    uuid = f"GPU-{torch.cuda.get_device_properties(DEVICE).uuid}"
    fields = "pid,used_memory,used_gpu_memory,gpu_uuid,gpu_bus_id,gpu_name,gpu_serial"
    row = [str(os.getpid()), f"{used} MiB", f"{used} MiB", uuid, "00000000:06:00.0"]
    row += ["NVIDIA A100-SXM4-80GB"]
    for option in ("--query-compute-apps", "--query-apps"):
        text = smi(capsys, f"{option}={fields}", "--format=csv", f"--id={DEVICE}")
        header, line = text.splitlines()
        assert header == fields.replace(",", ", ").replace("memory", "memory [MiB]")
        assert line.split(", ")[:6] == row
    bare = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    assert f"{os.getpid()}, {used}\n" in smi(capsys, *bare)
    names = smi(capsys, "--query-compute-apps=name,process_name", "--format=csv", "-i", f"{DEVICE}")
    first, second = names.splitlines()[1].split(", ")
    assert first == second != "[Not Found]"


def test_the_table_names_who_holds_memory(capsys: pytest.CaptureFixture[str]) -> None:
    lines = smi(capsys, "-i", str(DEVICE)).splitlines()
    assert {len(line) for line in lines[1:] if line} == {91}
    used = used_mebibytes()
    holder = f"|    {DEVICE}   N/A  N/A{os.getpid():>16}      C   "
    (line,) = [line for line in lines if line.startswith(holder)]
    assert line.endswith(f" {f'{used}MiB':>10} |")
    name = line.removeprefix(holder)[:35].rstrip()
    assert len(name) <= 35
    assert not any("No running processes" in line for line in lines)
    rows = [line for line in lines if "A100" in line or "Default" in line]
    assert rows == [
        f"|   {DEVICE}  NVIDIA A100-SXM4-80GB          On  |   00000000:06:00.0 Off |{'N/A':>21} |",
        f"| N/A   30C    P0             50W /  400W |{f'{used}MiB':>11} /  81049MiB |"
        "      0%      Default |",
    ]


def test_a_long_name_of_a_process_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from anyrig.virtual.extras.driver.smi import gpu, table

    for name, shown in (("x" * 35, "x" * 35), (f"/{'a' * 40}/python3.11", None)):
        holder = gpu.Holder(7, name, 3 * MIB)
        monkeypatch.setattr(gpu.Gpu, "holders", lambda self, holder=holder: [holder])
        monkeypatch.setattr(gpu.Gpu, "__init__", lambda self, index: setattr(self, "index", 2))
        (line,) = table._processes([gpu.Gpu(2)])
        assert line[43:78] == (shown or f"...{name[-32:]}")
        assert line.endswith("      3MiB |")


def test_the_report_has_every_part_of_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    text = smi(capsys, "-q", "-i", str(DEVICE))
    values = [
        tuple(part.strip() for part in line.split(": ", 1))
        for line in text.splitlines()
        if ": " in line
    ]
    facts = dict(pair for pair in values if len(pair) == 2)
    used, total = used_mebibytes(), 81049
    expected = {
        "Driver Version": "580.95.05",
        "CUDA Version": "13.0",
        "Attached GPUs": "8",
        "Product Name": "NVIDIA A100-SXM4-80GB",
        "Display Mode": "Disabled",
        "Display Active": "Disabled",
        "Persistence Mode": "Enabled",
        "GPU UUID": f"GPU-{torch.cuda.get_device_properties(DEVICE).uuid}",
        "Bus Id": "00000000:06:00.0",
        "Fan Speed": "N/A",
        "Performance State": "P0",
        "Compute Mode": "Default",
        "Total": f"{total} MiB",
        "Used": f"{used} MiB",
        "Free": f"{total - used} MiB",
        "GPU": "0 %",
        "Encoder": "0 %",
        "Decoder": "0 %",
        "GPU Current Temp": "30 C",
        "Average Power Draw": "50.00 W",
        "Current Power Limit": "400.00 W",
        "Default Power Limit": "400.00 W",
        "Graphics": "1410 MHz",
        "SM": "1410 MHz",
        "Process ID": str(os.getpid()),
        "Type": "C",
        "Used GPU Memory": f"{used} MiB",
    }
    assert {name: facts.get(name) for name in expected} == expected
    assert "    Processes\n" in text
    assert len(facts["Name"]) > 0
    assert re.search(r"\nTimestamp +: \w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\n", text)


def test_the_report_has_only_the_parts_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = smi(capsys, "-q", "-d", "POWER,PIDS", "-i", "6")
    lines = [line.strip() for line in text.splitlines()[7:] if line]
    assert lines[:6] == [
        "Attached GPUs                             : 8",
        "GPU 00000000:07:00.0",
        "GPU Power Readings",
        "Average Power Draw                : 50.00 W",
        "Current Power Limit               : 400.00 W",
        "Default Power Limit               : 400.00 W",
    ]
    # Tests on all GPUs may have opened a context on this one.
    assert lines[6].startswith("Processes")
    assert (lines[6:] == ["Processes                             : None"]) == (
        torch.cuda.device_memory_used(6) == 0
    )
    refused = smi(capsys, "-q", "-d", "POWER,COLOUR", status=2)
    assert refused == (
        '"COLOUR" is not a valid parameter to "-d" switch. Please run \'nvidia-smi -h\' for help.\n'
    )


def test_every_field_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    from anyrig.virtual.extras.driver.smi.fields import GPU_FIELDS

    names = [name for name in GPU_FIELDS if name != "timestamp"]
    text = smi(capsys, f"--query-gpu={','.join(names)}", "--format=csv,nounits,noheader", "-i", "6")
    values = dict(zip(names, text.strip().split(", "), strict=True))
    assert len(values) == len(names)
    total, used = 81049, torch.cuda.device_memory_used(6) // MIB
    expected = {
        "count": "8",
        "index": "6",
        "compute_cap": "8.0",
        "pstate": "P0",
        "pci.domain": "0x0000",
        "pci.bus": "0x07",
        "pci.device": "0x00",
        "gpu_bus_id": "00000000:07:00.0",
        "pcie.link.gen.max": "4",
        "pcie.link.gen.current": "4",
        "pcie.link.width.current": "16",
        "pcie.link.width.max": "16",
        "memory.total": str(total),
        "memory.used": str(used),
        "memory.free": str(total - used),
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "utilization.encoder": "0",
        "utilization.decoder": "0",
        "temperature.gpu": "30",
        "fan.speed": "[N/A]",
        "power.management": "Enabled",
        "power.draw": "50.00",
        "power.draw.average": "50.00",
        "power.draw.instant": "50.00",
        "power.limit": "400.00",
        "power.default_limit": "400.00",
        "power.max_limit": "400.00",
        "enforced.power.limit": "400.00",
        "clocks.sm": "1410",
        "clocks.gr": "1410",
        "clocks.current.graphics": "1410",
        "clocks.max.sm": "1410",
        "compute_mode": "Default",
        "persistence_mode": "Enabled",
        "vbios_version": "[N/A]",
    }
    assert {name: values[name] for name in expected} == expected
    assert values["gpu_uuid"] == values["uuid"]
    assert values["gpu_name"] == values["name"] == "NVIDIA A100-SXM4-80GB"


def test_the_time_has_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    text = smi(capsys, "--query-gpu=timestamp", "--format=csv,noheader", "-i", "0")
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}\n", text)


def test_into_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    for _ in range(2):
        assert smi(capsys, "-L", "-i", "6", "-f", str(file)) == ""
    line, again = file.read_text().splitlines()
    assert line == again
    assert line.startswith("GPU 6: NVIDIA A100-SXM4-80GB (UUID: GPU-")


@pytest.mark.parametrize(
    ("option", "seconds"),
    [(["-l"], 5.0), (["-l", "2"], 2.0), (["--loop=3"], 3.0), (["-lms", "250"], 0.25)],
)
def test_again_and_again_with_one_header(
    option: list[str],
    seconds: float,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from anyrig.virtual.extras.driver.smi import command

    slept: list[float] = []

    def sleep(pause: float) -> None:
        slept.append(pause)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", sleep)
    text = smi(capsys, "--query-gpu=index", "--format=csv", "-i", "6,5", *option)
    assert text == "index\n5\n6\n5\n6\n"
    assert slept == [seconds, seconds]


def test_help_and_what_is_not_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert smi(capsys, "-h") == smi(capsys, "--help")
    assert "--query-compute-apps=FIELDS" in smi(capsys, "-h")
    for arguments, word in (
        (["topo"], "topo"),
        (["topo", "-p"], "topo -p"),
        (["-i"], "-i"),
        (["-d", "-q"], "-d"),
        (["--query=1"], "--query=1"),
        (["gpu"], "gpu"),
    ):
        assert smi(capsys, *arguments, status=2) == (
            f"ERROR: Option {word} is not recognized. Please run 'nvidia-smi -h'.\n\n"
        )
    missing = smi(capsys, "--query-gpu=name", status=2)
    assert missing.startswith('"--format=" switch is missing.')
    assert smi(capsys, "-L", "-i", "8", status=6) == "No devices were found\n"


def test_a_gpu_is_meant_by_every_form_of_its_bus_id(capsys: pytest.CaptureFixture[str]) -> None:
    uuid = f"GPU-{torch.cuda.get_device_properties(6).uuid}"
    names = ("6", uuid, uuid.upper(), "00000000:07:00.0", "0000:07:00.0", "07:00.0")
    for name in names:
        (line,) = smi(capsys, "-L", "-i", name).splitlines()
        assert line == f"GPU 6: NVIDIA A100-SXM4-80GB (UUID: {uuid})"


def test_the_links_of_some_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    text = smi(capsys, "topo", "-m", "-i", "1,3")
    rows = [line.split("\t") for line in text.splitlines()[:3]]
    assert [row[0] for row in rows] == ["", "GPU1", "GPU3"]
    assert [row[1:3] for row in rows] == [["GPU1", "GPU3"], [" X ", "NV12"], ["NV12", " X "]]
    assert rows[1][3:] == [f"0-{(os.cpu_count() or 1) - 1}", "0", "N/A"]
    assert smi(capsys, "topo", "--matrix").count("\t X \t") == 8
