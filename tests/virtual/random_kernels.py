"""The C++ random headers, driven from Python through their C shim."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

# (multiprocessors, threads per multiprocessor): data sheets, CUDA C++ Programming Guide.
A100, H100_SXM, P100, K80 = (108, 2048), (132, 2048), (56, 2048), (13, 2048)
RTX_3060, RTX_A4000 = (28, 1536), (48, 1536)
TINY = (2, 512)  # 1024 threads: a test covers several rounds


class RandomKernels:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def fill(
        self,
        name: str,
        dtype: type,
        elements: int,
        *arguments: float,
        seed: int = 0,
        offset: int = 0,
        gpu: tuple[int, int] = A100,
    ) -> tuple[np.ndarray, int]:
        out = np.zeros(elements, dtype)
        function = getattr(self._library, name)
        function.restype = ctypes.c_uint64
        place = [ctypes.c_uint64(elements), ctypes.c_uint64(seed), ctypes.c_uint64(offset)]
        shape = [ctypes.c_uint32(gpu[0]), ctypes.c_uint32(gpu[1])]
        rest = [
            ctypes.c_double(a) if isinstance(a, float) else ctypes.c_uint64(a % 2**64)
            for a in arguments
        ]
        increment = function(out.ctypes.data_as(ctypes.c_void_p), *place, *shape, *rest)
        return out, int(increment)

    def rand(self, elements: int, **place: Any) -> np.ndarray:
        return self.fill("uniform_float", np.float32, elements, 0.0, 1.0, **place)[0]

    def randn(self, elements: int, **place: Any) -> np.ndarray:
        return self.fill("normal_float", np.float32, elements, 0.0, 1.0, **place)[0]

    def permutation(self, keys: list[int], bits: int, seed: int, offset: int) -> list[int]:
        given_keys = np.array(keys, np.int32)
        out = np.zeros(len(keys), np.int64)
        self._library.permutation(
            given_keys.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(len(keys)),
            ctypes.c_int(bits),
            ctypes.c_uint64(seed),
            ctypes.c_uint64(offset),
            out.ctypes.data_as(ctypes.c_void_p),
        )
        return [int(i) for i in out]
