"""Reading CUDA_VISIBLE_DEVICES as CUDA does, and writing it by UUID."""

import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyrig.devices.device import Device
from anyrig.devices.hiding import hide_all, write_visibility
from anyrig.devices.visibility import VisibilityWarning, parse_visibility, read_visibility
from anyrig.errors import NoDeviceError

FASTEST_FIRST = "indices with the fastest GPU first, unlike nvidia-smi's, since "
A, B, C = "GPU-8932f937-aaaa", "GPU-8932f937-bbbb", "GPU-77777777-cccc"


@pytest.mark.parametrize(
    ("text", "indices", "reason"),
    [
        (None, None, "CUDA_VISIBLE_DEVICES is not set: every device is visible"),
        ("", (), "CUDA_VISIBLE_DEVICES is empty: no device is visible"),
        ("-1", (), "CUDA_VISIBLE_DEVICES='-1': no device is visible; '-1' ends the list"),
        (
            "0,2,-1,1",
            (0, 2),
            "CUDA_VISIBLE_DEVICES='0,2,-1,1': names 0, 2; '-1' ends the list, and '1' is not read",
        ),
        (
            "1,1",
            (),
            "CUDA_VISIBLE_DEVICES='1,1': no device is visible; '1' appears twice, which hides "
            "every device",
        ),
        (
            " 1gpu2 ,2ampere",
            (1, 2),
            "CUDA_VISIBLE_DEVICES=' 1gpu2 ,2ampere': names 1, 2; "
            f"{FASTEST_FIRST}CUDA_DEVICE_ORDER is not set",
        ),
    ],
)
def test_indices(text: str | None, indices: tuple[int, ...] | None, reason: str) -> None:
    found = parse_visibility(text)
    assert (found.text, found.indices, found.uuids) == (text, indices, None)
    assert found.reason == str(found) == reason


@pytest.mark.parametrize(
    ("text", "uuids", "reason"),
    [
        ("GPU-8932f", ("GPU-8932f",), "CUDA_VISIBLE_DEVICES='GPU-8932f': names GPU-8932f"),
        (
            "MIG-1,0",
            ("MIG-1",),
            "CUDA_VISIBLE_DEVICES='MIG-1,0': names MIG-1; '0' ends the list",
        ),
        (
            "GPU-1, GPU-2",
            ("GPU-1",),
            "CUDA_VISIBLE_DEVICES='GPU-1, GPU-2': names GPU-1; ' GPU-2' ends the list",
        ),
        ("MIG-GPU-1/0/0", ("MIG-GPU-1/0/0",), None),
        ("GPU-1,GPU-1", (), None),
    ],
)
def test_uuids(text: str, uuids: tuple[str, ...], reason: str | None) -> None:
    found = parse_visibility(text)
    assert (found.indices, found.uuids) == (None, uuids)
    assert reason in (None, found.reason)


def test_the_order_of_indices_is_explained() -> None:
    assert parse_visibility("0", order="PCI_BUS_ID").reason == (
        "CUDA_VISIBLE_DEVICES='0': names 0; "
        "indices along the PCI bus, as set by CUDA_DEVICE_ORDER and used by nvidia-smi"
    )
    assert parse_visibility("0", order="FASTEST_FIRST").reason.endswith(
        f"{FASTEST_FIRST}CUDA_DEVICE_ORDER is 'FASTEST_FIRST'"
    )


entries = st.one_of(
    st.sampled_from(["0", "1", "2", "-1", "-0", "+1", " 1 ", "1gpu2", "", "gpu", "GPU-", "MIG-1"]),
    st.text("0123+-, GPUMIGabc", max_size=6),
)


@given(st.lists(entries, max_size=5).map(",".join))
def test_every_text_is_read_as_pytorch_reads_it(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", text)
        patch.delenv("HIP_VISIBLE_DEVICES", raising=False)
        try:
            expected = torch.cuda._parse_visible_devices()
        except ValueError:
            return  # PyTorch calls int("+"); CUDA does not
        found = read_visibility()
    assert [*(found.indices or ()), *(found.uuids or ())] == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, (A, B, C)),
        ("", ()),
        ("2,0", (C, A)),
        ("1,9,0", (B,)),
        ("0,3,1", (A,)),  # 3 is the first index that there is no device for
        ("GPU-7,GPU-8932f937-b", (C, B)),
        ("GPU-7,GPU-8932f937,GPU-8932f937-a", (C,)),  # ambiguous
        ("GPU-8932f937-a,GPU-8932f937-aa", ()),  # one device twice
    ],
)
def test_the_devices_that_cuda_will_show(text: str | None, shown: tuple[str, ...]) -> None:
    assert parse_visibility(text).select((A, B, C)) == shown


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_VISIBLE_DEVICE",
        "CUDA_VISIBLE_DEVICES_",
        "CUDA_VISBLE_DEVICES",
        "VISIBLE_CUDA_DEVICES",
        "cuda_visible_devices",
    ],
)
def test_a_misspelling_is_warned_of_once(name: str) -> None:
    environ = {name: "1", "CUDA_VISIBLE_DEVICES": "0"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # as Python begins, for warnings of `__main__`
        for _ in range(2):
            assert read_visibility(environ).indices == (0,)
    (only,) = caught
    assert only.category is VisibilityWarning
    assert str(only.message) == (
        f"{name}='1' is set, but CUDA does not read it: the variable is called CUDA_VISIBLE_DEVICES"
    )


@pytest.mark.parametrize(
    "name",
    [
        "HIP_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES_OLD",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    ],
)
def test_other_names_are_no_misspelling(name: str) -> None:
    assert read_visibility({name: "1"}).text is None


def gpu(uuid: str | None) -> Device:
    return Device("cuda", 0, "Some Gpu", uuid=uuid)


def test_devices_are_written_by_uuid_in_their_order() -> None:
    environ: dict[str, str] = {}
    found = write_visibility([gpu("GPU-2"), gpu("1"), "GPU-2"], environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1"}
    assert found.uuids == ("GPU-2", "GPU-1")
    assert hide_all(environ).indices == ()
    assert environ == {"CUDA_VISIBLE_DEVICES": "-1"}


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([], "no device is named; to hide every device, call hide_all()"),
        (
            [gpu("GPU-1"), gpu(None)],
            "cuda:0 (Some Gpu) has no UUID for CUDA_VISIBLE_DEVICES; only CUDA devices have one",
        ),
        (
            ["GPU-1", "MIG-2"],
            "CUDA shows either whole GPUs or MIG instances, never both: GPU-1, MIG-2; leave one "
            "kind out",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(devices: list[Device | str], message: str) -> None:
    environ: dict[str, str] = {}
    with pytest.raises(NoDeviceError) as caught:
        write_visibility(devices, environ)
    assert str(caught.value) == message
    assert environ == {}


def test_the_process_itself_is_written_while_cuda_has_not_started() -> None:
    # In a process of its own, since in this one another test may have started CUDA.
    program = """
import os
from anyrig.devices import write_visibility
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
write_visibility(["GPU-1"])
print(os.environ["CUDA_VISIBLE_DEVICES"])
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("GPU-1\n", "")
