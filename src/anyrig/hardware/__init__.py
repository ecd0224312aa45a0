"""Facts of accelerators. The `.toml` files hold figures and sources."""

from .coefficients import (
    CoefficientGroup,
    coefficient_groups,
    coefficients_of,
    known_errors,
    values_of,
)
from .driver_memory import DriverMemory, driver_memory_of
from .older_libraries import OlderKernels, additions_of, older_kernels, read_libraries
from .spec import Spec, find_spec, is_key, nearest_keys, spec_of_key, specs
from .step_errors import (
    Known,
    StepErrors,
    StepKind,
    gpus_with_measured_steps,
    step_errors,
    step_errors_of,
)

__all__ = [
    "CoefficientGroup",
    "DriverMemory",
    "Known",
    "OlderKernels",
    "Spec",
    "StepErrors",
    "StepKind",
    "additions_of",
    "coefficient_groups",
    "coefficients_of",
    "driver_memory_of",
    "find_spec",
    "gpus_with_measured_steps",
    "is_key",
    "known_errors",
    "nearest_keys",
    "older_kernels",
    "read_libraries",
    "spec_of_key",
    "specs",
    "step_errors",
    "step_errors_of",
    "values_of",
]
