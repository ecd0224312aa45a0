"""Kernels allocate temporary memory as on a GPU: order and sizes, recorded from the allocator.

More than 400 lines: a test or two for each kind of kernel, all recorded in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from anyrig.virtual import installation

DEVICE = 7  # used only by the tests of pools, history and temporaries
MIB = 2**20
# PyTorch's default build is for CUDA 13 from 2.11 on: CUB then aligns the words of tiles twice.
HAS_CUDA_13 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11)
ALIGNED = 2 * 256 - 1 if HAS_CUDA_13 else 255
# From 2.15 on, a product frees its workspace when it has been launched.
KEEPS_CUBLAS_WORKSPACES = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)


@pytest.fixture(autouse=True)
def recorded(own_device: None) -> Iterator[None]:
    yield
    torch.cuda.memory._record_memory_history(None)


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the rules of cuDNN on Hopper")


def take(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="cuda")


def events(compute: Callable[[], Any]) -> list[tuple[str, int]]:
    """Return (action, bytes asked for) of each allocation and release within `compute`."""
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    result = compute()
    entries = torch.cuda.memory._snapshot()["device_traces"][DEVICE]
    torch.cuda.memory._record_memory_history(None)
    del result
    names = {"alloc": "+", "free_requested": "-"}
    return [(names[e["action"]], e["size"]) for e in entries if e["action"] in names]


def requests(compute: Callable[[], Any]) -> list[int]:
    return [size for action, size in events(compute) if action == "+"]


# Recorded on an H100 with PyTorch 2.6. These splits do not depend on the number of multiprocessors.
LOGITS = (10_000, 512)


def test_a_sum_over_the_slow_dimension_is_split_over_blocks() -> None:
    logits = take(*LOGITS)
    assert events(lambda: logits.t().sum(dim=-1)) == [
        ("+", 2048),
        ("+", 41_156_608),
        ("+", 16),
        ("-", 16),
        ("-", 41_156_608),
    ]


def test_a_maximum_with_positions_accumulates_pairs() -> None:
    logits = take(*LOGITS)
    assert requests(lambda: logits.t().max(dim=-1)) == [2048, 4096, 164_626_432, 16]


def test_a_sum_of_everything() -> None:
    # Recorded on a GPU of compute capability 8 as well: 64 blocks.
    assert requests(lambda: take(8, 4096, 16).sum()) == [2 * MIB, 4, 256, 4]


@pytest.mark.parametrize(
    ("name", "compute", "accumulator_bytes"),
    [
        ("mean", lambda x: x.mean(dim=0), 4),
        ("norm", lambda x: torch.linalg.vector_norm(x, dim=0), 4),
        ("variance", lambda x: x.var(dim=0), 16),
        ("largest", lambda x: x.amax(dim=0), 4),
        ("extremes", lambda x: x.aminmax(dim=0), 8),
        ("position", lambda x: x.argmax(dim=0), 16),
        ("half", lambda x: x.half().sum(dim=0), 4),
        ("truth", lambda x: x.bool().any(dim=0), 1),
    ],
)
def test_each_reduction_has_its_accumulator(
    name: str, compute: Callable[[torch.Tensor], Any], accumulator_bytes: int
) -> None:
    buffer_bytes = 10_289_152 * accumulator_bytes
    assert requests(lambda: compute(take(*LOGITS)))[-2:] == [buffer_bytes, 16]


def test_a_count_of_truths_converts_first() -> None:
    mask = take(1000, dtype=torch.bool)
    assert events(mask.sum) == [("+", 8), ("+", 8000), ("-", 8000)]


def test_small_reductions_need_nothing() -> None:
    assert requests(lambda: take(30, 128).sum(dim=0)) == [30 * 128 * 4, 512]
    assert requests(lambda: take(512, 2560).sum(dim=-1)) == [512 * 2560 * 4, 2048]


def test_indices_on_the_host_are_copied() -> None:
    values, rows = take(512, 100), torch.arange(512)
    columns = take(512, dtype=torch.long).zero_()
    assert events(lambda: values[rows, columns]) == [("+", 4096), ("+", 2048), ("-", 4096)]
    assert requests(lambda: values[columns, columns]) == [2048]


def test_the_gradient_of_indexing_sorts_the_indices() -> None:
    # The order and the sizes that an H100 recorded.
    gradient, values = take(512, 10_000), take(512)
    rows, columns = torch.arange(512), take(512, dtype=torch.long).zero_()

    def put(indices: list[torch.Tensor], source: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._index_put_impl_(gradient, indices, source, True, True)

    index = 4096
    assert events(lambda: put([rows, columns], values)) == [
        *[("+", index)] * 3,  # the copy, then the remainder and the product of the other
        *[("-", index)] * 2,
        *[("+", index)] * 3,  # sorted, their order, and numbers from 0
        ("+", 1),
        ("-", 1),
        *[("-", index)] * 4,
    ]
    transposed = take(10_000, 512).t()
    assert requests(lambda: put([columns], transposed)) == [
        index,
        index,
        512 * 10_000 * 4,
        index,
        index,
        index,
        1,
    ]


def test_the_gradient_of_a_large_embedding_sorts_the_indices() -> None:
    gradient, indices = take(4096, 64), take(4096, dtype=torch.long).zero_()
    few = take(1024, dtype=torch.long).zero_()

    def backward(rows: torch.Tensor) -> list[int]:
        return requests(
            lambda: torch.ops.aten.embedding_dense_backward(
                gradient[: len(rows)], rows, 1000, -1, False
            )
        )

    assert backward(few) == [1000 * 64 * 4]
    sort, *rest = backward(indices)[3:]
    assert 2 * 32_768 < sort < 2 * 32_768 + 64 * 1024
    segments, parts = 8 * 1000, 4096 // 10 + 1000
    unique = [32_768, 768 + ALIGNED]
    sums = [segments, segments, 768 + ALIGNED]
    assert rest == [1000 * 64 * 4, 32_768, 8, *unique, *sums, 8, 8 * parts, parts * 64 * 4]


@pytest.mark.skipif(not HAS_CUDA_13, reason="earlier versions of PyTorch sum in two steps")
def test_long_segments_of_an_embedding_are_added_atomically() -> None:
    # Recorded on an H100 with PyTorch 2.11: the two kinds of tokens of BERT-large.
    gradient, kinds = take(4096, 1024), take(4096, dtype=torch.long).zero_()

    def backward(of: torch.Tensor) -> list[int]:
        return requests(lambda: torch.ops.aten.embedding_dense_backward(of, kinds, 2, -1, False))

    counted = [8192, 32_768, 8, 32_768, 1279, 16, 16, 1279, 8, 3288]
    assert backward(gradient)[4:] == [*counted, 3288]
    # The sum of 16-bit gradients is in float32.
    assert backward(gradient.half())[4:] == [4096, *counted[1:], 3288, 8192]
    torch.use_deterministic_algorithms(True)
    try:
        assert backward(gradient)[4:] == [*counted, 411 * 1024 * 4]
    finally:
        torch.use_deterministic_algorithms(False)


def test_norms_of_lists_keep_a_number_for_each_chunk() -> None:
    tensors = [take(100), take(200_000)]
    before = 2 * 4 * 4  # 200,000 elements are four chunks
    assert requests(lambda: torch._foreach_norm(tensors)) == [before, 4, 4]


def test_group_normalization_keeps_factors_of_channels() -> None:
    x, weight = take(4, 64, 8, 8), take(64)
    sizes = [x.numel() * 4, 4 * 8 * 4, 4 * 8 * 4, 1024, 1024]
    assert requests(lambda: torch.nn.functional.group_norm(x, 8, weight)) == sizes


def test_cublas_reads_a_copy_of_an_expanded_operand() -> None:
    # Recorded on a GPU of compute capability 8, in the backward pass of a sum of products.
    weights, gradient = take(8, 512, 512), take(1).expand(8, 512, 16)
    workspace = 32 * MIB if HOPPER else 8_519_680
    torch._C._cuda_clearCublasWorkspaces()
    try:
        result = 8 * 512 * 16 * 4
        assert events(lambda: torch.bmm(weights.transpose(1, 2), gradient)) == [
            ("+", result),
            ("+", result),
            ("+", workspace),
            *([] if KEEPS_CUBLAS_WORKSPACES else [("-", workspace)]),
            ("-", result),
        ]
    finally:
        torch._C._cuda_clearCublasWorkspaces()
    assert requests(lambda: torch.bmm(weights.transpose(1, 2), weights)) == [
        8 * 512 * 512 * 4,
        workspace,
    ]
    assert requests(lambda: torch.mm(weights[0], take(1).expand(512, 16))) == [
        4,
        512 * 16 * 4,
        512 * 16 * 4,
        *([] if KEEPS_CUBLAS_WORKSPACES else [workspace]),
    ]


def test_softmax_and_layer_norm_copy_strided_rows() -> None:
    rows = take(64, 32).t()
    assert requests(lambda: rows.softmax(dim=-1)) == [8192, 8192]
    assert requests(lambda: rows.contiguous().softmax(dim=-1)) == [8192, 8192]
    assert requests(lambda: torch.layer_norm(rows, (64,))) == [8192, 8192, 128, 128]


def test_the_gradient_of_a_softmax_is_multiplied_by_its_result_first() -> None:
    # Recorded on an H100 with PyTorch 2.11. A strided product is copied.
    weights, gradient = take(32, 64).softmax(-1), take(32, 64)

    def backward(of: torch.Tensor) -> list[tuple[str, int]]:
        return events(lambda: torch.ops.aten._softmax_backward_data(of, weights, 1, torch.float32))

    result, product, copy = [("+", 8192)] * 3
    assert backward(gradient) == [result, product, ("-", 8192)]
    assert backward(take(64, 32).t()) == [result, product, copy, ("-", 8192), ("-", 8192)]


def test_cudnn_attention_has_workspaces() -> None:
    # Recorded on an H100 with PyTorch 2.11 and cuDNN 9.19.
    shape, rows = (16, 12, 1024, 64), 16 * 12 * 1024
    query, key, value = (take(*shape, dtype=torch.bfloat16) for _ in range(3))
    result_bytes = rows * 64 * 2

    def forward() -> Any:
        return torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, None, True)

    assert requests(forward) == [8, 8, result_bytes, 4 * rows, 256]
    output, logsumexp, *_, seed, offset, _ = forward()
    backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    assert requests(
        lambda: backward(
            *(output, query, key, value, output, logsumexp, seed, offset),
            *(None, None, None, 1024, 1024, 0.0, False),
        )
    ) == [result_bytes] * 3 + [51_118_336]


def test_blocks_of_batch_normalization_meet_in_a_buffer() -> None:
    # Recorded on an H100 with PyTorch 2.11: the last stage of ResNet-50 with channels last.
    images = take(256, 512, 7, 7, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    weight, bias, mean, variance = (take(512) for _ in range(4))

    def normalize(of: torch.Tensor) -> Any:
        return torch.native_batch_norm(of, weight, bias, mean, variance, True, 0.1, 1e-5)

    image_bytes = 256 * 512 * 49 * 2
    assert events(lambda: normalize(images))[:7] == [
        *[("+", image_bytes), ("+", 2048), ("+", 2048)],
        *[("+", 401_408), ("+", 64), ("-", 64), ("-", 401_408)],
    ]
    assert requests(lambda: normalize(images.contiguous()))[1:] == [image_bytes, 2048, 2048]
    _, *saved = normalize(images)

    def backward(gradient: torch.Tensor) -> Any:
        return torch.ops.aten.native_batch_norm_backward(
            gradient, images, weight, mean, variance, *saved, True, 1e-5, [True] * 3
        )

    assert sorted(requests(lambda: backward(images))) == sorted(
        [2048] * 4 + [200_704, 64, image_bytes]
    )
    assert 200_704 not in requests(lambda: backward(images.contiguous()))


def test_recurrent_layers_have_a_reserve_and_workspaces() -> None:
    # Recorded on an H100 with PyTorch 2.11 and cuDNN 9.19, but for the order of the releases.
    layer = torch.nn.LSTM(128, 512).cuda()
    steps, state, result = take(64, 32, 128).requires_grad_(), 65_536, 4_194_304
    workspace, reserve = 36_307_456, 20_971_776
    forward = [state, state, result, state, state, workspace, reserve]
    assert requests(lambda: layer(steps)[0]) == forward
    with torch.no_grad():
        assert requests(lambda: layer(steps)[0]) == forward
    output, gradient = layer(steps)[0], take(64, 32, 512)
    backward = requests(lambda: output.backward(gradient))
    weights = 5_259_264
    assert backward == [state, state, 1_048_576, state, state, workspace, weights, workspace]
    output = layer(steps)[0]  # a graph that is kept keeps its reserve, of which cuDNN gets a copy
    kept = requests(lambda: output.backward(gradient, retain_graph=True))
    assert kept[:3] == [reserve, state, state]


def test_projections_are_kept_for_each_layer() -> None:
    layer = torch.nn.LSTM(128, 512, num_layers=2, proj_size=64).cuda()
    units, projected = 32 * 64 * 512, 32 * 64 * 64
    reserve = requests(lambda: layer(take(64, 32, 128))[0])[-1]
    assert reserve == 256 + 4 * 2 * (6 * units + 3 * projected)


def test_wrong_indices_are_the_operators_error() -> None:
    values, rows = take(8, 8), take(3, dtype=torch.long).zero_()
    with pytest.raises(IndexError, match="could not be broadcast together"):
        values[rows, torch.arange(4)]


def test_temporaries_of_an_expression_live_until_its_end() -> None:
    # Recorded on a GPU with PyTorch 2.1, for 32 heads and 1000 tokens. The first temporaries are
    # those of (gradient * output).sum(-1).transpose(-2, -1).contiguous().
    query, key, value = (take(1, 100, 4, 64).transpose(1, 2).requires_grad_() for _ in range(3))
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    tensor, sums, workspace = 100 * 4 * 64 * 4, 100 * 4 * 4, 4 * 2 * (64 * 64 + 4) * 4
    gradient = take(1, 100, 4, 64).transpose(1, 2)
    inputs = (query, key, value)
    assert events(lambda: torch.autograd.grad(attended, inputs, gradient, retain_graph=True)) == [
        *(3 * [("+", tensor)]),
        ("+", tensor),
        ("+", sums),
        ("+", sums),
        ("-", sums),
        ("-", tensor),
        ("+", workspace),
        ("-", sums),
        ("-", workspace),
    ]


def test_the_peak_includes_temporaries() -> None:
    logits = take(*LOGITS)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    total = logits.t().sum(dim=-1)
    assert torch.cuda.memory_allocated() - before == 2048
    assert (
        torch.cuda.max_memory_allocated() - before == 2048 + 40 * MIB + 512
    )  # a segment of its own
    del total


def test_a_temporary_that_does_not_fit_is_out_of_memory() -> None:
    logits = take(*LOGITS)
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + 10 * MIB
    total_bytes = torch.cuda.get_device_properties().total_memory
    torch.cuda.set_per_process_memory_fraction(allowed / total_bytes)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 40\.00 MiB"):
            logits.t().sum(dim=-1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_short_rows_are_sorted_in_place() -> None:
    rows = take(64, 100)
    assert events(rows.sort) == [("+", 25_600), ("+", 51_200), ("+", 800), ("-", 800)]


# CUB is tuned for each compute capability: its tiles are larger from 9.0 on.
HOPPER = torch.cuda.get_device_capability(min(DEVICE, torch.cuda.device_count() - 1)) >= (9, 0)
# Bytes of CUB: 8192 for histograms, 1024 for each tile (of 3072 on an A100), and a second buffer.
SORT_OF_100_000 = 8192 + (19 if HOPPER else 33) * 1024 + 400_128 + 800_000 + 256 + 255
SORT_OF_20_000 = 8192 + (4 if HOPPER else 7) * 1024 + 80_128 + 160_000 + 256 + 255
SORT_OF_20_000_ROWS = 2048 + (4 if HOPPER else 6) * 1024 + 256 + 255


def test_a_long_row_is_sorted_by_its_digits() -> None:
    row = take(100_000)
    assert events(row.sort) == [
        ("+", 400_000),
        ("+", 800_000),
        ("+", 800_000),  # numbers from 0
        ("+", SORT_OF_100_000),
        ("-", SORT_OF_100_000),
        ("-", 800_000),
    ]


def test_few_rows_are_sorted_together() -> None:
    rows = take(4, 5000)
    assert events(rows.sort) == [
        ("+", 80_000),
        ("+", 160_000),
        *[("+", 160_000)] * 2,
        ("+", 80_000),
        ("+", SORT_OF_20_000),
        ("-", SORT_OF_20_000),
        ("-", 80_000),
        ("+", SORT_OF_20_000_ROWS),
        ("-", SORT_OF_20_000_ROWS),
        *[("-", 160_000)] * 2,
    ]


def test_many_rows_are_sorted_in_segments() -> None:
    rows = take(200, 5000)
    assert requests(rows.sort)[2:] == [8_000_000, 12_000_255]
    columns = take(5000, 200)
    results = [4_000_000, 8_000_000]
    assert requests(lambda: columns.sort(dim=0)) == [
        *results,
        *[4_000_000] * 2,
        *results[1:] * 2,
        12_000_255,
    ]


def test_the_largest_of_a_long_row_are_found_by_several_blocks() -> None:
    row = take(100_000)
    sums = 768 + 256 + 255
    blocks = 98
    # From 2.11 on, a kernel of its own sums the counts of 256 digits, without a semaphore.
    before, since = ((), (1024,)) if HAS_CUDA_13 else ((4,), ())
    assert requests(lambda: row.topk(10)) == [
        *(40, 80, 4, *before, 8, 8, blocks * 512),
        *(*since, blocks * 4, blocks * 4),
        *(sums, sums),
    ]
    assert requests(lambda: take(8, 1000).topk(10)) == [32_000, 320, 640]


def test_a_running_sum_of_one_row_keeps_a_word_for_each_tile() -> None:
    row, mask = take(1_000_000), take(1000, dtype=torch.bool)
    tiles = 4608 + ALIGNED
    assert events(lambda: row.cumsum(0)) == [("+", 4_000_000), ("+", tiles), ("-", tiles)]
    assert requests(lambda: mask.cumsum(0)) == [8000, 8000, 768 + ALIGNED]
    assert requests(lambda: take(100, 100).cumsum(1)) == [40_000, 40_000]


SELECTION = 512 + ALIGNED


def test_a_mask_is_counted_before_its_positions_are_written() -> None:
    mask = torch.ones(1000, dtype=torch.bool).cuda()
    counting = [("+", 4), ("+", 1), ("-", 1)]
    writing = [("+", SELECTION), ("-", SELECTION), ("-", 4)]
    assert events(mask.nonzero) == [*counting, ("+", 8000), *writing]
    large = torch.zeros(10_000, dtype=torch.bool).cuda()
    assert requests(large.nonzero)[:2] == [4, (21_248 if HOPPER else 17_408) + 255]
    values = take(1000)
    mask[10:] = False
    selected = [*counting, ("+", 80), *writing, ("+", 40), ("-", 80)]
    assert events(lambda: values[mask]) == selected
    assert events(lambda: values.masked_select(mask)) == selected
    assert requests(lambda: values.index_put_((mask,), take(10))) == [40, 4, 1, 80, SELECTION]


def test_filling_by_a_mask_counts_nothing() -> None:
    values, mask = take(1000), torch.ones(1000, dtype=torch.bool).cuda()

    def fill() -> None:
        values[mask] = 0.0

    assert requests(fill) == []


def test_unique_values_are_sorted_first() -> None:
    values = take(1000).zero_()
    assert requests(values.unique)[:2] == [4000, 1]
    assert requests(lambda: values.unique(return_inverse=True))[:4] == [4000, 8000, 8000, 1]


def test_a_permutation_sorts_random_keys() -> None:
    # Keys of 36 bits in 64, which take five passes, with values of 64: tiles of 3840 on an A100.
    sort = 5 * 2048 + (22 if HOPPER else 27) * 1024 + 2 * 800_000 + 256 + 255
    assert requests(lambda: torch.randperm(100_000, device="cuda"))[-1] == sort


def are_beside_counters(asked_bytes: list[int], wanted_bytes: list[int]) -> bool:
    """Return whether requests are as wanted, but for the counters that Hopper's kernels add."""
    most = 1024 if HOPPER else 0
    large = [size for size in asked_bytes if size > most]
    return len(large) == len(wanted_bytes) and all(
        wanted <= asked <= wanted + most for asked, wanted in zip(large, wanted_bytes, strict=True)
    )


