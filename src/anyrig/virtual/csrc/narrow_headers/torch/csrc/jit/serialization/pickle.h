// Nothing, in place of the pickler of TorchScript, which rpc/utils.h includes.
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 15 // untried
#include_next <torch/csrc/jit/serialization/pickle.h>
#endif
