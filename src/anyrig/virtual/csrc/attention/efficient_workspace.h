// The scratch memory of CUTLASS's memory-efficient attention: which kernel runs and how much it
// needs. Follows mem_eff_attention/kernels/cutlass{F,B}.h and kernel_{forward,backward}.h in
// ATen/native/transformers/cuda, which PyTorch installs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

struct EfficientCall {
  int64_t sequences = 0;
  int64_t heads = 0;
  int64_t queries = 0; // of the longest sequence
  int64_t keys = 0;
  int64_t head_size = 0;
  int64_t value_head_size = 0;
  bool half = false; // float16 or bfloat16, else float32
  bool dropout = false;
  bool packed = false;
  bool deterministic = false;
  int capability = 80; // 10 * major + minor
  std::optional<int64_t> requested_splits;
};

// Returns whether the forward kernel keeps an additional float32 output: it does if a block cannot
// hold all elements of a head.
inline bool needs_output_accumulator(const EfficientCall& call) {
  return call.half && std::max(call.head_size, call.value_head_size) > 128;
}

// A backward kernel, which processes blocks of `queries` by `keys` for heads of up to `head_size`.
struct BackwardKernel {
  int64_t queries;
  int64_t keys;
  int64_t head_size;
  bool whole_blocks; // the sequences must be multiples of the blocks

  // Returns whether the gradients of key and value stay in registers.
  bool keeps_output(bool half) const { return half && head_size <= queries; }
};

// Returns the kernels for this GPU and dtype, in the order in which PyTorch tries them.
inline std::vector<BackwardKernel> backward_kernels(const EfficientCall& call) {
  constexpr int64_t kAny = 65536;
  // These GPUs have 163 KiB of shared memory or more for each block; the others have 64 to 99 KiB.
  // How much a kernel needs is not known here: that the largest blocks do not fit on the others is
  // a guess.
  const bool large_shared_memory = call.capability == 80 || call.capability == 90 ||
      call.capability == 100 || call.capability == 103;
  std::vector<BackwardKernel> kernels;
  const auto add = [&kernels](int64_t queries, int64_t keys, int64_t head, bool add_whole_blocks) {
    if (add_whole_blocks) {
      kernels.push_back({queries, keys, head, true});
    }
    kernels.push_back({queries, keys, head, false});
  };
  const bool tensor_core_half = call.half && call.capability >= 70;
  const bool add_whole_blocks = call.half && !call.dropout &&
      (call.capability >= 80 || (call.capability >= 70 && call.capability < 75));
  add(64, 64, 32, add_whole_blocks);
  add(64, 64, 64, add_whole_blocks);
  if (call.half && !call.dropout && (call.capability == 86 || call.capability == 89)) {
    add(128, 64, 96, false);
  }
  if (call.capability >= 80) {
    if (large_shared_memory) {
      add(128, call.half ? 128 : 64, 128, add_whole_blocks);
    }
    add(64, 64, 128, add_whole_blocks);
    if (large_shared_memory || call.half) {
      add(128, 64, kAny, false);
    }
  } else {
    if (tensor_core_half) {
      add(128, 64, 128, add_whole_blocks);
    }
    add(64, 64, 128, add_whole_blocks && tensor_core_half);
    if (tensor_core_half) {
      add(128, 64, kAny, false);
    }
  }
  add(64, 64, kAny, false);
  return kernels;
}

inline BackwardKernel backward_kernel(const EfficientCall& call) {
  const int64_t head = std::max(call.head_size, call.value_head_size);
  const auto kernels = backward_kernels(call);
  const auto fits = [&](const BackwardKernel& kernel) {
    const bool whole = call.queries % kernel.queries == 0 && call.keys % kernel.keys == 0;
    return head <= kernel.head_size && (!kernel.whole_blocks || (whole && !call.packed));
  };
  return *std::find_if(kernels.begin(), kernels.end(), fits); // the last kernel fits every call
}

// Returns how many groups of key blocks are processed in parallel.
inline int64_t key_split_count(const EfficientCall& call, const BackwardKernel& kernel) {
  if (call.capability < 70 || call.deterministic) {
    return 1;
  }
  int64_t splits = (call.keys + kernel.keys - 1) / kernel.keys;
  if (call.requested_splits.has_value()) {
    splits = std::min(splits, *call.requested_splits);
  } else {
    const int64_t blocks = call.sequences * call.heads;
    if (blocks >= 256 && call.keys <= 2 * kernel.keys) {
      splits = 1;
    }
    if (!kernel.keeps_output(call.half) && call.half) {
      splits = std::min(splits, 200 / std::max<int64_t>(blocks, 1));
    }
  }
  return std::max<int64_t>(splits, 1);
}

// Returns the bytes of the backward workspace: the gradient of the query in float32, tile by tile,
// and, in half precision, the gradients of keys and values that do not stay in registers.
inline int64_t backward_workspace_bytes(const EfficientCall& call) {
  constexpr int64_t kTileHeaderBytes = 16; // a lock and a counter
  const auto round_up_to = [](int64_t number, int64_t multiple) {
    return (number + multiple - 1) / multiple * multiple;
  };
  const BackwardKernel kernel = backward_kernel(call);
  const int64_t splits = key_split_count(call, kernel);
  int64_t floats = 0;
  if (call.half && !kernel.keeps_output(call.half)) {
    floats += splits * kernel.keys * round_up_to(call.head_size, kernel.queries);
    floats += splits * kernel.keys * round_up_to(call.value_head_size, kernel.queries);
  }
  if (call.capability >= 70 || call.half) {
    const int64_t tiles = (call.queries + kernel.queries - 1) / kernel.queries *
        ((call.head_size + kernel.keys - 1) / kernel.keys);
    floats += tiles * (kTileHeaderBytes / 4 + kernel.queries * kernel.keys);
  }
  return call.sequences * call.heads * round_up_to(floats, 4) * 4;
}

} // namespace anyrig::virtual_gpu
