"""Tensors of virtual GPUs in calls of `torch.distributed.rpc`."""

from __future__ import annotations

from on_a_rig import PROGRAMS, output_of

PROGRAM = str(PROGRAMS / "calls_by_rpc.py")


def test_device_maps() -> None:
    assert output_of("-m", "anyrig", "rehearse", "--rig", "2x1GiB", PROGRAM).splitlines() == [
        "cuda:1 cuda:0 torch.Size([3, 2]) (1, 3)",
        "512",
        "[[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]",
        "cuda:0 cpu [[2.0], [2.0]]",
        "TensorPipe RPC backend only supports CPU tensors by default",
        "tensor([4., 4., 4.], device='cuda:0')",
    ]


def test_shape_only_mode() -> None:
    command = ("-m", "anyrig", "rehearse", "--rig", "2x1GiB", "--shape-only", PROGRAM)
    assert output_of(*command, "shape-only").splitlines() == [
        "cuda:1 cuda:0 torch.Size([3, 2]) (1, 3)",
        "512",
        "anyrig: RPC moves a tensor of a virtual GPU to the CPU, but in shape-only mode the tensor "
        "has no values",
    ]
