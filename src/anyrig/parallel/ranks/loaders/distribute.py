"""`distribute`: a loader of each rank's part of every global batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch.utils.data import DataLoader

from ....devices.place import Places, as_rig
from ....errors import BatchError, RankMismatchError
from ....processes.group.board import Board, board_of
from ....processes.group.membership import Context, current_context, join_group
from ....transfer.prefetch import PrefetchedLoader
from ...plans import Exact, Pipeline, Plan, Replicas
from ...shares.shares import Shares
from ...spread_module import explain
from ..balance import choose_balance
from ..given_batches import GivenBatches
from .given_loader import (
    allows_singles,
    batch_size_of,
    global_batches_of,
    length_of,
    refuse_divided,
)
from .position import Iteration, Position, position_from_state
from .sampled import SampledDivision
from .streamed import StreamedDivision
from .turns import Turns

LoaderT = TypeVar("LoaderT", bound=Iterable[Any])

Division = SampledDivision | StreamedDivision

_SAMPLED, _STREAMED = "one with indices", "one without indices"
_DIVIDED = "one that came divided"


def distribute(
    loader: LoaderT,
    model: torch.nn.Module | None = None,
    rig: Places | None = None,
    *,
    shares: str | Sequence[float] | Shares | None = None,
    divided: bool | None = None,
    singles: bool | None = None,
    seed: int | None = None,
    empty: Callable[[], Any] | None = None,
    timeout_seconds: float = 600.0,
) -> LoaderT:
    """Return a loader that yields this rank's part of every batch of `loader`.

    ::

        loader = DataLoader(data, batch_size=256, shuffle=True)      # the global batch
        loader = anyrig.prefetch(anyrig.distribute(loader, model), rig)
        for x, y in loader:                                          # this rank's samples of it

    A batch of `loader` is a *global batch*. Each rank has some of its samples; together the ranks
    have every sample once. The model's plan decides which: the ranks of one pipeline have the same
    samples, and with `Exact` rank r of R has the logical shards r, r + R, and so on. All ranks have
    the same number of batches:
    where a global batch is too small, some ranks get an empty batch of the same structure. A
    process without a group gets whole batches, in the same order as in a group.

    A `DataLoader` over a dataset with indices is rebuilt, so that each rank loads its own samples
    only. Any other loader must yield the same batches on every rank, or, with ``divided=True``,
    each rank's own batches. docs/distributed.md describes the cases.

    The result has the length and the attributes of `loader`; each iteration is an epoch. To resume,
    it has ``set_epoch(epoch, skip_batches)``, and ``state_dict()`` for `anyrig.save`. Every rank
    must call this function.

    Args:
        loader: any iterable.
        model: what `spread` returned, whose plan divides the batches. Without it, each rank gets a
            share.
        rig: its lead is this rank's device; by default the model's, or `Rig.detect` chooses.
        shares: how much of a global batch each rank gets: as for `Replicas`, with one number for
            each rank. By default those of the model's plan.
        divided: whether each rank's loader yields that rank's own batches. None means no, and
            compares the ranks' batches; ``False`` means no, and compares nothing.
        singles: whether a rank may get one sample of several, from which batch normalization
            cannot learn. By default only if ``batch_size`` is at most one sample for each rank.
        seed: the seed of the order; by default from the generator of rank 0's loader, or PyTorch's.
        empty: returns a batch without samples, for loaders whose batches do not show its form.
        timeout_seconds: how long to wait for the other ranks.

    Raises:
        BatchError: `loader` is not iterable, or would be divided twice: it was distributed before
            or has a `DistributedSampler`; it has no indices to divide into logical shards; a
            pipeline of this group needs `model`; or the model's plan has other shares.
        SpreadError: `model` was not spread.
        SharesError: there are not as many shares as ranks, or the policy is unknown.
        RankMismatchError: the ranks distribute different kinds of loaders, or (while iterating)
            loaders that yield different batches.
        RankWaitError: another rank did not come in time.
    """
    _refuse(loader)
    layout = None if model is None else explain(model)
    plan = Replicas() if layout is None else layout.plan
    rig = None if rig is None else as_rig(rig)
    group = join_group(rig) if layout is None or rig is not None else layout.group
    board = None if group is None else board_of(group)
    rank, ranks = (0, 1) if group is None else (group.rank, group.world_size)
    global_batches = None if divided else global_batches_of(loader)
    shares = _shares_of(plan, shares)
    logical_shards = None
    if isinstance(plan, Exact):
        logical_shards, singles = plan.shards, True
        if global_batches is None or shares != "even":
            raise BatchError(
                "Exact divides every global batch in the same way on every device, by "
                "the indices of its samples: pass a DataLoader over a dataset with indices, "
                "without shares= and divided="
            )
        if group is not None:
            current_context().logical_shards.add(logical_shards)
    balance = None
    sharers = ranks // plan.replicas if isinstance(plan, Pipeline) and ranks > 1 else None
    if group is not None and model is None:
        _note_without_model(current_context())
    if group is not None and not divided:
        refuse_divided(loader)
        pipelines = None if sharers is None else ranks // sharers
        balance = choose_balance(shares, group, rig, pipelines)
    generator = getattr(loader, "generator", None)
    seeded = generator if isinstance(generator, torch.Generator) else torch
    facts = _Facts(
        kind=_DIVIDED if divided else _STREAMED if global_batches is None else _SAMPLED,
        seed=seeded.initial_seed() if seed is None else seed,
        length=length_of(loader),
        singles=allows_singles(loader, ranks // (sharers or 1)) if singles is None else singles,
    )
    of_ranks = [facts] if board is None else _exchange(board, facts, timeout_seconds)
    lengths = [-1 if each.length is None else each.length for each in of_ranks]
    turns = Turns(
        name="loader" if board is None else f"loader/{board.number('loader')}",
        rank=rank,
        board=board,
        balance=balance,
        singles=of_ranks[0].singles,
        divided=bool(divided),
        longest=None if -1 in lengths else max(lengths),
        timeout_seconds=timeout_seconds,
        shared_part=None if sharers is None else rank // sharers,
        logical_shards=logical_shards,
    )
    division: Division
    if global_batches is not None:
        assert isinstance(loader, DataLoader)
        division = SampledDivision(loader, global_batches, turns, of_ranks[0].seed, empty)
    else:
        compares = divided is None and ranks > 1
        division = StreamedDivision(loader, turns, empty, compares, of_ranks[0].seed)
    return cast("LoaderT", DistributedLoader(loader, division))


def _shares_of(
    plan: Plan, shares: str | Sequence[float] | Shares | None
) -> str | Sequence[float] | Shares:
    """Return the shares that a plan and a caller ask for; raise BatchError if they differ."""
    planned = plan.shares if isinstance(plan, Replicas) else "auto"
    if isinstance(plan, Exact):
        planned = "even"
    if shares is None or planned in ("auto", shares):
        return planned if shares is None else shares
    raise BatchError(
        f"distribute(shares={shares!r}) was given, but the model was spread with {plan}, whose "
        f"shares are {planned!r}. Leave shares= out"
    )


def _note_without_model(context: Context) -> None:
    """Count a loader that knows no model; raise BatchError if a model here is a pipeline."""
    if context.counts["pipelines"]:
        raise BatchError(
            "a model of this process group is a pipeline, whose ranks need the same samples: call "
            "anyrig.distribute(loader, model), with the model that this loader is for"
        )
    context.counts["loaders without a model"] += 1


class DistributedLoader:
    """The loader that `distribute` returns. Other attributes are those of the given loader."""

    _loader: Iterable[Any]
    _division: Division
    _next: tuple[int, int]
    _iteration: Iteration
    _resumed: tuple[int, int] | None

    def __init__(self, loader: Iterable[Any], division: Division) -> None:
        self.__dict__.update(_loader=loader, _division=division, _next=(0, 0), _resumed=None)
        self.__dict__["_iteration"] = Iteration(0, 0, is_over=True)

    def __iter__(self) -> Iterator[Any]:
        epoch, skip_batches = self._next
        self.__dict__.update(_next=(epoch + 1, 0), _resumed=None)
        batches = self._division.batches(epoch, skip_batches)
        iteration = self.__dict__["_iteration"] = Iteration(epoch, skip_batches)
        return iteration.count(self._note_samples(batches))

    def _note_samples(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield `batches`, and note for models of the group how many samples each has."""
        turns = self._division.turns
        if turns.divided or turns.board is None:
            yield from batches
            return
        context = current_context()
        if context.given_batches is None:
            context.given_batches = GivenBatches()
        for batch in batches:
            context.given_batches.note(batch, turns.samples_of_batches[-1][turns.part])
            yield batch

    def set_epoch(self, epoch: int, skip_batches: int | None = None) -> None:
        """Make the next iteration `epoch`, beginning with global batch `skip_batches`.

        Without a call, the epochs are numbered from zero. Without `skip_batches`, the epoch begins
        with its first batch; or, if `load_state_dict` has set a position in this epoch, with the
        batch after that.
        """
        resumed = self._resumed
        if skip_batches is None:
            skip_batches = resumed[1] if resumed is not None and resumed[0] == epoch else 0
        self.__dict__["_next"] = epoch, skip_batches
        self.__dict__["_iteration"] = Iteration(epoch, skip_batches, is_over=True)

    def state_dict(self) -> dict[str, int | None]:
        """Return the position: which global batches this loader's user has received, as numbers.

        The position is the same on every rank, and `load_state_dict` takes it on any number of
        ranks. Batches that workers have loaded ahead do not count as received. A loop that was left
        early leaves the position in its epoch, so that no sample is skipped.
        """
        return self._position().as_state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next iteration continue after the position that `state_dict` returned.

        Raise CheckpointError if the loader does not have the same global batches.
        """
        position = position_from_state(state_dict)
        position.require_same_batches(self._position())
        self._division.seed = position.seed
        self.__dict__["_resumed"] = self.__dict__["_next"] = position.epoch, position.received
        self.__dict__["_iteration"] = Iteration(position.epoch, position.received, is_over=True)

    def _position(self) -> Position:
        iteration, turns = self._iteration, self._division.turns
        epoch, received = self._next if iteration.is_over else (iteration.epoch, iteration.received)
        return Position(
            epoch=epoch,
            received=received,
            seed=self._division.seed,
            batch_size=batch_size_of(self._loader),
            batches=None if turns.divided else length_of(self._loader),
            divided_ranks=turns.ranks if turns.divided else None,
            logical_shards=turns.logical_shards,
        )

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._next[0]

    @property
    def shares(self) -> Shares | None:
        """The share of each rank in a global batch, and why; None with ``divided=True``."""
        return self._division.turns.shares

    @property
    def samples_of_batches(self) -> list[tuple[int, ...]] | None:
        """How many samples each rank had in each global batch of the last iteration; None with
        ``divided=True``.
        """
        turns = self._division.turns
        return None if turns.divided else turns.samples_of_batches

    @property
    def logical_shards(self) -> int | None:
        """The number of logical shards of each global batch; None if it is divided by shares."""
        return self._division.turns.logical_shards

    def __len__(self) -> int:
        """Return the number of batches; raise TypeError if some rank's loader has no length."""
        turns = self._division.turns
        if not turns.divided:
            return len(self._loader)  # type: ignore[arg-type]
        if turns.longest is None:
            raise TypeError("the loader of some rank has no length")
        return turns.longest

    def __getattr__(self, name: str) -> Any:
        if "_loader" not in self.__dict__:  # while a copy is being made
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __repr__(self) -> str:
        return f"distribute({self._loader!r})"


