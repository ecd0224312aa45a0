"""The gradient of the global batch over two ranks, whatever path leads to the parameters.

More than 400 lines: one group of ranks, which starts once, runs all cases.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from on_ranks import World, run_cases
from pair_of_models import Pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

import anyrig
from anyrig.errors import BatchError, SpreadError
from anyrig.parallel.plans import Replicas, Shards

WIDTH = 6
ROWS = {"even": [3, 3], "uneven": [5, 2], "empty": [0, 4]}


class Slots:
    """An object whose tensor only the garbage collector finds."""

    __slots__ = ("__weakref__", "inner")

    def __init__(self, value: Tensor) -> None:
        self.inner = {"deep": [value]}


class Net(nn.Module):
    """Two layers, an unused one, and values that do not leave by the output."""

    def __init__(self, wrap: Callable[[Tensor], Any] = lambda value: value) -> None:
        super().__init__()
        self.wrap = wrap
        self.first, self.last = nn.Linear(WIDTH, 5), nn.Linear(5, 1)
        self.unused = nn.Linear(2, 2)
        self.kept: Any = None

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x))

    def forward(self, x: Tensor) -> Any:
        hidden = self.hidden(x)
        self.kept = hidden.square().mean()
        return self.wrap(self.last(hidden))

    def training_step(self, x: Tensor, y: Tensor) -> Tensor:
        return (self(x) - y).square().mean()


def _penalty(model: Any, x: Tensor, create: bool = True) -> Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=create)
    return (gradient.norm(dim=1) - 1).square().mean()


def _two_passes(model: Any, module: Net, x: Tensor, y: Tensor) -> None:
    (model(x) - y).square().mean().backward()
    _penalty(model, x).backward()


def _by_closure(model: Any, module: Net, x: Tensor, y: Tensor) -> None:
    output = model(x)
    (lambda: (output - y).square().mean() + module.kept)().backward()


def _of_features(model: Any, module: Net, x: Tensor, y: Tensor) -> None:
    features: list[Tensor] = []
    handle = module.first.register_forward_hook(lambda *given: features.append(given[2]))
    ((model(x) - y).square().mean() + features[0].abs().mean()).backward()
    handle.remove()


def _accumulated(model: Any, module: Net, x: Tensor, y: Tensor) -> None:
    no_sync = getattr(model, "no_sync", contextlib.nullcontext)
    with no_sync():
        (_penalty(model, x) + (model(x) - y).square().mean()).backward()
    ((model(x) - y).square().mean() + module.kept).backward()


# How a step computes gradients: called with the model, its module, and a batch.
WAYS: dict[str, Callable[[Any, Net, Tensor, Tensor], None]] = {
    "an attribute": _by_closure,
    "a hook's feature": _of_features,
    "a penalty in the loss": lambda model, module, x, y: (
        (model(x) - y).square().mean() + _penalty(model, x)
    ).backward(),
    "a penalty by itself": _two_passes,
    "two passes of one forward": lambda model, module, x, y: [
        term.backward(retain_graph=True)
        for output in [model(x)]
        for term in ((output - y).square().mean(), output.abs().mean())
    ],
    "a method": lambda model, module, x, y: model.training_step(x, y).backward(),
    "a method that returns a part": lambda model, module, x, y: (
        model.hidden(x).square().mean().backward()
    ),
    "a penalty of parameters": lambda model, module, x, y: (
        (model(x) - y).square().mean() + sum(p.abs().sum() for p in module.last.parameters())
    ).backward(),
    "accumulation": _accumulated,
}

OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "slots": (Slots, lambda output: output.inner["deep"][0]),
    "a closure": (lambda value: lambda: value, lambda output: output()),
    "a set": (lambda value: {value}, lambda output: next(iter(output))),
    "a namespace": (lambda value: SimpleNamespace(a=[value]), lambda output: output.a[0]),
    "a generator": (lambda value: (each for each in [value]), next),
}


def _compare(pair: Pair, rows: list[int], step: Callable[[Any, Net, Tensor, Tensor], None]) -> None:
    for _ in range(3):  # the last ones weight buckets
        x, y = torch.randn(sum(rows), WIDTH), torch.randn(sum(rows), 1)
        mine = pair.mine(rows, x, y)
        for each in (pair.one, pair.model):
            each.zero_grad()
        step(pair.one, pair.one, x, y)
        step(pair.model, pair.module, *mine)
        for (name, ours), its in zip(
            pair.model.named_parameters(), pair.one.parameters(), strict=True
        ):
            assert (ours.grad is None) == (its.grad is None), name
            if its.grad is not None:
                torch.testing.assert_close(ours.grad, its.grad, rtol=1e-9, atol=1e-12, msg=name)


def case_every_way_to_the_parameters() -> None:
    for way, step in WAYS.items():
        for kind, rows in ROWS.items():
            try:
                _compare(Pair(Net()), rows, step)
            except AssertionError as error:
                raise AssertionError(f"{way}, {kind}: {error}") from error


def case_outputs_of_any_class() -> None:
    for name, (wrap, read) in OUTPUTS.items():
        for kind, rows in ROWS.items():
            if kind == "empty":
                continue  # its outputs are those of stand-ins

            def step(model: Any, module: Net, x: Tensor, y: Tensor, read: Any = read) -> None:
                (read(model(x)) - y).square().mean().backward()

            try:
                _compare(Pair(Net(wrap)), rows, step)
            except AssertionError as error:
                raise AssertionError(f"{name}, {kind}: {error}") from error


def _learn_in_shards(
    net: Net, step: Callable[[Any, Net, Tensor, Tensor], None], kinds: Iterable[str] = ROWS
) -> None:
    one = copy.deepcopy(net)
    pair = Pair(net, plan=Shards())
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (pair.model, pair.one)]
    assert type(one) is type(pair.one)
    for rows in map(ROWS.__getitem__, kinds):
        x, y = torch.randn(sum(rows), WIDTH), torch.randn(sum(rows), 1)
        mine = pair.mine(rows, x, y)
        for module, optimizer, batch in zip(
            (pair.model, pair.one), optimizers, (mine, (x, y)), strict=True
        ):
            optimizer.zero_grad()
            step(module, pair.module if module is pair.model else pair.one, *batch)
            optimizer.step()
        pair.assert_same()


def case_shards_whatever_is_returned() -> None:
    for name in ("slots", "a closure", "a set", "a namespace"):
        wrap, read = OUTPUTS[name]

        def step(model: Any, module: Net, x: Tensor, y: Tensor, read: Any = read) -> None:
            (read(model(x)) - y).square().mean().backward()

        # A rank without samples refuses these: `test_product.py` tries it.
        _learn_in_shards(Net(wrap), step, ("even", "uneven"))


def case_shards_of_methods_and_penalties() -> None:
    for name in ("an attribute", "a method", "a penalty in the loss"):
        _learn_in_shards(Net(), WAYS[name])


def case_gradients_that_grad_returns() -> None:
    pair = Pair(Net())
    for rows in ROWS.values():
        x = torch.randn(sum(rows), WIDTH)
        used = [p for n, p in pair.one.named_parameters() if "unused" not in n]
        mine = [p for n, p in pair.model.named_parameters() if "unused" not in n]
        expected = torch.autograd.grad(pair.one(x).square().mean(), used)
        found = torch.autograd.grad(pair.model(*pair.mine(rows, x)).square().mean(), mine)
        for ours, its in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, its, rtol=1e-9, atol=1e-12)
    (own,) = pair.mine(ROWS["uneven"], torch.randn(7, WIDTH))
    with pair.model.no_sync():  # this rank's own
        (found_own,) = torch.autograd.grad(pair.model(own).square().mean(), mine[:1])
    with torch.no_grad():
        for p, q in zip(pair.model.parameters(), pair.one.parameters(), strict=True):
            q.copy_(p)
    (its_own,) = torch.autograd.grad(pair.one(own).square().mean(), used[:1])
    torch.testing.assert_close(found_own, its_own, rtol=1e-9, atol=1e-12)
    with pytest.raises(SpreadError, match=r"create_graph=True.*no_sync"):
        torch.autograd.grad(pair.model(own).sum(), mine[:1], create_graph=True)


def case_hooks_see_the_whole_gradient_of_each_micro_batch() -> None:
    pair = Pair(Net())
    seen: list[list[Tensor]] = [[], []]
    for module, gradients in zip((pair.module, pair.one), seen, strict=True):
        module.first.weight.register_hook(gradients.append)
    micro_batches = [torch.randn(sum(ROWS["uneven"]), WIDTH) for _ in range(2)]
    for index, x in enumerate(micro_batches):
        pair.one(x).square().mean().backward()
        with contextlib.nullcontext() if index else pair.model.no_sync():
            pair.model(*pair.mine(ROWS["uneven"], x)).square().mean().backward()
    for ours, its in zip(*seen, strict=True):
        torch.testing.assert_close(ours, its, rtol=1e-9, atol=1e-12)
    ours, its = (module.first.weight.grad for module in (pair.module, pair.one))
    torch.testing.assert_close(ours, its, rtol=1e-9, atol=1e-12)


def case_optimizers_inside_the_backward_pass() -> None:
    pair = Pair(Net())
    for module in (pair.model, pair.one):
        for parameter in module.parameters():
            optimizer = torch.optim.SGD([parameter], 0.1)

            def step(parameter: Tensor, optimizer: Any = optimizer) -> None:
                optimizer.step()
                optimizer.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)
    for rows in ROWS.values():
        x = torch.randn(sum(rows), WIDTH)
        pair.one(x).square().mean().backward()
        pair.model(*pair.mine(rows, x)).square().mean().backward()
        pair.assert_same()
        assert all(p.grad is None for p in pair.model.parameters())


def case_closures_get_the_loss_of_all_ranks() -> None:
    pair = Pair(Net())
    ours, its = (
        torch.optim.LBFGS(m.parameters(), max_iter=6, line_search_fn="strong_wolfe")
        for m in (pair.model, pair.one)
    )
    for rows, by_name in ((ROWS["even"], False), (ROWS["uneven"], False), (ROWS["uneven"], True)):
        x, y = torch.randn(sum(rows), WIDTH), torch.randn(sum(rows), 1)

        def closure(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
            def compute() -> Tensor:
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean()
                loss.backward()
                return loss

            return compute

        given = closure(pair.model, ours, *pair.mine(rows, x, y))
        found = ours.step(closure=given) if by_name else ours.step(given)
        expected = its.step(closure(pair.one, its, x, y))
        torch.testing.assert_close(float(found), float(expected), rtol=1e-9, atol=0)
        for p, q in zip(pair.model.parameters(), pair.one.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


def case_contrastive_losses_over_all_ranks() -> None:
    def whole(a: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(a @ b.T, torch.arange(len(a)))

    pair = Pair(nn.Linear(WIDTH, 4))
    for rows in (ROWS["even"], ROWS["uneven"]):
        for local in (False, True):
            pair.one.zero_grad()
            pair.model.zero_grad()
            x = torch.randn(sum(rows), WIDTH)
            features = pair.one(x)
            whole(features, features.roll(1, 1)).backward()
            own = pair.model(*pair.mine(rows, x))
            joined = anyrig.gather_over_ranks(own)
            if local:
                start = sum(rows[: pair.rank])
                places = torch.arange(start, start + len(own))
                functional.cross_entropy(own @ joined.roll(1, 1).T, places).backward()
            else:
                whole(joined, joined.roll(1, 1)).backward()
            pair.assert_same("gradients")
    with torch.no_grad():
        assert not anyrig.gather_over_ranks(pair.model(x[:2])).requires_grad


def case_losses_against_fewer_gathered_entries_than_samples() -> None:
    """Each rank gives one entry, and its loss counts by its samples."""
    pair = Pair(nn.Linear(WIDTH, 4))
    for rows in (ROWS["even"], ROWS["uneven"]):
        pair.one.zero_grad()
        pair.model.zero_grad()
        x = torch.randn(sum(rows), WIDTH)
        features = pair.one(x)
        (features @ features[[0, rows[0]]].T).square().mean().backward()
        own = pair.model(*pair.mine(rows, x))
        (own @ anyrig.gather_over_ranks(own[:1]).T).square().mean().backward()
        pair.assert_same("gradients")


class Opaque:
    """A batch that shows neither tensors nor a number of samples."""

    def __init__(self, rows: list[Tensor]) -> None:
        self._rows = rows


class OfOpaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(WIDTH, 1)

    def forward(self, batch: Opaque, scale: Any = None) -> Tensor:
        return self.net(torch.stack(batch._rows))


def case_samples_are_counted_where_a_loader_gave_them() -> None:
    data = [torch.randn(WIDTH) for _ in range(14)]
    pair = Pair(OfOpaque())
    for given in ("loader", "samples"):
        loader = DataLoader(data, batch_size=5, collate_fn=Opaque)
        for index, batch in enumerate(anyrig.distribute(loader)):
            pair.one.zero_grad()
            pair.model.zero_grad()
            pair.one(Opaque(data[5 * index : 5 * index + 5])).square().mean().backward()
            known = {} if given == "loader" else {"samples": len(batch._rows)}
            pair.model(
                batch if given == "loader" else Opaque(batch._rows), **known
            ).square().mean().backward()
            pair.assert_same("gradients")


class OfColumns(nn.Linear):
    """Takes a sample in each column."""

    def forward(self, batch: Tensor) -> Tensor:
        return super().forward(batch.T)


def case_inputs_with_a_gradient_belong_to_the_batch_of_their_loader() -> None:
    data = [torch.randn(WIDTH) for _ in range(5)]
    pair = Pair(OfColumns(WIDTH, 1))
    pair.one(torch.stack(data, 1)).square().mean().backward()
    loader = DataLoader(data, batch_size=5, collate_fn=partial(torch.stack, dim=1))
    (batch,) = anyrig.distribute(loader)
    pair.model(batch.requires_grad_()).square().mean().backward()
    pair.assert_same("gradients")


def case_ambiguous_arguments_are_refused() -> None:
    model = anyrig.spread(OfOpaque().double())
    x = torch.randn(3, WIDTH)
    for batch in (
        {"mask": torch.ones(1, 1, WIDTH), "x": x},
        (torch.tensor([224, 224]), x),
        [torch.randn(3, 2), torch.randn(3, 2)],
    ):
        with pytest.raises(BatchError, match="samples="):
            model(batch)
    with pytest.raises(BatchError, match=r"samples=-1 is not a number of samples"):
        model(Opaque([x[0]]), samples=-1)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 3)


class Buffered(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, 3)
        self.register_buffer("adjacency", torch.eye(WIDTH).to_sparse())


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, 3)
        self.scale = nn.Parameter(torch.ones(()))


def case_all_ranks_choose_by_the_smallest_device() -> None:
    """A module that fits rank 0's device, and not rank 1's."""
    total = 10**6 if dist.get_rank() == 0 else 100
    rig = anyrig.Rig((anyrig.Device("cuda", 0, "a GPU", total_bytes=total),), "a GPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyrig.Rig, "detect", lambda: rig)
        model = anyrig.spread(nn.Linear(WIDTH, WIDTH))
    layout = anyrig.explain(model)
    assert layout.plan == Shards()
    assert "and the smallest device has 100 B; this process is one rank" in layout.reason


def case_what_shards_refuse_at_once() -> None:
    mixed = nn.Sequential(nn.Linear(WIDTH, 6), nn.LayerNorm(6, dtype=torch.bfloat16))
    of_complex = nn.Sequential(nn.Linear(WIDTH, 6), nn.Bilinear(6, 6, 3, dtype=torch.complex64))
    for module, words in (
        (Sparse(), r"table is an Embedding with sparse=True.*sparse=False"),
        (mixed, r"0\.weight is torch\.float64, 1\.weight is torch\.bfloat16\. Convert"),
        (of_complex, r"1\.weight is torch\.complex64"),
        (Buffered(), r"buffer adjacency is sparse.*to_dense"),
        (Scaled(), r"scale has no dimensions.*module\.scale = torch\.nn\.Parameter.*reshape\(1\)"),
        (nn.Sequential(nn.LazyLinear(3)), r"0\.weight has no shape yet.*Call the module once"),
    ):
        with pytest.raises(SpreadError, match=words):
            anyrig.spread(module, plan=Shards())
    for make in (torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.Rprop):
        model = anyrig.spread(nn.Linear(WIDTH, 3), plan=Shards())
        optimizer = make(model.parameters())
        model(torch.randn(2, WIDTH)).square().mean().backward()
        with pytest.raises(SpreadError, match=rf"{make.__name__} cannot compute.*AdamW.*Replicas"):
            optimizer.step(lambda: 0.0)


def case_a_whole_state_is_loaded_into_shards() -> None:
    torch.manual_seed(3)
    pretrained = Net().double()
    for assign in (False, True):
        model = anyrig.spread(Net().double(), plan=Shards())
        model.load_state_dict(pretrained.state_dict(), assign=assign)
        for name, shard in model.state_dict().items():
            assert torch.equal(shard.full_tensor(), pretrained.state_dict()[name])
        prefixed = {f"module.{name}": v + 1 for name, v in pretrained.state_dict().items()}
        model.load_state_dict(prefixed, assign=assign)
        whole = model.state_dict()["first.weight"].full_tensor()
        assert torch.equal(whole, pretrained.first.weight + 1)


def case_gradients_of_gradients_in_shards() -> None:
    def step(model: Any, module: Any, x: Tensor, y: Tensor) -> None:
        ((model(x) - y).square().mean() + _penalty(model, x)).backward()

    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]
    for net in (nn.Sequential(*layers, nn.Linear(WIDTH, 1)), nn.Linear(WIDTH, 1)):
        pair = Pair(net, plan=Shards())
        for rows in (ROWS["even"], ROWS["uneven"], ROWS["even"]):
            pair.model.zero_grad()
            pair.one.zero_grad()
            x, y = torch.randn(sum(rows), WIDTH), torch.randn(sum(rows), 1)
            step(pair.one, None, x, y)
            step(pair.model, None, *pair.mine(rows, x, y))
            pair.assert_same("gradients")


def case_a_pass_without_a_forward_is_refused() -> None:
    module = nn.Linear(WIDTH, 1).double()
    anyrig.processes.group.membership.current_context().last_forward = None
    model = anyrig.spread(module)
    with pytest.raises(SpreadError, match=r"no spread model was called before.*training_step"):
        module(torch.randn(2, WIDTH)).sum().backward()
    model(torch.randn(2, WIDTH)).sum().backward()


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        raise ArithmeticError


def case_a_pass_after_one_that_failed_half_way_is_refused() -> None:
    layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)]
    module = nn.Sequential(*layers).double()
    model = anyrig.spread(module, plan=Replicas(ddp={"bucket_cap_mb": 1e-5}))
    x = torch.randn(2, WIDTH)
    handle = module[0].register_forward_hook(lambda *given: FailsBackward.apply(given[2]))
    with pytest.raises(ArithmeticError):
        model(x).sum().backward()
    handle.remove()
    with pytest.raises(SpreadError, match=r"failed before the ranks had averaged.*new copy"):
        model(x).sum().backward()


CASES = [name for name in globals() if name.startswith("case_")]


@cache
def _world() -> World:
    return run_cases([f"test_global_gradients.{case}" for case in CASES], 2)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_like_one_device(case: str) -> None:
    assert _world()[f"test_global_gradients.{case}"] == {}
