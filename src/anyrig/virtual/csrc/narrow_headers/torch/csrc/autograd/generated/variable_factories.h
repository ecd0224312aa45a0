// Nothing, in place of torch::ones, torch::zeros, …, which torch/types.h includes.
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 15 // untried
#include_next <torch/csrc/autograd/generated/variable_factories.h>
#endif
