// Flash-decoding: with too few queries to fill a GPU, FlashAttention splits the keys among the
// multiprocessors, and each split writes its part of the output to scratch memory. Follows
// set_params_splitkv in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace anyrig::virtual_gpu {

struct SplitCall {
  int64_t batch = 0;
  int64_t queries = 0; // of the longest sequence
  int64_t keys = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t head_size = 0;
  double dropout = 0;
  int64_t requested_splits = 0; // 0: as many as fill the GPU
  bool packed = false;       // sequences of several lengths
  bool paged = false;        // keys in pages
  bool is_unmasked = false;
};

// Returns whether the kernel treats the query heads that share a key head as several queries of one
// head, which it does if there is a single query.
inline bool merges_heads(const SplitCall& call) {
  return call.queries == 1 && call.heads > call.key_heads && call.is_unmasked && call.dropout == 0;
}

// Returns the smallest number of splits that keeps the processors at least 85 % as busy as the best
// number does.
inline int64_t best_split_count(int64_t blocks, int64_t processors, int64_t key_blocks) {
  constexpr int64_t kMaxSplits = 128;
  if (static_cast<float>(blocks) >= 0.8f * static_cast<float>(processors)) {
    return 1;
  }
  const auto blocks_per_split = [key_blocks](int64_t splits) {
    return (key_blocks + splits - 1) / splits;
  };
  // Skip counts that have as many blocks per split as one split fewer.
  const auto worth_trying = [&](int64_t splits) {
    return splits == 1 || blocks_per_split(splits) != blocks_per_split(splits - 1);
  };
  const auto efficiency = [&](int64_t splits) {
    const float waves = static_cast<float>(blocks * splits) / static_cast<float>(processors);
    return waves / std::ceil(waves);
  };
  const int64_t max_splits = std::min({kMaxSplits, processors, key_blocks});
  float best = 0;
  for (int64_t splits = 1; splits <= max_splits; ++splits) {
    if (worth_trying(splits)) {
      best = std::max(best, efficiency(splits));
    }
  }
  for (int64_t splits = 1; splits <= max_splits; ++splits) {
    if (worth_trying(splits) && efficiency(splits) >= 0.85 * best) {
      return splits;
    }
  }
  return 1;
}

// Returns how many splits a GPU with `processors` multiprocessors makes; 1 means no splitting.
inline int64_t split_count(const SplitCall& call, int64_t processors) {
  const bool can_split = call.dropout == 0 && (!call.packed || call.paged || merges_heads(call));
  if (!can_split) {
    return 1;
  }
  if (call.requested_splits > 0) {
    return call.requested_splits;
  }
  const int64_t queries = merges_heads(call) ? call.heads / call.key_heads : call.queries;
  const int64_t heads = merges_heads(call) ? call.key_heads : call.heads;
  const int64_t keys_per_block = call.head_size <= 64 ? 256 : call.head_size <= 128 ? 128 : 64;
  const int64_t query_blocks = (queries + 63) / 64;
  const int64_t key_blocks = (call.keys + keys_per_block - 1) / keys_per_block;
  // A multiprocessor runs two blocks of 128 threads at a time.
  return best_split_count(call.batch * heads * query_blocks, 2 * processors, key_blocks);
}

} // namespace anyrig::virtual_gpu
