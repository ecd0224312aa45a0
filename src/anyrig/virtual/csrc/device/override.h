// `override` for methods that PyTorch declares from some version on.
//
// A method that is meant to override but does not is silently never called. So every method that
// overrides says so, and `compiler.py` turns on the warnings about those that do not. In versions
// without the declaration, the macro of the version is empty.
#pragma once

#include <torch/version.h>

#define ANYRIG_TORCH_FROM(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

#if ANYRIG_TORCH_FROM(12)
#define ANYRIG_OVERRIDE_FROM_2_12 override
#else
#define ANYRIG_OVERRIDE_FROM_2_12
#endif

#if ANYRIG_TORCH_FROM(14)
#define ANYRIG_OVERRIDE_FROM_2_14 override
#else
#define ANYRIG_OVERRIDE_FROM_2_14
#endif

#if ANYRIG_TORCH_FROM(15)
#define ANYRIG_OVERRIDE_FROM_2_15 override
#else
#define ANYRIG_OVERRIDE_FROM_2_15
#endif
