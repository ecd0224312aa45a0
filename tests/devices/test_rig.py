import dataclasses
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

import anyrig
from anyrig.devices import rig as rig_module
from anyrig.devices.device import Device
from anyrig.devices.place import as_torch_device
from anyrig.devices.probes import cpu as cpu_probe
from anyrig.devices.rig import Rig, order_by_strength
from anyrig.errors import AnyrigError, DeviceFailedError, DeviceTextError, NoDeviceError
from anyrig.hardware import spec_of_key

CPU = Device(kind="cpu", index=None, name="EPYC")


def gpu(index: int, key: str | None = None, **more: object) -> Device:
    spec = spec_of_key(key) if key else None
    return Device(kind="cuda", index=index, name=key or "gpu", spec=spec, **more)


def test_detect_always_finds_a_rig_and_says_why() -> None:
    rig = Rig.detect()
    assert rig.lead.error is None
    assert rig.reason
    assert {device.type for device in rig.torch_devices} == {rig.kind}


def test_parse_auto_is_detect() -> None:
    assert Rig.parse("auto").devices == Rig.detect().devices


def test_detect_obeys_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYRIG_DEVICE", "cpu")
    for rig in (Rig.detect(), Rig.parse("auto")):
        assert (rig.kind, rig.reason) == ("cpu", "named by ANYRIG_DEVICE='cpu'")
    monkeypatch.setenv("ANYRIG_DEVICE", "auto")
    assert "ANYRIG_DEVICE" not in Rig.detect().reason
    for text in ("cuda:77", ""):
        monkeypatch.setenv("ANYRIG_DEVICE", text)
        with pytest.raises(DeviceTextError, match=f"ANYRIG_DEVICE: cannot take '{text}' as dev"):
            Rig.detect()


def test_only_a_text_can_be_parsed() -> None:
    with pytest.raises(DeviceTextError, match=r"reads a string, and 1 is of type int; .*cuda:1"):
        Rig.parse(1)  # type: ignore[arg-type]


def test_parse_cpu() -> None:
    rig = Rig.parse("cpu")
    assert (len(rig), rig.kind, rig.reason) == (1, "cpu", "named by 'cpu'")
    assert rig.torch_devices == (torch.device("cpu"),)
    assert rig.links == ()
    assert list(rig) == [rig[0]] == [rig.lead]
    assert str(rig) == f"cpu ({rig.lead.name})"


def test_the_fastest_leads_where_rates_are_known_for_all() -> None:
    ordered, reason = order_by_strength((gpu(0, "T4"), gpu(1, "A100-80GB"), gpu(2, "RTX-4090")))
    assert [device.index for device in ordered] == [1, 2, 0]
    assert reason == "the fastest first by published FLOP/s, then memory"


def test_all_puts_the_strongest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    present = (gpu(0, "T4"), gpu(1, "A100-80GB"), CPU)
    monkeypatch.setattr(rig_module, "survey", lambda: present)
    assert Rig.parse("all").devices == (present[1], present[0])


def test_the_cpu_s_others_are_all_processes_but_this_one() -> None:
    held = bytearray(2**29)  # far more than what changes between two readings
    reading = anyrig.devices.read("cpu")
    used_bytes = reading.device.total_bytes - reading.free_bytes
    assert reading.own_bytes > len(held)
    assert reading.others_bytes == max(0, used_bytes - reading.own_bytes)


def test_a_rate_known_for_some_only_decides_nothing() -> None:
    devices = (
        gpu(0, "A100-80GB", capability=(8, 0), total_bytes=80),
        gpu(1, capability=(9, 0), total_bytes=10),
        gpu(2, capability=(9, 0), total_bytes=20),
    )
    ordered, reason = order_by_strength(devices)
    assert [device.index for device in ordered] == [2, 1, 0]
    assert reason == "the highest compute capability first, then memory"


def test_of_equally_fast_gpus_the_larger_leads() -> None:
    gpus = [gpu(index, "T4", total_bytes=size) for index, size in enumerate((None, 8, 16))]
    ordered, _ = order_by_strength(tuple(gpus))
    assert [device.index for device in ordered] == [2, 1, 0]


def test_equals_keep_their_order() -> None:
    ordered, _ = order_by_strength(tuple(gpu(index, "T4") for index in range(4)))
    assert [device.index for device in ordered] == [0, 1, 2, 3]


def test_a_rig_is_valid_or_is_not_made() -> None:
    with pytest.raises(NoDeviceError, match="a rig needs at least one device"):
        Rig(())
    with pytest.raises(DeviceTextError, match="each device only once; got cuda:0, cuda:0"):
        Rig((gpu(0), gpu(0)))
    with pytest.raises(DeviceTextError, match="devices of one kind only; got cuda:0, cpu"):
        Rig((gpu(0), CPU))
    with pytest.raises(DeviceFailedError, match=r"cuda:0 \(gpu\) cannot be used: fell off"):
        Rig((gpu(0, error="fell off the bus"),))
    with pytest.raises(DeviceTextError, match=r"got device\(type='cpu'\). To name devices"):
        Rig((torch.device("cpu"),))  # type: ignore[arg-type]
    with pytest.raises(DeviceTextError, match=r"got 'cuda:0'. To name devices, write Rig\.parse"):
        Rig(("cuda:0",))  # type: ignore[arg-type]


