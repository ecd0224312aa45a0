"""Published facts of accelerators. The TOML files hold figures and their sources."""

from .driver_memory import DriverMemory, driver_memory_of
from .fractions import Fraction, fraction_of, fractions
from .spec import Spec, find_spec, is_key, nearest_keys, spec_of_key, specs

__all__ = [
    "DriverMemory",
    "Fraction",
    "Spec",
    "driver_memory_of",
    "find_spec",
    "fraction_of",
    "fractions",
    "is_key",
    "nearest_keys",
    "spec_of_key",
    "specs",
]
