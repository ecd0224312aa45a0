"""The texts by which one GPU is known."""

import pytest

from anyrig.devices.identity import bare_uuid, normalise_pci_bus_id, normalise_uuid

UUID = "8932f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (UUID, f"GPU-{UUID}"),
        (f"GPU-{UUID}", f"GPU-{UUID}"),
        (f" gpu-{UUID.upper()}\n", f"GPU-{UUID}"),
        (f"MIG-{UUID}", f"MIG-{UUID}"),
        (f"MIG-GPU-{UUID}/1/0", f"MIG-GPU-{UUID}/1/0"),
    ],
)
def test_uuids_are_written_as_nvml_writes_them(text: str, expected: str) -> None:
    assert normalise_uuid(text) == expected


def test_pytorch_and_nvml_meet_in_the_bare_uuid() -> None:
    assert bare_uuid(UUID) == bare_uuid(f"GPU-{UUID}") == bare_uuid(f"MIG-{UUID}") == UUID
    assert bare_uuid(f"MIG-GPU-{UUID}/1/0") == f"MIG-GPU-{UUID}/1/0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("3B:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
    ],
)
def test_pci_bus_ids_are_written_as_the_kernel_writes_them(text: str, expected: str) -> None:
    assert normalise_pci_bus_id(text) == expected
