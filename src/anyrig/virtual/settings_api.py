"""Settings of `torch._C` that select CUDA kernels. Virtual GPUs store but otherwise ignore them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

# Getter, setter and PyTorch's default value.
_SETTINGS: tuple[tuple[str, str, Any], ...] = (
    ("_cuda_get_conv_benchmark_empty_cache", "_cudnn_set_conv_benchmark_empty_cache", True),
    ("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit", 10),
    ("_cuda_tunableop_is_enabled", "_cuda_tunableop_enable", False),
    ("_cuda_record_untuned_is_enabled", "_cuda_record_untuned_enable", False),
    ("_cuda_tunableop_tuning_is_enabled", "_cuda_tunableop_tuning_enable", True),
    (
        "_cuda_tunableop_get_max_tuning_duration",
        "_cuda_tunableop_set_max_tuning_duration",
        30,
    ),
    (
        "_cuda_tunableop_get_max_tuning_iterations",
        "_cuda_tunableop_set_max_tuning_iterations",
        100,
    ),
    # Empty until the first tuned product, which names the file.
    ("_cuda_tunableop_get_filename", "_cuda_tunableop_set_filename", ""),
    (
        "_cuda_tunableop_wildcard_fallback_is_enabled",
        "_cuda_tunableop_wildcard_fallback_enable",
        False,
    ),
    (
        "_cuda_tunableop_get_cublaslt_requested_algo_count",
        "_cuda_tunableop_set_cublaslt_requested_algo_count",
        -1,
    ),
    ("_get_cublaslt_prefer_grouped_gemm", "_set_cublaslt_prefer_grouped_gemm", False),
)


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""
    functions: dict[str, Callable[..., Any]] = {
        "_cuda_tunableop_get_results": tuple,
        "_cuda_tunableop_get_validators": tuple,
        "_cuda_tunableop_read_file": lambda name: False,
        "_cuda_tunableop_set_numerical_check_tolerances": lambda *arguments: None,
        "_cuda_tunableop_clear_all": lambda: None,
        "_cuda_tunableop_push_dynamic_dims_mask": lambda *arguments: None,
        "_cuda_tunableop_pop_dynamic_dims_mask": lambda *arguments: None,
        **_rotating_buffer(core),
        "_cudnn_clear_dropout_state": lambda: None,
        "_cuda_getCublasWorkspaceSize": core.cublas_workspace_bytes,
        "_cuda_setCublasWorkspaceSize": core.set_cublas_workspace_bytes,
        "_cuda_resetCublasWorkspaceSize": lambda: core.set_cublas_workspace_bytes(None),
        # By default, cuBLASLt uses the workspace of cuBLAS.
        "_cuda_getCublasLtWorkspaceSize": core.cublas_workspace_bytes,
        "_cuda_setCublasLtWorkspaceSize": lambda size: None,
        "_cuda_resetCublasLtWorkspaceSize": lambda: None,
    }
    for getter, setter, default in _SETTINGS:
        functions[getter], functions[setter] = _accessors(default)
    return functions


def _rotating_buffer(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions of the buffer that tuning rotates, by default the L2 cache's size."""
    size_bytes: int | None = None

    def read() -> int:
        if size_bytes is None:
            return int(core.devices()[core.current_device()].gpu.l2_bytes)
        return size_bytes

    def write(size_mib: int) -> None:
        nonlocal size_bytes
        size_bytes = None if size_mib < 0 else size_mib * 2**20

    return {
        "_cuda_tunableop_get_rotating_buffer_size": read,
        "_cuda_tunableop_set_rotating_buffer_size": write,
    }


def _accessors(value: Any) -> tuple[Callable[[], Any], Callable[..., None]]:
    """Return a getter and a setter of one setting with the default `value`."""

    def read() -> Any:
        return value

    def write(new: Any, *_: object) -> None:
        nonlocal value
        value = new

    return read, write
