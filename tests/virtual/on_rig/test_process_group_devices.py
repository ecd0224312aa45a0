"""The network interfaces that process groups use, and the hash of their tensors."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from anyrig.virtual.process_group import _gloo_devices, _hash_tensors

pytestmark = pytest.mark.virtual_only("these are parts of virtual GPUs")


def test_gloo_uses_the_interfaces_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def devices(address: str | None, interfaces: str | None) -> list[object]:
        for name, value in (("MASTER_ADDR", address), ("GLOO_SOCKET_IFNAME", interfaces)):
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        return _gloo_devices(dist.ProcessGroupGloo)

    local = devices("localhost", None)
    assert len(local) == 1
    assert local is devices("localhost", "absent0"), "localhost ignores the interfaces"
    named = devices("10.0.0.1", "lo,lo")
    assert len(named) == 2
    assert named is devices("other-host", "lo,lo") is devices(None, "lo,lo")
    assert devices("127.0.0.1", "lo,lo") is not named
    with pytest.raises(RuntimeError, match="absent0"):
        devices("10.0.0.1", "absent0")


def test_equal_tensors_have_equal_hashes() -> None:
    x = torch.arange(3.0, device="cuda:1")
    assert _hash_tensors([x, x]) == _hash_tensors([x.cpu(), x.clone()])
    assert _hash_tensors([x]) != _hash_tensors([x + 1])
