// Flash-decoding: with too few queries to fill a card, FlashAttention splits the keys among its
// processors, and each split leaves its part of the output in scratch memory.
// aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, set_params_splitkv.
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
  int64_t wanted_splits = 0; // 0: as many as fill the card
  bool packed = false;       // sequences of several lengths
  bool paged = false;        // keys in pages
  bool sees_everything = false;
};

// A single query of several heads that share a key is computed as several queries of one head.
inline bool shares_keys(const SplitCall& call) {
  return call.queries == 1 && call.heads > call.key_heads && call.sees_everything &&
      call.dropout == 0;
}

// The fewest splits that fill the processors to 85 % of the best that any number of splits does.
inline int64_t best_split_count(int64_t blocks, int64_t processors, int64_t key_blocks) {
  constexpr int64_t kMostSplits = 128;
  if (static_cast<float>(blocks) >= 0.8f * static_cast<float>(processors)) {
    return 1;
  }
  const auto blocks_a_split = [key_blocks](int64_t splits) {
    return (key_blocks + splits - 1) / splits;
  };
  // The same blocks a split as with one split fewer: nothing new.
  const auto worth_trying = [&](int64_t splits) {
    return splits == 1 || blocks_a_split(splits) != blocks_a_split(splits - 1);
  };
  const auto efficiency = [&](int64_t splits) {
    const float waves = static_cast<float>(blocks * splits) / static_cast<float>(processors);
    return waves / std::ceil(waves);
  };
  const int64_t most = std::min({kMostSplits, processors, key_blocks});
  float best = 0;
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (worth_trying(splits)) {
      best = std::max(best, efficiency(splits));
    }
  }
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (worth_trying(splits) && efficiency(splits) >= 0.85 * best) {
      return splits;
    }
  }
  return 1;
}

// How many splits a card of `processors` makes; 1 is none.
inline int64_t split_count(const SplitCall& call, int64_t processors) {
  const bool can_split = call.dropout == 0 && (!call.packed || call.paged || shares_keys(call));
  if (!can_split) {
    return 1;
  }
  if (call.wanted_splits > 0) {
    return call.wanted_splits;
  }
  const int64_t queries = shares_keys(call) ? call.heads / call.key_heads : call.queries;
  const int64_t heads = shares_keys(call) ? call.key_heads : call.heads;
  const int64_t keys_a_block = call.head_size <= 64 ? 256 : call.head_size <= 128 ? 128 : 64;
  const int64_t query_blocks = (queries + 63) / 64;
  const int64_t key_blocks = (call.keys + keys_a_block - 1) / keys_a_block;
  // Two blocks of 128 threads run on a processor at a time.
  return best_split_count(call.batch * heads * query_blocks, 2 * processors, key_blocks);
}

} // namespace anyrig::virtual_gpu
