// The open library: which rig it answers for, and which of its GPUs a caller means.
#pragma once

#include "rig.h"

#include <utility>

namespace anyrig::nvml {

/// Null before `nvmlInit` and after `nvmlShutdown`.
const Rig* open_rig();

/// Calls `answer(rig, gpu)` for the GPU of a handle; else says why that cannot be.
template <class Answer>
int with_gpu(const void* handle, Answer&& answer) {
  const Rig* rig = open_rig();
  if (rig == nullptr) return kUninitialized;
  for (const Gpu& gpu : rig->gpus)
    if (&gpu == handle) return std::forward<Answer>(answer)(*rig, gpu);
  return kInvalidArgument;
}

}  // namespace anyrig::nvml
