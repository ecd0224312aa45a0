"""Whole programs: training, mixed precision, checkpointing, transforms, compilation."""

from __future__ import annotations

import copy
import importlib
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from anyrig.virtual import clock, load_extension
from anyrig.virtual.fusion import begin_fused_kernel, run_with_marks

DEVICE, OTHER = "cuda:1", "cuda:2"


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    convolutional = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 5),
    )
    transformer = nn.Sequential(
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0),
        nn.Flatten(),
        nn.Linear(64, 5),
    )
    return {
        "perceptron": (
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5)),
            torch.randn(6, 8),
        ),
        "convolutional": (convolutional, torch.randn(6, 3, 8, 8)),
        "transformer": (transformer, torch.randn(6, 4, 16)),
    }


def losses(model: nn.Module, x: torch.Tensor, device: str) -> list[float]:
    model, x = copy.deepcopy(model).to(device), x.to(device)
    y = torch.arange(len(x), device=device) % 5
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    result = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


@pytest.mark.parametrize("name", ["perceptron", "convolutional", "transformer"])
def test_training_gives_the_numbers_of_the_host(name: str) -> None:
    model, x = networks()[name]
    assert losses(model, x, DEVICE) == pytest.approx(losses(model, x, "cpu"), rel=1e-4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(kind: type[nn.RNNBase], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    model = kind(4, 6, num_layers=2, bidirectional=True)
    x = torch.randn(5, 3, 4)
    results = []
    for device in ("cpu", OTHER):
        there = copy.deepcopy(model).to(device)
        there(x.to(device))[0].pow(2).sum().backward()
        results.append([p.grad.cpu() for p in there.parameters() if p.grad is not None])
    # Sums in float32, which cuDNN adds in another order: an H100's differ by up to 1.9e-5.
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=5e-5)


def test_a_model_on_two_gpus() -> None:
    first, second = nn.Linear(4, 4).cuda(0), nn.Linear(4, 2).cuda(1)
    out = second(first(torch.ones(3, 4, device="cuda:0")).to("cuda:1"))
    out.sum().backward()
    assert first.weight.grad is not None
    assert first.weight.grad.device == torch.device("cuda:0")


def test_mixed_precision() -> None:
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(4, 8, device="cuda")
    with torch.autocast("cuda"):
        y = model(x)
        assert y.dtype == torch.float16
        loss = y.float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() > 0
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16


def test_checkpointing_repeats_dropout() -> None:
    block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).cuda()
    x = torch.randn(8, 16, device="cuda", requires_grad=True)
    torch.manual_seed(5)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    found, x.grad = x.grad, None
    torch.manual_seed(5)
    block(x).sum().backward()
    assert torch.equal(found, x.grad)


