"""Runs random programs on small tensors of a virtual GPU and prints the tensors at their ends.

In shape-only mode, a tensor whose values are unknown is printed as ``?``. All choices depend on the
seed alone, so the programs of both modes are the same.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from anyrig.errors import ValueNeededError
from anyrig.virtual import install

PROGRAMS, STEPS, LENGTH = 200, 25, 8
Pool = list[Tensor]
Step = Callable[[Pool, random.Random], "Tensor | None"]


def part(pool: Pool, dice: random.Random, length: int | None = None) -> Tensor:
    """Return a view of a tensor of the pool, of `length` numbers if given."""
    tensor = dice.choice(pool)
    if length is None:
        start = dice.randrange(LENGTH)
        return tensor[start :: dice.choice([1, 1, 2])]
    if length == LENGTH:
        return tensor
    start = dice.randrange(LENGTH - length + 1)
    return tensor[start : start + length]


def pair(pool: Pool, dice: random.Random) -> tuple[Tensor, Tensor]:
    """Return two views of one length."""
    length = dice.choice([1, 3, LENGTH, LENGTH])
    return part(pool, dice, length), part(pool, dice, length)


def add_number(pool: Pool, dice: random.Random) -> None:
    part(pool, dice).add_(dice.randrange(4))


def add_in_place(pool: Pool, dice: random.Random) -> None:
    a, b = pair(pool, dice)
    a.add_(b.clone())


def copy_in_place(pool: Pool, dice: random.Random) -> None:
    a, b = pair(pool, dice)
    a.copy_(b.clone())


def write_by_mask(pool: Pool, dice: random.Random) -> None:
    a, b = part(pool, dice, LENGTH), part(pool, dice, LENGTH)
    a.masked_fill_(b > 2, dice.randrange(5))


def write_by_index(pool: Pool, dice: random.Random) -> None:
    places = torch.tensor(dice.sample(range(LENGTH), 3), device="cuda")
    part(pool, dice, LENGTH)[places] = part(pool, dice, 3).clone()


def write_out(pool: Pool, dice: random.Random) -> None:
    a, b = pair(pool, dice)
    out = part(pool, dice, len(a))
    torch.add(a.clone(), b.clone(), out=out)


def write_new_out(pool: Pool, dice: random.Random) -> Tensor:
    out = torch.empty(0, dtype=torch.long, device="cuda")
    return torch.cumsum(part(pool, dice, LENGTH), 0, out=out)


def write_several(pool: Pool, dice: random.Random) -> None:
    torch._foreach_add_([part(pool, dice, 3), part(pool, dice, LENGTH)], dice.randrange(4))


def write_through_alias(pool: Pool, dice: random.Random) -> None:
    alias = torch.from_dlpack(part(pool, dice, LENGTH).__dlpack__())
    alias[dice.randrange(LENGTH)] = dice.randrange(9)


def write_to_storage(pool: Pool, dice: random.Random) -> None:
    a, b = part(pool, dice, LENGTH).clone(), part(pool, dice, LENGTH).clone()
    a.untyped_storage().copy_(b.untyped_storage())
    pool.append(a)


def change_storage(pool: Pool, dice: random.Random) -> Tensor:
    tensor = torch.zeros(3, dtype=torch.long, device="cuda")
    source = part(pool, dice, LENGTH)
    tensor.set_(source)
    return tensor


def resize(pool: Pool, dice: random.Random) -> Tensor:
    tensor = part(pool, dice, LENGTH).clone()
    tensor.resize_(dice.choice([3, 2 * LENGTH]))
    return tensor.resize_(LENGTH) if dice.random() < 0.5 else tensor[:3].repeat(3)[:LENGTH]


def clone_lazily(pool: Pool, dice: random.Random) -> Tensor:
    return torch._lazy_clone(part(pool, dice, LENGTH).clone() if dice.random() < 0.5 else pool[-1])


def capture(pool: Pool, dice: random.Random) -> Tensor:
    static = part(pool, dice, LENGTH).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.add_(1)
    static.fill_(dice.randrange(3))
    if dice.random() < 0.7:
        graph.replay()
    return static


def differentiate(pool: Pool, dice: random.Random) -> Tensor:
    leaf = part(pool, dice, LENGTH).double().requires_grad_()
    product = leaf * leaf
    (product * part(pool, dice, LENGTH)).sum().backward()
    return leaf.grad.long()


def draw(pool: Pool, dice: random.Random) -> None:
    choices = (
        lambda tensor: tensor.random_(0, 9),
        lambda tensor: tensor.bernoulli_(0.5),
        lambda tensor: tensor.geometric_(0.5),
        lambda tensor: torch.randperm(len(tensor), out=tensor.clone()),
        lambda tensor: tensor.copy_(torch.randint(0, 9, tensor.shape, device="cuda")),
    )
    dice.choice(choices)(part(pool, dice, dice.choice([3, LENGTH])))


STEPS_BY_NAME: dict[str, Step] = {
    "zeros": lambda pool, dice: torch.zeros(LENGTH, dtype=torch.long, device="cuda"),
    "full": lambda pool, dice: torch.full((LENGTH,), dice.randrange(5), device="cuda"),
    "arange": lambda pool, dice: torch.arange(LENGTH, device="cuda"),
    "host": lambda pool, dice: torch.tensor(dice.choices(range(9), k=LENGTH)).cuda(),
    "empty": lambda pool, dice: torch.empty(LENGTH, dtype=torch.long, device="cuda"),
    "sum": lambda pool, dice: part(pool, dice, LENGTH) + part(pool, dice, 1),
    "where": lambda pool, dice: torch.where(
        part(pool, dice, LENGTH) > 2, part(pool, dice, LENGTH), part(pool, dice, 1)
    ),
    "cumsum": lambda pool, dice: part(pool, dice, LENGTH).cumsum(0),
    "diff": lambda pool, dice: torch.diff(part(pool, dice, LENGTH), prepend=part(pool, dice, 1)),
    "sort": lambda pool, dice: part(pool, dice, LENGTH).sort().values,
    "flip": lambda pool, dice: part(pool, dice, LENGTH).flip(0),
    "compare": lambda pool, dice: (part(pool, dice, LENGTH) == part(pool, dice, 1)).long(),
    "count": lambda pool, dice: part(pool, dice).sum() + part(pool, dice, LENGTH) * 0,
    "number": add_number,
    "add": add_in_place,
    "copy": copy_in_place,
    "by mask": write_by_mask,
    "by index": write_by_index,
    "out": write_out,
    "new out": write_new_out,
    "foreach": write_several,
    "alias": write_through_alias,
    "storage": write_to_storage,
    "set": change_storage,
    "resize": resize,
    "lazy": clone_lazily,
    "graph": capture,
    "backward": differentiate,
    "draw": draw,
}


def read(tensor: Tensor) -> str:
    try:
        return str(tensor.tolist())
    except ValueNeededError:
        return "?"


def main() -> None:
    install("1xA100-80GB", shape_only="--shape-only" in sys.argv)
    warnings.simplefilter("ignore")
    for seed in range(PROGRAMS):
        dice = random.Random(seed)
        pool: Pool = [torch.arange(LENGTH, device="cuda")]
        names = []
        for _ in range(STEPS):
            name = dice.choice(list(STEPS_BY_NAME))
            names.append(name)
            made = STEPS_BY_NAME[name](pool, dice)
            if made is not None:
                pool.append(made)
            pool = pool[-6:]
        for place, tensor in enumerate(pool):
            print(seed, place, read(tensor), sep="|")
        if "--names" in sys.argv:
            print(seed, names)


if __name__ == "__main__":
    main()
