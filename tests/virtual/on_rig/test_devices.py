from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from anyrig.virtual import load_extension
from anyrig.virtual.device_properties import DeviceProperties

BEYOND = 9
DEVICE = "cuda:1"


def test_a_device_is_a_cuda_device() -> None:
    tensor = torch.ones(2, device=DEVICE)
    assert tensor.is_cuda
    assert tensor.device == torch.device(DEVICE)
    assert tensor.get_device() == torch.device(DEVICE).index
    assert torch.cuda.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


@pytest.mark.virtual_only("it has eight GPUs")
def test_the_gpus_are_counted() -> None:
    assert torch.cuda.device_count() == 8


def test_an_index_beyond_the_rig_is_refused_in_cudas_words() -> None:
    with pytest.raises(
        torch.AcceleratorError, match=r"CUDA error: invalid device ordinal\nGPU"
    ) as e:
        torch.ones(1, device=f"cuda:{BEYOND}")
    assert e.value.error_code == 101
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.cuda.set_device(BEYOND)
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.ones(1).cuda(BEYOND)
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(BEYOND)


@pytest.mark.virtual_only("it asks the library of virtual GPUs")
def test_which_devices_a_process_sees() -> None:
    core = load_extension()
    uuids = [facts.uuid for facts in core.devices()]
    fifth = next(
        uuids[5][:length]
        for length in range(1, 99)
        if sum(uuid.startswith(uuids[5][:length]) for uuid in uuids) == 1
    )
    cases: dict[str | None, list[int]] = {
        None: list(range(8)),
        "": [],
        "2,0": [2, 0],
        " 3 ,\t1 ": [3, 1],
        "7": [7],
        "1,8,2": [1],  # an invalid index ends the list
        "1,-1,2": [1],
        "1,,2": [1],
        "1,1": [],
        "2,1,02": [],
        uuids[5]: [5],
        f"{uuids[5]},0": [5, 0],
        fifth: [5],
        fifth[:-1]: [],  # an ambiguous prefix
        f"{uuids[5]},5": [],
        uuids[5] + "0": [],
    }
    assert {text: core.visible_positions(text) for text in cases} == cases


def test_the_current_device_is_where_cuda_means() -> None:
    assert torch.ones(1, device="cuda").get_device() == 0
    with torch.cuda.device(2):
        assert torch.cuda.current_device() == 2
        assert torch.ones(1).cuda().get_device() == 2
        assert torch.empty(1, device="cuda").get_device() == 2
    assert torch.cuda.current_device() == 0
    with torch.cuda.device_of(torch.ones(1, device="cuda:3")):
        assert torch.cuda.current_device() == 3
    with torch.device("cuda:1"):
        assert torch.ones(1).get_device() == 1


@pytest.mark.parametrize(
    ("capability", "threads", "opt_in_kibibytes", "shared_kibibytes"),
    [
        ((7, 0), 2048, 96, 96),
        ((7, 5), 1024, 64, 64),
        ((8, 0), 2048, 163, 164),
        ((8, 6), 1536, 99, 100),
        ((8, 7), 1536, 48, 49),
        ((8, 9), 1536, 99, 100),
        ((9, 0), 2048, 227, 228),
        ((10, 0), 2048, 227, 228),
        ((12, 0), 1536, 99, 100),
        ((12, 1), 1536, 48, 49),
    ],
)
def test_threads_and_shared_memory_are_those_of_the_programming_guide(
    capability: tuple[int, int], threads: int, opt_in_kibibytes: int, shared_kibibytes: int
) -> None:
    major, minor = capability
    facts = SimpleNamespace(
        name="gpu",
        capability_major=major,
        capability_minor=minor,
        memory_bytes=2**30,
        multiprocessors=1,
        uuid="GPU-00000000-0000-0000-0000-000000000000",
        position=4,
        gpu=SimpleNamespace(l2_bytes=0.0, clock_hertz=0.0),
    )
    properties = DeviceProperties(facts)
    assert properties.max_threads_per_multi_processor == threads
    assert properties.shared_memory_per_block_optin == opt_in_kibibytes * 1024
    assert properties.shared_memory_per_multiprocessor == shared_kibibytes * 1024
    assert (properties.warp_size, properties.regs_per_multiprocessor) == (32, 65536)
    assert (properties.shared_memory_per_block, properties.pci_bus_id) == (48 * 1024, 5)
    assert repr(properties) == (
        f"_CudaDeviceProperties(name='gpu', major={capability[0]}, minor={capability[1]}, "
        "total_memory=1024MB, multi_processor_count=1, "
        "uuid=00000000-0000-0000-0000-000000000000, pci_bus_id=5, pci_device_id=0, "
        "pci_domain_id=0)"
    )
    with pytest.raises(AttributeError, match="'DeviceProperties' object has no attribute 'tpu'"):
        properties.tpu  # noqa: B018


