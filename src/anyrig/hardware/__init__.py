"""Facts of accelerators. The `.toml` files hold figures and sources."""

from .coefficients import (
    CoefficientGroup,
    coefficient_groups,
    coefficients_of,
    known_errors,
    values_of,
)
from .driver_memory import DriverMemory, driver_memory_of
from .program_errors import ProgramErrors, program_errors
from .spec import Spec, find_spec, is_key, nearest_keys, spec_of_key, specs

__all__ = [
    "CoefficientGroup",
    "DriverMemory",
    "ProgramErrors",
    "Spec",
    "coefficient_groups",
    "coefficients_of",
    "driver_memory_of",
    "find_spec",
    "is_key",
    "known_errors",
    "nearest_keys",
    "program_errors",
    "spec_of_key",
    "specs",
    "values_of",
]