def convolution_backward(
    gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor, padding: int
) -> Any:
    return torch.ops.aten.convolution_backward(
        *(gradient, images, weight, [weight.size(0)], [1, 1], [padding] * 2, [1, 1]),
        *(False, [0, 0], 1, [True, True, False]),
    )


@pytest.mark.virtual_only("cuDNN chooses otherwise on an H100")
def test_matrix_units_convolve_copies_with_padded_channels() -> None:
    images, weight = take(2, 3, 8, 8), take(4, 3, 3, 3)
    convolve = torch.nn.functional.conv2d
    workspace = 2 * (2 * 4 * 64 * 4) + 4 * 4 * 9 * 4
    assert events(lambda: convolve(images, weight, padding=1)) == [
        ("+", 2048),
        ("+", workspace),
        ("-", workspace),
    ]
    last = images.to(memory_format=torch.channels_last)
    assert requests(lambda: convolve(last, weight, padding=1)) == [2048, 432]  # the weight's copy
    halves = images.half(), weight.half()
    workspace = 2 * 8 * 64 * 2 + 2 * 8 * 64 * 2 + 4 * 8 * 9 * 2
    assert requests(lambda: convolve(*halves, padding=1)) == [1024, workspace]


def test_hoppers_matrix_units_convolve_copies_and_sum_parts(hopper: None) -> None:
    if installation() is None:
        pytest.skip("cuDNN chooses other kernels in some processes")
    # As an H100 did: 8 images of 30 channels, 31 by 31. Each copy has a header.
    header = 16
    images, weight = take(8, 30, 31, 31), take(50, 30, 3, 3)
    convolve = torch.nn.functional.conv2d
    gradient, pixels = take(8, 50, 31, 31), 8 * 31 * 31
    copies = 4 * (pixels * (32 + 52) + 32 * 52 * 9) + header
    assert copies == 2_643_088
    assert events(lambda: convolve(images, weight, padding=1)) == [
        ("+", pixels * 50 * 4),
        ("+", copies),
        ("-", copies),
    ]
    # The gradient of the weight has sums of its own for each part of the batch.
    parts = 2
    assert requests(lambda: convolution_backward(gradient, images, weight, 1)) == [
        *(pixels * 30 * 4, copies),
        *(54_000, copies + parts * 54_000),
    ]
    half_copies = 4 * (pixels // 2 * (32 + 52) + 32 * 52 * 9) + header
    assert requests(lambda: convolution_backward(gradient[:4], images[:4], weight, 1)) == [
        *(pixels // 2 * 30 * 4, half_copies),
        *(54_000, half_copies),  # one part adds to the result
    ]
    halves = images.half(), weight.half()
    copies = 2 * (pixels * (32 + 56) + 32 * 56 * 9) + header
    assert copies == 1_385_360
    assert requests(lambda: convolve(*halves, padding=1)) == [768_800, copies]
    # A kernel for images reads three channels unpadded.
    images, weight = take(2, 3, 8, 8), take(4, 3, 3, 3)
    copies = 4 * (2 * 64 * (3 + 4) + 4 * 3 * 9) + header
    assert requests(lambda: convolve(images, weight, padding=1)) == [2048, copies]


def test_channels_last_needs_copies_of_odd_channels_alone(hopper: None) -> None:
    def of_channels(count: int) -> list[int]:
        images = take(8, count, 31, 31, dtype=torch.half).to(memory_format=torch.channels_last)
        weight = take(64, count, 3, 3, dtype=torch.half).to(memory_format=torch.channels_last)
        return requests(lambda: torch.conv2d(images, weight, padding=1))[1:]

    pixels = 8 * 31 * 31
    assert of_channels(64) == []
    assert are_beside_counters(of_channels(30), [2 * (pixels * 32 + 64 * 32 * 9)])


def test_a_convolution_of_single_pixels_is_a_product_in_place(hopper: None) -> None:
    # As on an H100: one sum for each image. Planes of an odd number of pixels are copied.
    images, weight = take(64, 64, 56, 56), take(256, 64, 1, 1)
    gradient = take(64, 256, 56, 56)
    forward = requests(lambda: torch.conv2d(images, weight))
    assert are_beside_counters(forward, [205_520_896])
    backward = requests(lambda: convolution_backward(gradient, images, weight, 0))
    assert are_beside_counters(backward, [51_380_224, 65_536, 64 * 65_536])
    odd, weight = take(64, 128, 7, 7), take(32, 128, 1, 1)
    copied = requests(lambda: torch.conv2d(odd, weight))[1:]
    assert are_beside_counters(copied, [4 * 64 * 49 * (128 + 32)])


@pytest.mark.virtual_only("cuDNN chooses otherwise on an H100")
def test_without_matrix_units_a_filter_is_transformed() -> None:
    images, weight = take(2, 64, 8, 8), take(64, 64, 3, 3)
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert requests(lambda: torch.conv2d(images, weight, padding=1))[1:] == [256 * 1024]
        assert requests(lambda: torch.conv2d(images, weight, stride=2))[1:] == []


@pytest.mark.virtual_only("cuDNN chooses otherwise on an H100")
def test_each_pass_of_a_convolution_has_its_workspace() -> None:
    images, weight = take(2, 4, 8, 8), take(4, 4, 3, 3)
    gradient = take(2, 4, 8, 8)
    workspace = 2 * (2 * 4 * 64 * 4) + 4 * 4 * 9 * 4

    def backward() -> object:
        return torch.ops.aten.convolution_backward(
            gradient, images, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3
        )

    assert events(backward) == [
        ("+", 2048),
        ("+", workspace),
        ("-", workspace),
        ("+", 576),
        ("+", workspace),
        ("-", workspace),
        ("+", 16),
    ]


def test_cublaslt_has_a_workspace_of_its_own() -> None:
    torch._C._cuda_clearCublasWorkspaces()
    bias, matrix = take(64), take(64, 64)
    product = requests(lambda: matrix @ matrix)
    sums = [requests(lambda: torch.addmm(bias, matrix, matrix)) for _ in range(2)]
    assert len(product) == 2
    assert product[0] == 16_384
    assert sums == [[16_384, MIB], [16_384] if KEEPS_CUBLAS_WORKSPACES else [16_384, MIB]]


@pytest.mark.virtual_only("for rows of 100, cuFFT asks for nothing on an H100")
def test_a_transform_works_in_a_copy_of_its_data() -> None:
    signal = take(16, 100, dtype=torch.complex64)
    assert events(lambda: torch.fft.fft(signal)) == [
        ("+", 12_800),
        ("+", 12_800),
        ("-", 12_800),
    ]
    odd = take(16, 101, dtype=torch.complex64)
    assert requests(lambda: torch.fft.fft(odd)) == [16 * 101 * 8, 8 * 16 * 101 * 8]
    assert requests(lambda: torch.fft.irfft(signal, n=198))[1:] == [12_800, 12_800 * 8]