@pytest.mark.virtual_only("the facts are those of A100s")
def test_what_a_device_is_called_and_has() -> None:
    properties = torch.cuda.get_device_properties(0)
    assert properties == torch.cuda.get_device_properties()
    assert properties.name == torch.cuda.get_device_name(0) == "NVIDIA A100-SXM4-80GB"
    assert torch.cuda.get_device_capability(0) == (8, 0)
    assert properties.multi_processor_count == 108
    assert properties.total_memory == torch.cuda.mem_get_info(0)[1]
    assert len({str(torch.cuda.get_device_properties(i).uuid) for i in range(8)}) == 8
    assert bytes(properties.uuid.bytes).hex() == str(properties.uuid).replace("-", "")
    assert len({torch.cuda.get_device_properties(i).pci_bus_id for i in range(8)}) == 8
    assert properties.max_threads_per_block == 1024
    assert properties.shared_memory_per_multiprocessor == 164 * 1024
    assert "NVIDIA A100" in repr(properties)
    assert f"pci_bus_id={properties.pci_bus_id}, pci_device_id=0" in repr(properties)
    assert (properties.L2_cache_size, properties.clock_rate) == (40 * 2**20, 1_410_000)
    with pytest.raises(AttributeError, match=r"do not know the memory_bus_width of NVIDIA A100"):
        properties.memory_bus_width  # noqa: B018
    assert getattr(properties, "memory_clock_rate", None) is None
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.can_device_access_peer(0, 1)
    assert not torch.cuda.can_device_access_peer(1, 1)


@pytest.mark.virtual_only("the versions are those that virtual GPUs report")
def test_the_build_is_or_passes_for_one_of_cuda() -> None:
    # The values are tested in test_torch_build.py.
    assert torch.version.cuda is not None
    major, minor = map(int, torch.version.cuda.split("."))
    assert torch._C._cuda_getCompiledVersion() == 1000 * major + 10 * minor
    numbers = [75, 80, 86, 90, 100, 120]
    assert torch.cuda.get_arch_list() == [f"sm_{number}" for number in numbers]
    assert torch.cuda.get_gencode_flags() == " ".join(
        f"-gencode compute=compute_{number},code=sm_{number}" for number in numbers
    )
    assert torch.cuda.nccl.version() >= (2, 28, 9)
    assert torch.backends.cuda.is_built()
    assert not torch.backends.cudnn.is_acceptable(torch.ones(1, device="cuda"))
    assert torch.backends.cudnn.version() >= 91900


@pytest.mark.filterwarnings("ignore:The torch.cuda.*DtypeTensor constructors")
def test_the_typed_tensor_classes() -> None:
    tensor = torch.cuda.FloatTensor(2, 3)
    assert tensor.is_cuda
    assert tensor.dtype == torch.float32
    assert isinstance(torch.ones(1, dtype=torch.half, device="cuda"), torch.cuda.HalfTensor)
    assert torch.ones(1).type("torch.cuda.DoubleTensor").is_cuda
    assert torch.ones(1, device="cuda").type() == "torch.cuda.FloatTensor"


@pytest.mark.filterwarnings("ignore:The torch.cuda.*DtypeTensor constructors")
def test_the_typed_tensor_classes_as_types_and_constructors() -> None:
    kind = torch.cuda.HalfTensor
    there = torch.ones(1).type(kind)
    assert (there.device, there.dtype) == (torch.device("cuda", 0), torch.half)
    assert torch.nn.Linear(1, 1).type(kind).weight.type() == "torch.cuda.HalfTensor"
    assert (kind.__module__, kind.__name__) == ("torch.cuda", "HalfTensor")
    assert kind(there).data_ptr() == there.data_ptr()
    assert kind([[1, 2]], device=DEVICE).device == torch.device(DEVICE)
    for refused in (torch.ones(1), 1.0):
        with pytest.raises(TypeError):
            kind(refused)
    with pytest.raises(RuntimeError, match="expects device type: cuda but device type: cpu"):
        kind(1, device="cpu")


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.filterwarnings(r"ignore:torch.sparse.SparseTensor\(.*is deprecated")
def test_the_typed_classes_of_sparse_tensors() -> None:
    kind = torch.cuda.sparse.FloatTensor
    indices = torch.tensor([[0, 1], [1, 0]], device=DEVICE)
    values = torch.ones(2, device=DEVICE)
    tensor = kind(indices, values, torch.Size([2, 3]))
    assert (tensor.device, tensor.type()) == (values.device, "torch.cuda.sparse.FloatTensor")
    assert isinstance(tensor, kind)
    assert not isinstance(tensor, torch.cuda.FloatTensor)
    assert tensor.type(torch.cuda.sparse.DoubleTensor).dtype == torch.double


def test_cudnn_has_a_version() -> None:
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() >= 90000
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=True):
        assert torch.nn.LSTM(2, 3).cuda()(torch.ones(4, 2, device="cuda"))[0].shape == (4, 3)


def test_marks_and_the_runtime() -> None:
    untracked = -2  # while no tool such as Nsight is attached
    assert torch.cuda.nvtx.range_push("outer") == untracked
    torch.cuda.nvtx.mark("here")
    assert torch.cuda.nvtx.range_pop() == untracked
    with torch.cuda.nvtx.range("inner"):
        pass
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("one"))
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()


def test_the_default_device_can_be_virtual() -> None:
    torch.set_default_device(DEVICE)
    try:
        assert torch.ones(1).device == torch.device(DEVICE)
    finally:
        torch.set_default_device(None)
