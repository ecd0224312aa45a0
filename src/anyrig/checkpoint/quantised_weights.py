"""The 4-bit weights of bitsandbytes, whose layers save a quantisation state and load none.

::

    state dict                                     live module
    weight                uint8 codes              weight            Params4bit
    weight.absmax         a scale for each block   weight.quant_state ──▶ QuantState
    weight.quant_map      the 16 values            module.quant_state ──▶ the same
    weight.quant_state.bitsandbytes__nf4           JSON as bytes: block size, dtype, shape

bitsandbytes makes a state again with ``QuantState.from_dict``. The library is not imported here: a
weight is recognised by what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import KeyMismatchError
from .names import unwrapped
from .tensor_in_parts import SavedTensor, whole_tensor
from .wrapper_prefix import remove_wrappers

_PACKED = ".quant_state."
_SAME = ("shape", "dtype", "blocksize", "quant_type", "nested")


@dataclass(frozen=True)
class QuantisedWeights:
    """The 4-bit weights of a model: (module, weight) by the weight's plain name."""

    weights: Mapping[str, tuple[nn.Module, Any]]

    @staticmethod
    def of(model: nn.Module) -> QuantisedWeights:
        """Return the weights of a model that have a quantisation state."""
        found: dict[str, tuple[nn.Module, Any]] = {}
        for prefix, module in unwrapped(model).named_modules(remove_duplicate=False):
            for name, parameter in module.named_parameters(recurse=False):
                state = getattr(parameter, "quant_state", None)
                if hasattr(type(state), "from_dict"):
                    found[remove_wrappers(f"{prefix}.{name}".lstrip("."))] = module, parameter
        return QuantisedWeights(found)

    def packed_names(self, names: Iterable[str]) -> set[str]:
        """Return the entries that hold JSON, whose length depends on its numbers."""
        return {
            name
            for name in names
            if _PACKED in name and name[: name.index(_PACKED)] in self.weights
        }

    def prepare(
        self, saved: Mapping[str, SavedTensor], what: str, target: str
    ) -> Callable[[], None]:
        """Return a function that gives the weights the saved quantisation states.

        Raises:
            KeyMismatchError: a saved state is of another kind than the weight's own.
        """
        made: list[tuple[nn.Module, Any, Any]] = []
        for name, (module, weight) in self.weights.items():
            prefix = f"{name}."
            parts = {
                key.removeprefix(prefix): whole_tensor(each).clone()
                for key, each in saved.items()
                if key.startswith(prefix)
            }
            own = weight.quant_state
            try:
                state = type(own).from_dict(parts, device=weight.device)
            except Exception as error:
                raise KeyMismatchError(
                    f"{what} has a quantisation state of {name} that cannot be read: "
                    f"{type(error).__name__}: {error}. Nothing was loaded"
                ) from error
            for fact in _SAME:
                mine, its = getattr(state, fact, None), getattr(own, fact, None)
                if mine != its:
                    raise KeyMismatchError(
                        f"{what} has {name} quantised with {fact} {mine} instead of {its}. Nothing "
                        f"was loaded. Quantise {target} as the saved one was, before load()"
                    )
            made.append((module, weight, state))

        def apply() -> None:
            for module, weight, state in made:
                weight.quant_state = state
                if hasattr(module, "quant_state"):
                    module.quant_state = state

        return apply