def test_devices_and_rigs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CPU.name = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Rig((CPU,)).reason = "other"  # type: ignore[misc]


@pytest.mark.parametrize("spelling", [CPU, torch.device("cpu"), "cpu"])
def test_every_spelling_of_a_device(spelling: object) -> None:
    assert as_torch_device(spelling) == torch.device("cpu")


def test_misspelt_devices() -> None:
    with pytest.raises(
        DeviceTextError, match="cannot take 'gpu0' as devices: 'gpu0' is not a device"
    ):
        as_torch_device("gpu0")
    with pytest.raises(DeviceTextError, match="bool"):
        as_torch_device(True)
    if not torch.accelerator.is_available():
        with pytest.raises(DeviceTextError, match="device 1 is the index of an accelerator"):
            as_torch_device(1)


def test_errors_are_also_what_plain_pytorch_code_catches() -> None:
    assert issubclass(DeviceTextError, ValueError)
    assert issubclass(DeviceTextError, AnyrigError)
    assert DeviceTextError.exit_code == 2


def test_the_cpu_is_read_like_any_device() -> None:
    (cpu,) = Rig.parse("cpu")
    reading = anyrig.devices.read(cpu)
    assert 0 < reading.own_bytes < cpu.total_bytes
    assert 0 < reading.free_bytes <= cpu.total_bytes
    assert reading.used_bytes == cpu.total_bytes - reading.free_bytes
    assert 0 <= reading.utilization <= 1
    assert 0 < anyrig.devices.peak_bytes(cpu) < cpu.total_bytes
    assert anyrig.devices.peak_bytes(cpu) >= anyrig.devices.read(cpu).own_bytes * 0.9


def test_a_containers_limit_counts_where_it_is_lower_than_the_hosts_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_bytes = psutil.virtual_memory().total
    limits = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(cpu_probe, "_CGROUP_LIMITS", limits)

    def total_bytes() -> int:
        return Rig.parse("cpu").lead.total_bytes

    assert total_bytes() == host_bytes
    limits[1].write_text("9223372036854771712\n")  # what cgroup v1 has where there is no limit
    assert total_bytes() == host_bytes
    limits[1].write_text("1073741824\n")
    limits[0].write_text("max\n")
    assert total_bytes() == 2**30
    limits[0].write_text("536870912\n")
    assert total_bytes() == 2**29


def test_what_a_notebook_shows_is_a_line() -> None:
    gpus = [gpu(index, "A100-80GB", total_bytes=80 * 2**30) for index in range(8)]
    assert repr(gpus[0]) == "<Device cuda:0: A100-80GB, 80.00 GiB>"
    assert repr(gpu(1, error="it fell")) == "<Device cuda:1: gpu, ?, cannot be used: it fell>"
    assert repr(Rig(tuple(gpus))) == (
        "<Rig cuda:0, cuda:1, …, cuda:7 (8 x A100-80GB, 80.00 GiB): given>"
    )
    for count, shown in ((1, "0"), (4, "0, cuda:1, cuda:2, cuda:3"), (5, "0, cuda:1, …, cuda:4")):
        times = "" if count == 1 else f"{count} x "
        assert repr(Rig(tuple(gpus[:count]))) == (
            f"<Rig cuda:{shown} ({times}A100-80GB, 80.00 GiB): given>"
        )
    unequal = Rig((gpus[0], gpus[1], gpu(2, "T4", total_bytes=16 * 2**30)), "asked")
    assert repr(unequal) == (
        "<Rig cuda:0, cuda:1 (2 x A100-80GB, 80.00 GiB); cuda:2 (T4, 16.00 GiB): asked>"
    )
    assert len(repr(Rig.detect())) < 300


def test_a_uuid_names_only_what_has_no_index() -> None:
    assert str(gpu(1, uuid="GPU-1")) == "cuda:1 (gpu)"
    assert str(Device("cuda", None, "gpu", uuid="GPU-1")) == "cuda (gpu, GPU-1)"
    assert str(Device("cuda", None, "gpu")) == "cuda (gpu)"


def test_a_rank_has_the_only_device_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYRIG_DEVICE", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    rig = Rig.detect()
    assert (rig.kind, rig.reason) == ("cpu", "named by ANYRIG_DEVICE='cpu'")


def test_the_cpu_is_named_without_torch_and_without_a_look_at_other_devices() -> None:
    program = (
        "import sys, anyrig; anyrig.Rig.parse('cpu'); print({'torch', 'pynvml'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
