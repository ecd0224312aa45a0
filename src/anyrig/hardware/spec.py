"""Published facts of GPUs (memory, rates, links), looked up by exact name and never guessed."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any

from ..errors import UnknownHardwareError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


# Characters to ignore in a key.
_IGNORED = str.maketrans("", "", "-_ ")

# What people leave out at the start of a folded name: the vendor and the series.
_SERIES = ("nvidia", "amd", "tesla", "geforce", "instinct", "rtx")


@dataclass(frozen=True)
class Spec:
    """The published facts of one GPU model.

    Attributes:
        key: anyrig's name for the model, as in ``anyrig rehearse --rig 4xA100-80GB``.
        names: the exact names that drivers report for the model.
        architecture: ``"ampere"``, ``"hopper"``, …
        capability: CUDA compute capability ``(major, minor)``; None for models without one.
        multiprocessors: streaming multiprocessors, or compute units.
        memory_bytes: usable memory, which is less than the advertised size.
        memory_bytes_per_second: bandwidth of the GPU's own memory.
        flops_per_second: dense rate by dtype name (``"float64"``, ``"float32"``, ``"tfloat32"``,
            ``"bfloat16"``, ``"float16"``, ``"float8"``, ``"int8"``); a dtype that is absent is
            unknown or not accelerated.
        link: the fastest path to another GPU of this model: ``"nvlink"``, ``"pcie"``, ``"xgmi"``.
        link_bytes_per_second: rate of the link in one direction; None if unknown.
        pcie_bytes_per_second: rate to the host in one direction.
        source: the publication of the figures.
        watts: default power limit of the board; None if unknown.
        clock_hertz: the boost clock of the multiprocessors; None if unknown.
        l2_bytes: the size of the L2 cache; None if unknown.
        relatives: keys of GPUs whose measured coefficients apply where this one has none, the
            nearest first.
    """

    key: str
    names: tuple[str, ...]
    architecture: str
    capability: tuple[int, int] | None
    multiprocessors: int
    memory_bytes: int
    memory_bytes_per_second: float
    flops_per_second: Mapping[str, float] = field(hash=False)
    link: str
    link_bytes_per_second: float | None
    pcie_bytes_per_second: float
    source: str
    watts: float | None = None
    clock_hertz: float | None = None
    l2_bytes: int | None = None
    relatives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.memory_bytes <= 0 or self.memory_bytes_per_second <= 0:
            given = f"{self.memory_bytes} and {self.memory_bytes_per_second}"
            raise ValueError(f"{self.key}: memory size and bandwidth must be positive, not {given}")
        if any(rate <= 0 for rate in self.flops_per_second.values()):
            raise ValueError(f"{self.key}: every rate must be positive; leave out unknown rates")

    def __getstate__(self) -> dict[str, Any]:
        # Rigs are sent to other processes, and a MappingProxyType cannot be pickled.
        return self.__dict__ | {"flops_per_second": dict(self.flops_per_second)}

    @property
    def strength(self) -> float:
        """The FLOP/s by which GPUs are ordered: the greatest of bfloat16, float16 and float32."""
        rates = self.flops_per_second
        return max(rates.get(dtype, 0.0) for dtype in ("bfloat16", "float16", "float32"))


@functools.cache
def specs() -> Mapping[str, Spec]:
    """Return every known GPU model by key, in the order of `specs.toml`."""
    text = resources.files(__package__).joinpath("specs.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return MappingProxyType({key: _spec(key, table) for key, table in tables.items()})


def find_spec(name: str) -> Spec | None:
    """Return the facts of the GPU that a driver calls `name`, or None if the model is unknown.

    The name must match exactly: an "L40" is not an "L4", and an "A100-PCIE-40GB" not an "A100".
    """
    return _by_driver_name().get(name)


def spec_of_key(key: str, *, only_cuda: bool = False) -> Spec:
    """Return the facts of the GPU model that anyrig calls `key`, such as ``"A100-80GB"``.

    Case, hyphens, underscores and spaces do not matter: ``"rtx4090"`` is ``"RTX-4090"``. The name
    that a driver reports and a key without its series, such as ``"4070ti"`` or ``"A6000"``, are
    names of the model, too.

    Args:
        key: the model's name.
        only_cuda: list only CUDA GPUs in the message of the error.

    Raises:
        UnknownHardwareError: no model has that name, or several share it (``"A100"`` is sold with
            40 and with 80 GB, and ``"6000"`` is part of three names). The message lists these
            models, or the nearest ones.
    """
    spec = _by_spoken_name().get(_spoken(key))
    if spec is not None:
        return spec
    shown = repr(key) if len(key) <= 60 else f"{key[:60]!r}…"
    variants = [known for known in _keys(only_cuda) if _fold(key) in map(_fold, _parts(known))]
    if len(variants) > 1:
        raise UnknownHardwareError(
            f"{shown} names {len(variants)} GPUs; write {' or '.join(variants)}"
        )
    raise UnknownHardwareError(
        f"no GPU is called {shown}; the nearest are "
        f"{', '.join(nearest_keys(key, only_cuda=only_cuda))}. "
        f"All of them: {', '.join(_keys(only_cuda))}"
    )


def is_key(text: str) -> bool:
    """Return whether `spec_of_key` accepts `text`."""
    return _spoken(text) in _by_spoken_name()


def nearest_keys(key: str, count: int = 3, *, only_cuda: bool = False) -> list[str]:
    """Return up to `count` keys most similar to `key`, the nearest first."""
    wanted = key.casefold()

    def distance(known: str) -> tuple[bool, float, bool]:
        # As a whole and by its parts: 4009 is near RTX-4090, A1000 is near A100-80GB.
        parts = [part.casefold() for part in (known, *_parts(known))]
        likeness = max(difflib.SequenceMatcher(None, wanted, part).ratio() for part in parts)
        is_transposed = any(sorted(wanted) == sorted(part) for part in parts)
        return (not known.casefold().startswith(wanted), -likeness, not is_transposed)

    return sorted(_keys(only_cuda), key=distance)[:count]


def _keys(only_cuda: bool) -> list[str]:
    return [key for key, spec in specs().items() if spec.capability is not None or not only_cuda]


def _fold(key: str) -> str:
    return key.casefold().translate(_IGNORED)


def _parts(key: str) -> Iterator[str]:
    """Yield the parts of a key by which people may mean it: its words, and its first words."""
    words = key.split("-")
    yield from words
    yield from ("-".join(words[:count]) for count in range(2, len(words)))


@functools.cache
def _by_spoken_name() -> Mapping[str, Spec]:
    return {_spoken(name): spec for key, spec in specs().items() for name in (key, *spec.names)}


def _spoken(name: str) -> str:
    """Return `name` folded, without its vendor and series."""
    folded = _fold(name)
    while series := next((word for word in _SERIES if folded.startswith(word)), None):
        folded = folded.removeprefix(series)
    return folded


@functools.cache
def _by_driver_name() -> Mapping[str, Spec]:
    return {name: spec for spec in specs().values() for name in spec.names}


def _spec(key: str, table: Mapping[str, Any]) -> Spec:
    capability = table.get("capability")
    return Spec(
        key=key,
        names=tuple(table["names"]),
        architecture=table["architecture"],
        capability=None if capability is None else (capability[0], capability[1]),
        multiprocessors=table["multiprocessors"],
        memory_bytes=int(table["memory_gib"] * 2**30),
        memory_bytes_per_second=table["memory_gb_per_second"] * 1e9,
        flops_per_second=MappingProxyType(
            {dtype: rate * 1e12 for dtype, rate in table["tflops"].items()}
        ),
        link=table["link"],
        link_bytes_per_second=table["link_gb_per_second"] * 1e9
        if "link_gb_per_second" in table
        else None,
        pcie_bytes_per_second=table["pcie_gb_per_second"] * 1e9,
        source=table["source"],
        watts=table.get("watts"),
        clock_hertz=table["boost_mhz"] * 1e6 if "boost_mhz" in table else None,
        l2_bytes=int(table["l2_mib"] * 2**20) if "l2_mib" in table else None,
        relatives=tuple(table.get("relatives", ())),
    )
