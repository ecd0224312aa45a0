"""`torch.cuda.comm` and `torch.cuda.nccl`: what they return and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.cuda import comm, nccl

from anyrig.virtual import clock


def test_broadcasting_keeps_the_tensors_of_the_first_device() -> None:
    # Two tensors of one dtype, which are broadcast as one buffer.
    tensors = [
        torch.ones(3, device=0),
        torch.ones(4, device=0),
        torch.zeros(2, dtype=torch.int64, device=0),
    ]
    first, second = comm.broadcast_coalesced(tensors, (0, 1))
    assert all(copy is tensor for copy, tensor in zip(first, tensors, strict=True))
    assert [copy.device.index for copy in second] == [1, 1, 1]
    assert [copy.dtype for copy in second] == [torch.float32, torch.float32, torch.int64]
    # Writing to one tensor does not change the others' versions, which autograd compares.
    versions = [copy._version for copy in second]
    second[0].zero_()
    assert [copy._version for copy in second[1:]] == versions[1:]


def test_a_parameter_is_broadcast_and_not_written_to() -> None:
    weight = torch.nn.Parameter(torch.arange(4.0, device="cuda:0"))
    first, second = comm.broadcast(weight, (0, 1))
    assert first is weight
    assert weight._version == 0
    assert (second.get_device(), second.tolist()) == (1, [0.0, 1.0, 2.0, 3.0])


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
def test_scattering_reports_invalid_arguments(dim: int) -> None:
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


def test_gathering_reports_invalid_arguments() -> None:
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

    def on_gpus() -> list[torch.Tensor]:
        return [part.to(f"cuda:{i}") for i, part in enumerate(inputs())]

    stacked = torch.stack(inputs())
    totals = stacked.sum(0), stacked.prod(0), stacked.amax(0), stacked.amin(0), stacked.mean(0)
    for op, expected in enumerate(totals):  # in the order of ncclRedOp_t
        tensors = on_gpus()
        nccl.all_reduce(tensors, op=op)
        assert [tensor.tolist() for tensor in tensors] == [expected.tolist()] * 3, op
        output = torch.empty(3, device="cuda:1")
        nccl.reduce(on_gpus(), output, root=1, op=op)
        assert output.tolist() == expected.tolist(), op
    parts = [torch.empty(1, device=i) for i in range(3)]
    nccl.reduce_scatter(on_gpus(), parts)
    assert [part.item() for part in parts] == stacked.sum(0).tolist()
    tensors = on_gpus()
    nccl.broadcast(tensors, root=2)
    assert [tensor.tolist() for tensor in tensors] == [inputs()[2].tolist()] * 3


def test_a_collective_with_two_tensors_on_a_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="inputs must be on unique devices"):
        nccl.all_reduce([torch.ones(1, device=0), torch.ones(1, device=0)])
    with pytest.raises(RuntimeError, match="have to be cuda dense Tensors"):
        nccl.all_reduce([torch.ones(1), torch.ones(1, device=0)])


def test_broadcasting_into_tensors_of_the_caller() -> None:
    x = torch.arange(6.0, device=0).view(2, 3)
    outputs = [torch.zeros(2, 3, device=i) for i in (1, 2)]
    comm.broadcast(x, out=outputs)
    assert [output.tolist() for output in outputs] == [x.tolist()] * 2
    strided = torch.zeros(3, 2, device=3).t()  # NCCL needs contiguous tensors
    comm.broadcast(x, out=[strided])
    assert strided.tolist() == x.tolist()
    same = [torch.zeros(2, 3, device=1) for _ in range(2)]  # two tensors on one GPU
    comm.broadcast(x, out=same)
    assert [output.tolist() for output in same] == [x.tolist()] * 2
    with pytest.raises(RuntimeError, match="but output tensor at index 1 has device 'cpu'"):
        comm.broadcast(x, out=[outputs[0], torch.zeros(2, 3)])
    words = r"source tensor \[2, 3\], but output tensor at index 1 has shape \[3, 2\]"
    with pytest.raises(RuntimeError, match=words):
        comm.broadcast(x, out=[outputs[0], torch.zeros(3, 2, device=1)])
    with pytest.raises(RuntimeError, match=r"All tensors must be on devices\[0\]: 1"):
        comm.broadcast_coalesced([x.to(1), x], [1, 2])


def test_broadcasting_from_the_host_and_from_a_device_that_is_not_the_first() -> None:
    for x in (torch.arange(3.0), torch.arange(3.0, device=2)):
        copies = comm.broadcast(x, [0, 2])
        assert [copy.get_device() for copy in copies] == [0, 2]
        assert [copy.tolist() for copy in copies] == [[0.0, 1.0, 2.0]] * 2
        assert (copies[1] is x) == x.is_cuda


def test_scattering_runs_on_the_streams_given() -> None:
    x = torch.ones(2**20).pin_memory()
    streams = [torch.cuda.Stream(0), None]
    before = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    after = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for i, stream in enumerate((streams[0], torch.cuda.current_stream(1))):
        before[i].record(stream)
    default = torch.cuda.current_stream(0)
    default.synchronize()
    parts = comm.scatter(x, (0, 1), streams=streams)
    for i, stream in enumerate((streams[0], torch.cuda.current_stream(1))):
        after[i].record(stream)
        assert not after[i].query()  # the host did not wait
    assert default.query()
    assert [part.tolist() for part in parts] == [[1.0] * 2**19] * 2
    milliseconds = [start.elapsed_time(end) for start, end in zip(before, after, strict=True)]
    assert min(milliseconds) > 0.02  # 2 MiB at no more than 64 GB/s
    outputs = [torch.zeros(2**19, device=i) for i in (0, 1)]
    words = r"at index 1 \(was 0\) to match the device supplied at that index \(expected 1\)"
    with pytest.raises(RuntimeError, match=words):
        comm.scatter(x, out=outputs, streams=[None, torch.cuda.Stream(0)])


def test_scattering_into_tensors_of_the_caller() -> None:
    x = torch.arange(12.0, device=0).view(3, 4)
    outputs = [torch.zeros(3, 1, device=1), torch.zeros(3, 3, device=2)]
    comm.scatter(x, out=outputs, dim=-1)
    assert [output.tolist() for output in outputs] == [x[:, :1].tolist(), x[:, 1:].tolist()]
    with pytest.raises(RuntimeError, match="Expected at least one output tensor to scatter to"):
        comm.scatter(x, out=())
    assert [len(part) for part in comm.scatter(torch.ones(5), (0, 1, 2, 3))] == [2, 2, 1]
    assert [part.tolist() for part in comm.scatter(torch.ones(3), (0, 1), (1, 2))] == [
        [1.0],
        [1.0, 1.0],
    ]


def test_gathering_onto_a_given_device() -> None:
    parts = [torch.full((1, 2), float(i), device=i) for i in (1, 2)]
    with torch.cuda.device(3):
        assert comm.gather(parts).get_device() == 3
    assert comm.gather(parts, destination=2).get_device() == 2
    assert comm.gather(parts, destination="cpu").device == torch.device("cpu")
    output = torch.zeros(1, 4, device=5)
    comm.gather(parts, dim=1, out=output)
    assert output.tolist() == [[1.0, 1.0, 2.0, 2.0]]


def test_collectives_report_invalid_arguments() -> None:
    def on(device: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype, device=device)

    with pytest.raises(RuntimeError, match="input sequence can't be empty"):
        nccl.all_reduce([])
    with pytest.raises(RuntimeError, match="must be of the same Tensor dtype"):
        nccl.all_reduce([on(0, 2), on(1, 2, dtype=torch.half)])
    with pytest.raises(RuntimeError, match="must have the same number of elements"):
        nccl.all_reduce([on(0, 2), on(1, 3)])
    with pytest.raises(RuntimeError, match="have to be cuda dense Tensors"):
        nccl.all_reduce([torch.eye(2, device=0).to_sparse(), torch.eye(2, device=1).to_sparse()])
    with pytest.raises(RuntimeError, match="inputs must be on unique devices"):
        nccl.all_gather([on(0, 2), on(1, 2)], [on(0, 4), on(0, 4)])
    parts = [on(0, 2).mul(3), on(1, 2).mul(5)]
    results = [torch.zeros(2, device=i) for i in (1, 0)]
    nccl.all_reduce(parts, results)
    assert [result.tolist() for result in results] == [[8.0, 8.0]] * 2
    assert [part.tolist() for part in parts] == [[3.0, 3.0], [5.0, 5.0]]
    assert nccl.unique_id() != nccl.unique_id()


@pytest.mark.virtual_only("it reads the virtual clock")
def test_collectives_take_the_time_of_their_bytes() -> None:
    def seconds(collective: Callable[..., object], *arguments: object) -> float:
        before = clock().devices[1].collective_seconds
        collective(*arguments)
        torch.cuda.synchronize(1)
        return clock().devices[1].collective_seconds - before

    def on_gpus(elements: int) -> list[torch.Tensor]:
        return [torch.zeros(elements, device=i) for i in range(4)]

    whole, part = 2**22, 2**20
    both_ways = seconds(nccl.all_reduce, on_gpus(whole))
    gathering = seconds(nccl.all_gather, on_gpus(part), on_gpus(whole))
    scattering = seconds(nccl.reduce_scatter, on_gpus(whole), on_gpus(part))
    assert gathering == pytest.approx(scattering, rel=0.01)
    assert gathering == pytest.approx(both_ways / 2, rel=0.3)
    assert seconds(nccl.all_reduce, on_gpus(part)) < 0.5 * both_ways
    one_way = seconds(nccl.broadcast, on_gpus(whole))
    assert seconds(nccl.reduce, on_gpus(whole)) == pytest.approx(one_way, rel=0.01)


def test_the_host_does_not_wait_for_parts_scattered_into_tensors() -> None:
    x = torch.ones(2**20).pin_memory()
    outputs = [torch.zeros(2**19, device=i) for i in (0, 1)]
    for device in (0, 1):
        torch.cuda.synchronize(device)
    comm.scatter(x, out=outputs)
    assert not torch.cuda.current_stream(1).query()
    assert [output.sum().item() for output in outputs] == [2**19, 2**19]


def test_devices_beyond_the_given_streams_use_their_current_one() -> None:
    parts = torch.cuda.comm.scatter(torch.arange(6.0), (0, 1, 2), streams=[None])
    assert [part.tolist() for part in parts] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
