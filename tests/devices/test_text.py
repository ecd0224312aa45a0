"""From a person's text to devices, on rigs this machine does not have."""

import pytest

from anyrig.devices.device import Device
from anyrig.devices.text import select_devices
from anyrig.errors import DeviceTextError

CPU = Device(kind="cpu", index=None, name="EPYC")
GPUS = tuple(
    Device(kind="cuda", index=index, name="A100", uuid=f"GPU-{letter * 8}-0000")
    for index, letter in enumerate("abc")
)
HIDDEN = Device(kind="cuda", index=None, name="T4", uuid="GPU-dddddddd-0000", error="hidden")
SERVER = (*GPUS, HIDDEN, CPU)
LAPTOP = (CPU,)
MIXED = (*GPUS, *(Device(kind="xpu", index=index, name="Arc") for index in range(2)), CPU)
APPLE = (Device(kind="mps", index=0, name="M3"), CPU)


@pytest.mark.parametrize(
    ("text", "present", "expected"),
    [
        ("all", SERVER, "cuda:0 cuda:1 cuda:2"),
        ("cpu", SERVER, "cpu"),
        ("cpu:0", SERVER, "cpu"),
        ("cuda", SERVER, "cuda:0"),
        ("cuda:1", SERVER, "cuda:1"),
        ("0,2", SERVER, "cuda:0 cuda:2"),
        ("2,0", SERVER, "cuda:2 cuda:0"),
        ("2", SERVER, "cuda:2"),
        ("cuda:0,cuda:2", SERVER, "cuda:0 cuda:2"),
        ("cuda:0,2", SERVER, "cuda:0 cuda:2"),
        ("xpu:1,0", MIXED, "xpu:1 xpu:0"),  # the kind before the index, not the preferred one
        ("1,xpu:1,0", MIXED, "cuda:1 xpu:1 xpu:0"),
        ("cpu,cuda:1", SERVER, "cpu cuda:1"),
        ("cuda:0, cuda:2", SERVER, "cuda:0 cuda:2"),
        ("GPU-bbbb", SERVER, "cuda:1"),
        ("GPU-c,GPU-a", SERVER, "cuda:2 cuda:0"),
        ("mps", APPLE, "mps:0"),
        ("all", APPLE, "mps:0"),
        ("0", APPLE, "mps:0"),
    ],
)
def test_named(text: str, present: tuple[Device, ...], expected: str) -> None:
    assert [device.text for device in select_devices(text, present)] == expected.split()


def test_a_hidden_gpu_is_found_by_uuid_with_its_error() -> None:
    assert select_devices("GPU-dd", SERVER) == (HIDDEN,)


@pytest.mark.parametrize(
    ("text", "present", "what"),
    [
        ("", SERVER, "it names no device"),
        ("cuda: 0", SERVER, "'cuda: 0' is not a device"),
        ("cuda:9", SERVER, "there is no cuda:9"),
        ("cuda:-1", SERVER, "'cuda:-1' is not a device"),
        ("cuda:", SERVER, "'cuda:' is not a device"),
        ("gpu0", SERVER, "'gpu0' is not a device"),
        ("CUDA:0", SERVER, "'CUDA:0' is not a device"),
        ("meta", SERVER, "'meta' is not a device"),
        ("9", SERVER, "there is no cuda:9"),
        ("9" * 9, SERVER, f"there is no cuda:{'9' * 9}"),
        ("0" * 10, SERVER, "no index has that many digits"),
        (f"cuda:{'0' * 10}", SERVER, "no index has that many digits"),
        ("²", SERVER, "'²' is not a device"),
        ("0,", SERVER, "it names no device"),
        ("0,0", SERVER, "it names cuda:0 twice"),
        ("cuda:0,GPU-aaaa", SERVER, "it names cuda:0 twice"),
        ("GPU-", SERVER, "'GPU-' is not a device"),
        ("GPU-ffff", SERVER, "no device has a UUID that starts with 'GPU-ffff'"),
        ("mps", SERVER, "there is no mps:0"),
        ("cuda", LAPTOP, "there is no cuda:0"),
        ("all", LAPTOP, "there is no working accelerator; 'auto' would take the CPU"),
        ("0", LAPTOP, "0 is the index of an accelerator, and none works"),
        ("cpu:1", LAPTOP, "there is no cpu:1"),
    ],
)
def test_refused_with_what_there_is(text: str, present: tuple[Device, ...], what: str) -> None:
    with pytest.raises(DeviceTextError) as refusal:
        select_devices(text, present)
    message = str(refusal.value)
    assert message.startswith(f"cannot take {text!r} as devices: {what}. There are: ")
    assert all(str(device) in message for device in present)


def test_two_uuids_with_the_same_start() -> None:
    twins = tuple(
        Device(kind="cuda", index=index, name="A100", uuid=f"GPU-aaaa{index}") for index in range(2)
    )
    with pytest.raises(DeviceTextError, match="2 devices have a UUID that starts with 'GPU-aaaa'"):
        select_devices("GPU-aaaa", (*twins, CPU))


def test_what_cannot_be_used_is_listed_with_its_reason() -> None:
    with pytest.raises(DeviceTextError, match=r"Not usable: cuda \(T4, GPU-d+-0000\): hidden"):
        select_devices("cuda:9", SERVER)


@pytest.mark.parametrize("text", ["cuda", "cuda:1", "0,1", "all", "GPU-aaaa", "gpu0", "mps", ""])
def test_without_gpus_the_way_to_virtual_ones_is_named(text: str) -> None:
    with pytest.raises(DeviceTextError) as refusal:
        select_devices(text, LAPTOP)
    hinted = str(refusal.value).endswith(
        ". To run on virtual GPUs: anyrig rehearse --rig 2xT4 SCRIPT"
    )
    assert hinted is (text not in ("gpu0", "mps", ""))
    with pytest.raises(DeviceTextError) as refusal:
        select_devices("cuda:9", SERVER)
    assert "rehearse" not in str(refusal.value)


@pytest.mark.parametrize(
    ("present", "examples"),
    [
        (SERVER, "'auto', 'all', 'cpu', 'cuda:0' or 'cuda:0,cuda:1'"),
        ((GPUS[2], HIDDEN, CPU), "'auto', 'all', 'cpu' or 'cuda:2'"),
        (LAPTOP, "'auto' or 'cpu'"),
    ],
)
def test_the_examples_are_devices_that_are_there(
    present: tuple[Device, ...], examples: str
) -> None:
    with pytest.raises(DeviceTextError, match=f"Write for example {examples}"):
        select_devices("cuda:9", present)
    for text in examples.replace(" or ", ", ").split(", "):
        if text != "'auto'":
            assert select_devices(text.strip("'"), present)
