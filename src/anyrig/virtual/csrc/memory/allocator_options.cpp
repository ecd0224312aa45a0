#include "memory/allocator_options.h"

#include <c10/core/AllocatorConfig.h>

#include <string>
#include <unordered_set>

namespace anyrig::virtual_gpu {
namespace {

using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;

// Settings that only CUDA's allocator has, from c10/cuda/CUDAAllocatorConfig.h. They affect no
// size, but a CPU build of PyTorch does not know them and would reject the whole variable.
const std::unordered_set<std::string> kCudaSettings = {
    "backend",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "throw_on_cudamalloc_oom",
};

void accept_cuda_settings() {
  if (Config::getKeys().count("backend") == 0) { // a CUDA build has registered its own
    Config::registerDeviceConfigParserHook([](const std::string&) {}, kCudaSettings);
  }
}

} // namespace

AllocatorOptions allocator_options_from_environment() {
  accept_cuda_settings();
  AllocatorOptions options;
  options.expandable_segments = Config::use_expandable_segments();
  options.large_segment_bytes = Config::large_segment_size();
  options.max_split_bytes = Config::max_split_size();
  options.max_non_split_rounding_bytes = Config::max_non_split_rounding_size();
  options.garbage_collection_threshold = Config::garbage_collection_threshold();
  const auto& divisions = Config::roundup_power2_divisions();
  for (size_t i = 0; i < std::min(divisions.size(), options.roundup_power2_divisions.size()); ++i) {
    options.roundup_power2_divisions[i] = divisions[i];
  }
  return options;
}

AllocatorOptions change_allocator_options(const std::string& settings) {
  accept_cuda_settings();
  c10::CachingAllocator::setAllocatorSettings(settings);
  return allocator_options_from_environment();
}

} // namespace anyrig::virtual_gpu