class _Facts(NamedTuple):
    """What a rank announces about its loader."""

    kind: str
    seed: int
    length: int | None
    singles: bool


def _exchange(board: Board, facts: _Facts, timeout_seconds: float) -> list[_Facts]:
    own = json.dumps(facts).encode()
    given = board.exchange("loaders", own, timeout_seconds, "distribute()")
    of_ranks = [_Facts(*json.loads(text)) for text in given]
    for rank, other in enumerate(of_ranks):
        if other.kind != of_ranks[0].kind:
            raise RankMismatchError(
                f"rank 0 distributes a loader that is {of_ranks[0].kind}, but rank {rank} has "
                f"{other.kind}; let all ranks distribute the same loaders in the same order"
            )
        if facts.kind != _DIVIDED and other.length != of_ranks[0].length:
            raise RankMismatchError(
                f"rank 0 distributes a loader of {of_ranks[0].length} batches, but rank {rank} has "
                f"one of {other.length}. Give every rank the whole data, from which it takes its "
                "part; or, if each rank's loader has samples of its own, pass divided=True"
            )
    return of_ranks


def _refuse(loader: Any) -> None:
    """Raise BatchError if `loader` is not iterable or was distributed before."""
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise BatchError(
            f"cannot distribute a value of type {type(loader).__name__}: it cannot be iterated "
            "over. Pass the loader that yields the batches"
        )
    while isinstance(loader, PrefetchedLoader):
        loader = loader._loader
    if isinstance(loader, DistributedLoader):
        raise BatchError(
            "this loader is distributed already, and its parts would be divided once more; "
            "distribute the loader of the global batches, once"
        )
