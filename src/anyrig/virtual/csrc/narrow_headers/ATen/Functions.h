// The functions of the operators that headers of torch.distributed use, in place of all 2,500. The
// backend includes <ATen/ops/NAME.h> for each function that it calls.
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 15 // untried
#include_next <ATen/Functions.h>
#else
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#endif
