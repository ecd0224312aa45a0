"""Published facts of accelerators. `specs.toml` and `fractions.toml` hold figures and sources."""

from .fractions import Fraction, fraction_of, fractions
from .spec import Spec, find_spec, is_key, nearest_keys, spec_of_key, specs

__all__ = [
    "Fraction",
    "Spec",
    "find_spec",
    "fraction_of",
    "fractions",
    "is_key",
    "nearest_keys",
    "spec_of_key",
    "specs",
]
