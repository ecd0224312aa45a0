"""Training states with generated names: module trees, keywords and keys from the file formats."""

from __future__ import annotations

import inspect
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anyrig
from anyrig.errors import CheckpointError

PLAIN = ["a", "b", "fc", "weight", "layer1", "critic", "teacher", "h"]
# Words of safetensors, of Hugging Face's index, of torch.distributed.checkpoint, of values.pt, of
# PyTorch's wrappers, and of anyrig's own names.
RESERVED = [
    *("format", "pt", "__metadata__", "dtype", "shape", "data_offsets", "weight_map", "metadata"),
    *("DCP_SHARDING_INFO", "saved_offsets", "modules", "optimizers", "states", "random", "given"),
    *("values", "tensors", "groups", "params", "_extra_state", "_orig_mod", "module", "model"),
    *("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "optimizer", "exact-state", "state"),
    "parameter 0 of group 0",
]
# Keys that may not stand for another name of a tensor.
KEYS_OF_HEADERS = ["format", "DCP_SHARDING_INFO", "__metadata__"]
DIGITS = ["0", "1", "00", "00001-of-00002", "-00001-of-00002", "1-int", "12345678901234567890"]
LOOK_ALIKES = ["critic/0", "a/b", "A", "\u0430", "\u00e9", "e\u0301", "\uff41", "a ", "ﬁ", "fi"]
STRANGE = [
    *("x" * 255, "é" * 127, "🙂", " ", "\n", "\0", '"', "\\", "'", "\u202e", "\ud800", "a\x7f"),
    *("../a", "..\\a", "~", "$HOME", "CON", "%C3%A9", "-a", "🙂" * 63),
]
DOTTED = [
    *("optimizer.a", "optimizer.0", "model-00001-of-00002", "model.shard.00001-of-00004", "a.b"),
    *("model.shard.x", "model.safetensors", "model.safetensors.index", "values.pt", "scheduler.a"),
    *("manifest.json", "optimizer.safetensors", "a.b.safetensors.index.json", ".a", "a.", "."),
    *("which", "verify", "exact", "random_numbers", "loader.a", "a-00001-of-00001", "tmp-1"),
]
ARGUMENTS = {*inspect.signature(anyrig.save).parameters}


class Training:
    """Objects to save, and values to give to `save` by their names."""

    def __init__(self, number: int, in_shards: bool = False) -> None:
        self._draw = random.Random(number)
        # Few states get many odd names; otherwise nearly all would be refused.
        self._oddness = self._draw.choice([0.0, 0.1, 0.3, 0.6])
        self.modules = {"model": self._tree(3)}
        for _ in range(self._draw.choice([0, 0, 1, 2])):
            self.modules[self._keyword()] = self._tree(2)
        if in_shards:
            from torch.distributed.fsdp import fully_shard

            for module in self.modules.values():
                fully_shard(module)
        parameters = [*{p: None for m in self.modules.values() for p in m.parameters()}]
        self.optimizers: Any = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        if self._draw.random() < 0.4:
            halves = (parameters[::2], parameters[1::2] or [nn.Parameter(torch.ones(1))])
            keys = self._draw.sample([1, "1", "a", "b", "0", 0, "a-b", "é", "-", "x" * 255], 2)
            self.optimizers = {
                key: torch.optim.SGD(half, 0.1, momentum=0.9)
                for key, half in zip(keys, halves, strict=True)
            }
        self.values = {
            self._keyword(): self._draw.random() for _ in range(self._draw.choice([0, 1]))
        }
        for key in self.values.keys() & self.modules.keys():
            del self.values[key]

    def fill(self, seed: int) -> None:
        """Fill every tensor with random values, and take a step of the optimizers."""
        torch.manual_seed(seed)
        for tensor in self._own_tensors():
            with torch.no_grad():
                local(tensor).copy_(torch.randn(local(tensor).shape))
        for optimizer in self._each_optimizer():
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.grad = parameter.detach().clone()
            optimizer.param_groups[0]["lr"] = seed / 7
            optimizer.step()

    def objects(self) -> dict[str, Any]:
        return {**self.modules, "optimizer": self.optimizers}

    def state(self) -> list[Any]:
        """Return copies of all that must be restored, in an order that the names do not change."""
        rates = [each.param_groups[0]["lr"] for each in self._each_optimizer()]
        moments = [
            each.state[p]["momentum_buffer"]
            for each in self._each_optimizer()
            for p in each.param_groups[0]["params"]
        ]
        return rates + [local(each).clone() for each in (*self._own_tensors(), *moments)]

    def _own_tensors(self) -> list[Tensor]:
        named = [(*each.parameters(), *each.buffers()) for each in self.modules.values()]
        return [each for its in named for each in its]

    def _each_optimizer(self) -> list[torch.optim.Optimizer]:
        several = isinstance(self.optimizers, dict)
        return [*self.optimizers.values()] if several else [self.optimizers]

    def _name(self, *more: str) -> str:
        if self._draw.random() >= self._oddness:
            return self._draw.choice(PLAIN)
        kinds = (RESERVED, RESERVED, DIGITS, LOOK_ALIKES, STRANGE, *([[*more]] if more else []))
        return self._draw.choice(self._draw.choice(kinds))

    def _keyword(self) -> str:
        name = self._name(*DOTTED)
        return f"{name}_" if name in ARGUMENTS else name

    def _tree(self, depth: int) -> nn.Module:
        module = nn.Module()
        made: list[nn.Parameter] = []
        for _ in range(self._draw.choice([1, 1, 2, 3])):
            tensor, name = nn.Parameter(torch.zeros(self._draw.choice([2, 4]), 2)), self._name()
            if made and self._draw.random() < 0.3:  # tied
                tensor = self._draw.choice(made)
                name = self._draw.choice([name, *KEYS_OF_HEADERS]) if self._oddness else name
            made.append(tensor)
            with suppress(KeyError):  # modules have an attribute of this name
                module.register_parameter(name, tensor)
        with suppress(KeyError):
            module.register_buffer(self._name(), torch.zeros(3))
        for _ in range(self._draw.choice([0, 1, 2]) if depth else 0):
            with suppress(KeyError):
                module.add_module(self._name(), self._tree(depth - 1))
        return module


def local(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


def try_names(number: int, folder: Path, *, in_shards: bool = False) -> bool:
    """Save a training state and load it into another one; return False if its names are refused."""
    try:
        saved, loaded = Training(number, in_shards), Training(number, in_shards)
        saved.fill(1), loaded.fill(2)
    except (ValueError, UnicodeError):  # PyTorch refuses a name of a module in shards
        assert in_shards
        return False
    try:
        anyrig.save(folder, step=number, **saved.objects(), **saved.values)
    except CheckpointError:
        assert not folder.exists()
        return False
    expected = saved.state()
    found = anyrig.load(folder, **loaded.objects())
    assert found.step == number
    assert dict(found.values) == saved.values
    got = loaded.state()
    assert len(got) == len(expected)
    for one, other in zip(expected, got, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    return True


def try_names_in_shards(folder: str, numbers: list[int], least: int) -> None:
    """Try the names of training states in shards; every rank calls this."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    saved = [try_names(number, Path(folder) / str(number), in_shards=True) for number in numbers]
    assert sum(saved) >= least, (sum(saved), least)
    dist.destroy_process_group()
