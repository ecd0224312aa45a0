"""Facts of accelerators. `specs.toml` and `coefficients.toml` hold figures and sources."""

from .coefficients import (
    CoefficientGroup,
    coefficient_groups,
    coefficients_of,
    known_errors,
    values_of,
)
from .spec import Spec, find_spec, is_key, nearest_keys, spec_of_key, specs

__all__ = [
    "CoefficientGroup",
    "Spec",
    "coefficient_groups",
    "coefficients_of",
    "find_spec",
    "is_key",
    "known_errors",
    "nearest_keys",
    "spec_of_key",
    "specs",
    "values_of",
]
