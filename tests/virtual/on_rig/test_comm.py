"""`torch.cuda.comm` and `torch.cuda.nccl`: what they return and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch.cuda import comm, nccl


def test_broadcasting_keeps_the_tensors_of_the_first_device() -> None:
    # Two of one type, which travel in one piece.
    tensors = [
        torch.ones(3, device=0),
        torch.ones(4, device=0),
        torch.zeros(2, dtype=torch.int64, device=0),
    ]
    first, second = comm.broadcast_coalesced(tensors, (0, 1))
    assert all(copy is tensor for copy, tensor in zip(first, tensors, strict=True))
    assert [copy.device.index for copy in second] == [1, 1, 1]
    assert [copy.dtype for copy in second] == [torch.float32, torch.float32, torch.int64]
    # Writing to one leaves the others' versions, which autograd compares.
    versions = [copy._version for copy in second]
    second[0].zero_()
    assert [copy._version for copy in second[1:]] == versions[1:]


def test_each_tensor_that_is_broadcast_counts_its_own_versions() -> None:
    tensors = [torch.ones(3, device="cuda:0"), torch.ones(2, device="cuda:0")]
    _, (one, other) = comm.broadcast_coalesced(tensors, (0, 1))
    one.add_(1)
    assert (one._version, other._version) == (1, 0)


def test_broadcasting_sparse_tensors() -> None:
    dense = torch.eye(3, device=0)
    _, second = comm.broadcast_coalesced([dense.to_sparse(), dense], (0, 1))
    assert [copy.device.index for copy in second] == [1, 1]
    assert torch.equal(second[0].to_dense().cpu(), dense.cpu())


@pytest.mark.parametrize("dim", [0, -2])
def test_scattering_names_what_does_not_fit(dim: int) -> None:
    x = torch.randn(4, 4)
    parts = [part.to(i) for i, part in enumerate(x.chunk(2))]
    with pytest.raises(RuntimeError, match="Expected at least one device to scatter to"):
        comm.scatter(x, (), dim=dim)
    with pytest.raises(RuntimeError, match="Expected devices and chunk_sizes to be of same length"):
        comm.scatter(x, (0, 1, 2), chunk_sizes=(2, 2), dim=dim)
    with pytest.raises(RuntimeError, match="but output tensor at index 0 has device 'cpu'"):
        comm.scatter(x, dim=dim, out=[parts[0].cpu(), parts[1]])
    with pytest.raises(RuntimeError, match="Output tensor at index 0 has incorrect shape"):
        comm.scatter(x, dim=dim, out=[parts[0].unsqueeze(0), parts[1]])
    with pytest.raises(RuntimeError, match="Expected 4, but got total size 3"):
        comm.scatter(x, dim=dim, out=[parts[0][1:], parts[1]])
    with pytest.raises(IndexError, match="Dimension out of range"):
        comm.scatter(x, (0, 1), dim=2)


def test_scattering_on_a_stream_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"at index 0 \(was 1\)"):
        comm.scatter(torch.ones(4), (0, 1), streams=[torch.cuda.Stream(1), None])


def test_gathering_names_what_does_not_fit() -> None:
    x, y = torch.ones(2, 5, device=0), torch.ones(2, 5, device=1)
    with pytest.raises(RuntimeError, match="Expected at least one tensor to gather from"):
        comm.gather(())
    with pytest.raises(RuntimeError, match="but tensor at index 0 has device 'cpu'"):
        comm.gather((x.cpu(), y))
    with pytest.raises(RuntimeError, match="Expected all input tensors to have the same number"):
        comm.gather((x, y.unsqueeze(0)))
    with pytest.raises(RuntimeError, match=r"Input tensor at index 1 has invalid shape \[5, 2\]"):
        comm.gather((x, y.t()), dim=0)
    with pytest.raises(RuntimeError, match="Expected out tensor to have shape"):
        comm.gather((x, y), out=torch.empty(2, 5, device=1))
    assert comm.gather((x, y), dim=-1, destination="cpu").shape == (2, 10)


def test_gathering_keeps_channels_last() -> None:
    parts = [
        torch.ones(1, 3, 4, 4, device=device).to(memory_format=torch.channels_last)
        for device in range(2)
    ]
    gathered = comm.gather(parts, dim=0, destination=0)
    assert gathered.is_contiguous(memory_format=torch.channels_last)
    parts[1] = parts[1].contiguous()
    assert comm.gather(parts, dim=0, destination=0).is_contiguous()


def test_collectives_of_one_process() -> None:
    def inputs() -> list[torch.Tensor]:
        return [torch.full((4,), i + 1.0, device=i) for i in range(3)]

    tensors = inputs()
    nccl.all_reduce(set(tensors))
    assert [tensor.tolist() for tensor in tensors] == [[6.0] * 4] * 3
    tensors, largest = inputs(), 2
    nccl.all_reduce(tensors, op=largest)
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 4] * 3
    outputs = [torch.empty(12, device=i) for i in range(3)]
    nccl.all_gather(inputs(), outputs)
    assert outputs[2].tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert len(nccl.unique_id()) == 128


def test_reducing_and_broadcasting_in_one_process() -> None:
    def inputs() -> list[torch.Tensor]:
        return [torch.tensor([1.0, 2.0, 6.0]) * (i + 1) for i in range(3)]

    def on_cards() -> list[torch.Tensor]:
        return [part.to(f"cuda:{i}") for i, part in enumerate(inputs())]

    stacked = torch.stack(inputs())
    totals = stacked.sum(0), stacked.prod(0), stacked.amax(0), stacked.amin(0), stacked.mean(0)
    for op, expected in enumerate(totals):  # in the order of ncclRedOp_t
        tensors = on_cards()
        nccl.all_reduce(tensors, op=op)
        assert [tensor.tolist() for tensor in tensors] == [expected.tolist()] * 3, op
        output = torch.empty(3, device="cuda:1")
        nccl.reduce(on_cards(), output, root=1, op=op)
        assert output.tolist() == expected.tolist(), op
    parts = [torch.empty(1, device=i) for i in range(3)]
    nccl.reduce_scatter(on_cards(), parts)
    assert [part.item() for part in parts] == stacked.sum(0).tolist()
    tensors = on_cards()
    nccl.broadcast(tensors, root=2)
    assert [tensor.tolist() for tensor in tensors] == [inputs()[2].tolist()] * 3


def test_a_collective_with_two_tensors_on_a_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="inputs must be on unique devices"):
        nccl.all_reduce([torch.ones(1, device=0), torch.ones(1, device=0)])
    with pytest.raises(RuntimeError, match="have to be cuda dense Tensors"):
        nccl.all_reduce([torch.ones(1), torch.ones(1, device=0)])
