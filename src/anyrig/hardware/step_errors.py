"""How far predicted steps were off, by kind of step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from importlib import resources
from types import MappingProxyType
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Known(Enum):
    """What is known of a GPU's kernels of the kind that a step consists of."""

    STEPS = "steps"  # whole steps on this GPU are behind its coefficients
    KERNELS = "kernels"  # kernels were measured on this GPU, or on one with the same chip
    RELATIVES = "relatives"  # those of GPUs of its architecture, or of its relatives
    NOTHING = "nothing"


_KNOWN_TEXTS = {
    Known.STEPS: "on GPUs of which whole steps were measured",
    Known.KERNELS: "on GPUs of which kernels were measured",
    Known.RELATIVES: "on GPUs with the coefficients of similar ones",
}


@dataclass(frozen=True)
class StepKind:
    """What decides how far a predicted step may be off. None stands for any.

    Attributes:
        known: what is known of the GPU.
        on_matrix_units: whether most of the arithmetic runs on matrix units.
        convolves: whether convolutions take longer than products and attention.
        trains: whether there are backward passes.
        gpu: the key of the GPU.
    """

    known: Known
    on_matrix_units: bool | None = None
    convolves: bool | None = None
    trains: bool | None = None
    gpu: str | None = None

    def wider(self) -> tuple[StepKind, ...]:
        """Return this kind and those that contain it, the narrowest first."""
        on_any = replace(self, gpu=None)
        in_any_mode = replace(on_any, trains=None)
        of_any_kernels = replace(in_any_mode, convolves=None)
        return self, on_any, in_any_mode, of_any_kernels, StepKind(self.known)

    def __str__(self) -> str:
        mode = {None: "steps", True: "training steps", False: "inference steps"}[self.trains]
        kernels = {None: "", True: " of convolutions", False: " of products and attention"}
        units = {None: "", True: " on matrix units", False: " without matrix units"}
        where = _KNOWN_TEXTS[self.known] if self.gpu is None else f"on this GPU, {self.gpu}"
        return f"{mode}{kernels[self.convolves]}{units[self.on_matrix_units]}, {where}"


@dataclass(frozen=True)
class StepErrors:
    """How far the predicted steps of one kind were off.

    Attributes:
        kind: the kind.
        programs: how many measured programs were compared. No fit used any of them.
        gpus: the keys of their GPUs.
        low: the 5 % quantile of the measured over the predicted time; at most 1.
        high: the 95 % quantile; at least 1.
        apart: the 90 % quantile of how far the errors of one program on two GPUs were apart, as a
            factor of at least 1; None if too few programs were measured on several GPUs.
        elsewhere: the power of these factors on a GPU of which no program was compared.
    """

    kind: StepKind
    programs: int
    gpus: tuple[str, ...]
    low: float
    high: float
    apart: float | None
    elsewhere: float

    def on(self, gpu: str) -> StepErrors:
        """Return the errors on a GPU, which are larger if none of its programs was compared."""
        if gpu in self.gpus:
            return self
        power = self.elsewhere
        apart = None if self.apart is None else self.apart**power
        return replace(self, low=self.low**power, high=self.high**power, apart=apart)


def step_errors_of(
    kind: StepKind, table: Mapping[StepKind, StepErrors] | None = None
) -> StepErrors | None:
    """Return the errors on a GPU of the narrowest kind that contains `kind`.

    `apart` is that of the narrowest kind that has one. None if no such program was measured.

    Args:
        kind: the kind of a step, with its GPU.
        table: the known errors; None for `step_errors()`.
    """
    table = step_errors() if table is None else table
    known = [table[one].on(kind.gpu or "") for one in kind.wider() if one in table]
    apart = next((one.apart for one in known if one.apart is not None), None)
    return replace(known[0], apart=apart) if known else None


@functools.cache
def step_errors() -> Mapping[StepKind, StepErrors]:
    """Return all known errors of steps by kind; see `step_errors.toml`."""
    file = _read()
    found = [_errors(table, file["elsewhere"]) for table in file["kinds"]]
    return MappingProxyType({errors.kind: errors for errors in found})


@functools.cache
def gpus_with_measured_steps() -> frozenset[str]:
    """Return the keys of the GPUs whose coefficients were fitted to whole steps."""
    return frozenset(_read()["gpus_with_measured_steps"])


def _read() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("step_errors.toml").read_text(encoding="utf-8")
    content: dict[str, Any] = tomllib.loads(text)
    return content


def _errors(table: Mapping[str, Any], elsewhere: float) -> StepErrors:
    about = ("on_matrix_units", "convolves", "trains", "gpu")
    kind = StepKind(Known(table["known"]), *(table.get(name) for name in about))
    gpus = tuple(table["gpus"])
    bounds = table["low"], table["high"], table.get("apart")
    return StepErrors(kind, table["programs"], gpus, *bounds, elsewhere)
