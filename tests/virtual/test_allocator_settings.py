"""The settings of PYTORCH_ALLOC_CONF reach the allocator of a virtual GPU."""

from __future__ import annotations

import pytest
import torch
from on_a_rig import output_of_lines

MIB = 2**20

# Prints the bytes reserved for a first request of 3 MiB, and the size of its block.
RESERVED = """
from anyrig.virtual import install
install("1x2GiB")
import torch
x = torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
"""


@pytest.mark.parametrize(
    ("variable", "settings", "reserved_mib", "allocated_mib"),
    [
        ("PYTORCH_ALLOC_CONF", "", 20, 3),
        ("PYTORCH_ALLOC_CONF", "large_segment_size_mb:40", 40, 3),
        ("PYTORCH_CUDA_ALLOC_CONF", "large_segment_size_mb:40", 40, 3),
        ("PYTORCH_ALLOC_CONF", "backend:native,large_segment_size_mb:40", 40, 3),
    ],
)
def test_a_setting_changes_the_sizes(
    variable: str,
    settings: str,
    reserved_mib: int,
    allocated_mib: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, settings)
    assert output_of_lines(RESERVED)[0].split() == [
        str(reserved_mib * MIB),
        str(allocated_mib * MIB),
    ]


def test_power_of_two_divisions_round_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5 MiB lies between 4 and 8 MiB; the next of the two steps is 6 MiB.
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:2")
    lines = RESERVED.replace("3 * 2**20", "5 * 2**20")
    assert output_of_lines(lines)[0].split() == [str(20 * MIB), str(6 * MIB)]


def test_a_running_program_can_change_the_settings() -> None:
    assert output_of_lines(
        """
        from anyrig.virtual import install
        install("2xT4")
        import torch
        MIB = 2**20
        x = torch.empty(9 * MIB, dtype=torch.uint8, device="cuda:1")
        torch._C._accelerator_setAllocatorSettings("backend:native,roundup_power2_divisions:2")
        y = torch.empty(9 * MIB, dtype=torch.uint8, device="cuda:1")
        print(torch.cuda.memory_allocated(1) // MIB)
        try:
            torch._C._accelerator_setAllocatorSettings("no_such_setting:1")
        except ValueError as error:
            print(error)
        """
    ) == ["21", "Unrecognized key 'no_such_setting' in Accelerator allocator config."]


# Prints the actions that were traced, whether the segment can grow, and the settings.
SNAPSHOT = """
from anyrig.virtual import install
install("1x2GiB")
import torch
torch.cuda.memory._record_memory_history(context=None)
x = torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda")
del x
torch.cuda.empty_cache()
x = torch.empty(1, device="cuda")
snapshot = torch.cuda.memory._snapshot()
print(*[entry["action"] for entry in snapshot["device_traces"][0]])
print(*[segment["is_expandable"] for segment in snapshot["segments"]])
settings = snapshot["allocator_settings"]
divisions = settings.pop("roundup_power2_divisions")
print(*settings.items(), *{*divisions.values()}, sep="\\n")
"""


def test_a_snapshot_has_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "expandable_segments:True,max_split_size_mb:200,roundup_power2_divisions:4"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"{text},garbage_collection_threshold:0.5")
    actions, expandable, *settings = output_of_lines(SNAPSHOT)
    end = "free_requested free_completed segment_unmap segment_map alloc"
    assert actions == f"segment_map alloc {end}"
    assert expandable == "True"
    assert settings == [
        f"('PYTORCH_CUDA_ALLOC_CONF', '{text},garbage_collection_threshold:0.5')",
        f"('max_split_size', {200 * MIB})",
        "('garbage_collection_threshold', 0.5)",
        "('expandable_segments', True)",
        "4",
    ]


# Prints the memory of a first product beyond operands and result, which is cuBLAS's workspace.
WORKSPACE = """
from anyrig.virtual import install
install("1xA100-80GB")
import torch
a = torch.ones(16, 16, device="cuda")
b = a @ a
print(torch.cuda.memory_allocated() - 2048)
"""


@pytest.mark.skipif(torch.__version__ >= (2, 15), reason="from 2.15 on a call frees its workspace")
@pytest.mark.parametrize(
    ("config", "kib"), [(":16:8", 128), (":4096:2", 8192), (":4096:2 x:5::16:8:", 8192 + 128)]
)
def test_cublas_workspace_config_sets_the_workspace_size(config: str, kib: int) -> None:
    assert output_of_lines(WORKSPACE, CUBLAS_WORKSPACE_CONFIG=config) == [str(kib * 1024)]
