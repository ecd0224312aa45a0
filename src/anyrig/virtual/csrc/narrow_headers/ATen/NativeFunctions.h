// Nothing, in place of the native functions of all operators. The backend includes
// <ATen/ops/NAME_native.h> for each that it uses.
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 15 // untried
#include_next <ATen/NativeFunctions.h>
#endif
