"""Devices as PyTorch lists them: real GPUs if there are two, else virtual ones."""

import os

import pytest
import torch

import anyrig
from anyrig.devices import nvml
from anyrig.errors import DeviceTextError, MixedDevicesError

pytestmark = pytest.mark.gpus(2)


def test_detect_finds_them_with_their_facts() -> None:
    rig = anyrig.Rig.detect()
    assert rig.kind == "cuda"
    assert len(rig) == torch.cuda.device_count()
    for device in rig:
        properties = torch.cuda.get_device_properties(device.index)
        assert device.name == properties.name
        assert device.total_bytes == properties.total_memory
        assert device.capability == torch.cuda.get_device_capability(device.index)
        assert device.uuid.startswith(("GPU-", "MIG-"))
    assert len({device.uuid for device in rig}) == len(rig)


def test_named_by_index_and_uuid() -> None:
    first, second, *_ = anyrig.Rig.parse("cuda:0,cuda:1")
    assert anyrig.Rig.parse("1,0").devices == (second, first)
    assert anyrig.Rig.parse(second.uuid).devices == (second,)
    assert set(anyrig.Rig.parse("all")) == set(anyrig.Rig.detect())
    with pytest.raises(DeviceTextError, match="there is no cuda:99"):
        anyrig.Rig.parse("cuda:99")


def test_cuda_alone_is_the_current_device() -> None:
    with anyrig.use_device("cuda:1"):
        assert anyrig.Rig.parse("cuda").lead.index == 1
        assert anyrig.current_device() == torch.device("cuda:1")
        assert torch.empty(1, device="cuda").device.index == 1
    assert anyrig.current_device().index == 0


def test_the_device_before_comes_back_after_an_exception() -> None:
    with pytest.raises(KeyError), anyrig.use_device(1):
        raise KeyError
    assert torch.accelerator.current_device_index() == 0


def test_facts_by_device() -> None:
    assert anyrig.devices.device_count() == torch.cuda.device_count()
    assert anyrig.devices.device_name(1) == torch.cuda.get_device_name(1)
    assert anyrig.devices.device_capability("cuda:1") == torch.cuda.get_device_capability(1)


def test_a_reading_follows_what_is_allocated() -> None:
    device = anyrig.Rig.parse("cuda:1").lead
    torch.cuda.empty_cache()
    before = anyrig.devices.read(device)
    kept = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda:1")
    after = anyrig.devices.read(device)
    assert before.free_bytes - after.free_bytes >= kept.nbytes
    assert after.own_bytes - before.own_bytes >= kept.nbytes
    assert anyrig.devices.peak_bytes(device) >= kept.nbytes
    del kept
    torch.cuda.empty_cache()


def test_choosing_takes_the_emptier_one_and_gives_it_back() -> None:
    rig = anyrig.Rig.parse("cuda:0,cuda:1")
    kept = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda:0")
    with anyrig.choose(1, devices=rig) as choice:
        assert choice.rig.lead.index == 1
        assert len(choice.leases) == 1
    del kept
    torch.cuda.empty_cache()


def test_links_know_peer_access_and_the_path() -> None:
    (link,) = anyrig.Rig.parse("cuda:0,cuda:1").links
    assert link.peer_access == torch.cuda.can_device_access_peer(0, 1)
    path = nvml.link(link.first.uuid, link.second.uuid)
    assert (link.kind, link.bytes_per_second) == (path.kind, path.bytes_per_second)
    assert link.kind is not None
    assert link.bytes_per_second > 1e9


def test_where_a_model_lies() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    anyrig.move(model, "cuda:1")
    assert anyrig.transfer.device_of(model) == torch.device("cuda:1")
    model[0].cpu()
    with pytest.raises(MixedDevicesError, match=r"\.0\.weight on cpu, .*\.1\.weight on cuda:1"):
        anyrig.transfer.device_of(model)


def test_defaults_reach_a_second_device() -> None:
    with anyrig.devices.defaults(device="cuda:1", dtype=torch.float64):
        layer = torch.nn.Linear(2, 2)
    assert layer.weight.device == torch.device("cuda:1")
    assert layer.weight.dtype is torch.float64
    assert torch.zeros(1).device.type == "cpu"


def test_defaults_make_a_device_the_current_one_meanwhile() -> None:
    with anyrig.devices.defaults(device="cuda:1"):
        assert torch.cuda.current_device() == 1
        assert torch.empty(1, device="cuda").device.index == 1
    assert torch.cuda.current_device() == 0


@pytest.mark.gpus(1)
def test_a_forked_process_is_warned_that_it_uses_the_cpu() -> None:
    torch.ones(1, device="cuda:0")
    child = os.fork()
    if child == 0:
        found = 1
        try:
            for use in (anyrig.Rig.detect, lambda: anyrig.choose(1, lease=False)):
                with pytest.warns(UserWarning, match="no GPU, because CUDA had started before"):
                    use()
            found = 0
        finally:
            os._exit(found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