def test_transforms() -> None:
    x = torch.randn(4, 3, device=DEVICE)
    assert torch.func.vmap(torch.sin)(x).device == x.device
    gradient = torch.func.grad(lambda a: (a**2).sum())(x)
    torch.testing.assert_close(gradient, 2 * x)
    module = nn.Linear(3, 2).to(DEVICE)
    parameters = dict(module.named_parameters())
    out = torch.func.functional_call(module, parameters, (x,))
    torch.testing.assert_close(out, module(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compilation(backend: str) -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        return (a * 2 + 1).relu().sum()

    x = torch.randn(4, 4, device=DEVICE, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.compile(function, backend=backend)(x)
    y.backward()
    assert y.device == x.device
    torch.testing.assert_close(y, function(x))


@pytest.mark.virtual_only("Inductor compiles for a real GPU")
@pytest.mark.filterwarnings("ignore")
def test_compilation_leaves_results_alone_and_graphs_of_the_host_to_inductor() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        return a * 2 + 1

    def stop(graph: object) -> None:
        raise KeyError("Inductor was here")

    compiled = torch.compile(function, options={"post_grad_custom_pre_pass": stop})
    results = [compiled(torch.full((2,), float(k), device=DEVICE)) for k in range(4)]
    # A captured graph would have overwritten the first result.
    assert [result.tolist() for result in results] == [[2 * k + 1] * 2 for k in range(4)]
    with pytest.raises(Exception, match="Inductor was here"):
        compiled(torch.ones(2))


@pytest.fixture
def _own_graphs() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    importlib.import_module("torch._inductor.cudagraph_trees").reset_cudagraph_trees()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_own_graphs")
@pytest.mark.parametrize("options", [{"backend": "cudagraphs"}, {"mode": "reduce-overhead"}])
def test_compilation_that_captures_graphs(options: dict[str, str]) -> None:
    def train(model: nn.Module, call: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(5):  # eager, captured, replayed
            optimizer.zero_grad()
            loss = call(torch.randn(2, 4, device=DEVICE)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).to(DEVICE)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, **options)
    assert train(model, compiled) == pytest.approx(train(twin, twin))
    with torch.no_grad():
        overwritten, *_ = [compiled(torch.randn(2, 4, device=DEVICE)) for _ in range(3)]
    with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
        overwritten.sum()


@pytest.mark.virtual_only("it reads the virtual clock")
@pytest.mark.filterwarnings("ignore")
def test_compiled_operators_take_the_time_of_fused_kernels() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).relu().mul(2).add(1).t().sigmoid()

    def work_of(call: Callable[..., torch.Tensor]) -> tuple[float, float, float]:
        before = clock().devices[1]
        call(a, b)
        after = clock().devices[1]
        return (
            after.memory_bytes - before.memory_bytes,
            after.flops - before.flops,
            after.kernels.products - before.kernels.products,
        )

    a, b = torch.randn(256, 256, device=DEVICE), torch.randn(256, 256, device=DEVICE)
    compiled = torch.compile(function)
    torch.testing.assert_close(compiled(a, b), function(a, b))
    eager, fused = work_of(function), work_of(compiled)
    assert eager[0] == (3 + 4 * 2) * a.nbytes
    assert fused[0] == (3 + 2) * a.nbytes  # the product, and one kernel
    assert fused[1:] == pytest.approx(eager[1:])
    core = load_extension()
    core.pause_clock(True)
    try:
        assert work_of(compiled) == work_of(function) == (0, 0, 0)  # still paused after the graph
    finally:
        core.pause_clock(False)


@pytest.mark.virtual_only("it reads the virtual clock")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_own_graphs")
def test_graphs_of_compiled_code_are_launched_once_and_contain_fused_kernels() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            a = (a @ b).relu().mul(2)
        return a

    def work_of(call: Callable[..., torch.Tensor]) -> tuple[float, float, float, float]:
        before = clock()
        call(a, b)
        after = clock()
        return (
            after.devices[0].memory_bytes - before.devices[0].memory_bytes,
            after.devices[0].flops - before.devices[0].flops,
            after.devices[0].kernels.products - before.devices[0].kernels.products,
            after.host_seconds - before.host_seconds,
        )

    a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    compiled = torch.compile(function, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):  # eager, captured, replayed
            result = compiled(a, b)
        torch.testing.assert_close(result, function(a, b))
        eager, graphed = work_of(function), work_of(compiled)
    # A replay also copies an input that is not a parameter to the graph's memory.
    assert graphed[0] == pytest.approx(20 * (3 + 2) * a.nbytes, abs=4 * a.nbytes)
    assert graphed[1:3] == pytest.approx(eager[1:3])
    assert graphed[3] < eager[3] / 8  # of 60 launches, few are left


@pytest.mark.virtual_only("it reads the virtual clock")
@pytest.mark.filterwarnings("ignore")
def test_a_fused_kernel_writes_what_is_used_through_a_view() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).relu().mul(2).t() @ b

    compiled = torch.compile(function)
    a, b = torch.randn(256, 256, device=DEVICE), torch.randn(256, 256, device=DEVICE)
    torch.testing.assert_close(compiled(a, b), function(a, b))
    before = clock().devices[1].memory_bytes
    compiled(a, b)
    assert clock().devices[1].memory_bytes - before == (3 + 2 + 3) * a.nbytes


@pytest.mark.virtual_only("it reads the virtual clock")
def test_operators_take_time_again_after_an_error_in_a_fused_kernel() -> None:
    def fail(_: list[object]) -> None:
        begin_fused_kernel()
        raise RuntimeError("in the kernel")

    with pytest.raises(RuntimeError, match="in the kernel"):
        run_with_marks(fail)([])
    a = torch.ones(8, device=DEVICE)
    before = clock().devices[1].memory_bytes
    a.relu()
    assert clock().devices[1].memory_bytes - before == 2 * a.nbytes


@pytest.mark.filterwarnings("ignore")
def test_compilation_of_what_makes_its_own_tensors() -> None:
    # No tensor is passed; only the graph names the device.
    function = torch.compile(lambda: torch.ones(3, device=DEVICE) * 2)
    assert function().tolist() == [2.0, 2.0, 2.0]


@pytest.mark.virtual_only("Inductor compiles for a real GPU")
def test_triton_finds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # If Triton can be imported, as in CUDA builds, PyTorch would query it for a driver.
    from torch.utils import _triton

    importlib.import_module("torch._dynamo")  # its import queries Triton
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    _triton.has_triton_package.cache_clear()
    _triton.has_triton.cache_clear()
    try:
        assert _triton.has_triton_package()
        assert not _triton.has_triton()
    finally:
        _triton.has_triton_package.cache_clear()
        _triton.has_triton.cache_clear()


@pytest.mark.filterwarnings("ignore")
def test_traced_convolutions_take_what_they_are_given() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 2))
    model.to(DEVICE)
    traced = torch.jit.trace(model.eval(), torch.zeros(1, 3, 6, 6, device=DEVICE))
    x = torch.randn(2, 3, 6, 6, device=DEVICE, requires_grad=True)
    torch.testing.assert_close(traced(x), model(x))
    traced(x).sum().backward()
    assert x.grad is not None
    assert model[0].weight.grad is not None
    with pytest.raises(RuntimeError, match="should be the same"):
        traced(torch.randn(2, 3, 6, 6))


@pytest.mark.filterwarnings("ignore")
def test_scripted_indices() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        a[a > 2] = 2.0
        return a[a > 1]

    x = torch.arange(4.0, device=DEVICE)
    assert torch.jit.script(function)(x).tolist() == [2.0, 2.0]


def test_printing() -> None:
    assert repr(torch.ones(2, device=DEVICE)) == f"tensor([1., 1.], device='{DEVICE}')"


def test_threads_on_several_devices() -> None:
    failures: list[BaseException] = []

    def train(index: int) -> None:
        try:
            device = f"cuda:{index % min(4, torch.cuda.device_count())}"
            model = nn.Linear(16, 16).to(device)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(40):
                optimizer.zero_grad()
                model(torch.randn(8, 16, device=device)).pow(2).mean().backward()
                optimizer.step()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_cpu_only_operator_is_refused() -> None:
    q = torch.ones(1, 1, 4, 8, device="cuda")
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::.*' with arguments from"):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
    weight = torch.quantize_per_tensor(torch.ones(2, 2), 1.0, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    torch.ops.quantized.linear_dynamic(torch.ones(2, 2), packed)
    with pytest.raises(NotImplementedError, match="Could not run 'quantized::linear_dynamic'"):
        torch.ops.quantized.linear_dynamic(torch.ones(2, 2, device="cuda"), packed)
