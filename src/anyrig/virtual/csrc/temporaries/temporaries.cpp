#include "temporaries/temporaries.h"

#include "memory/block_origins.h"

#include <c10/util/Exception.h>

#include <set>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

// Returns an empty pointer if the workspace does not fit. PyTorch then runs the next plan that cuDNN
// offers, and the thread keeps to that plan: try_configs and BenchmarkCache of
// aten/src/ATen/native/cudnn/Conv_v8.cpp. A workspace of the same size stands for the same layer.
c10::DataPtr allocate_if_it_fits(size_t bytes, c10::DeviceIndex device) {
  static thread_local std::set<std::pair<c10::DeviceIndex, size_t>> refused;
  if (refused.count({device, bytes}) > 0) {
    return {};
  }
  try {
    const OptionalRequest optional;
    return allocate_workspace(bytes, device);
  } catch (const c10::OutOfMemoryError&) {
    refused.emplace(device, bytes);
    return {};
  }
}

} // namespace

void TemporaryMemory::begin_result(size_t index) {
  while (allocations_.size() < temporaries_.steps_before_result(index)) {
    take_next_step();
  }
}

void TemporaryMemory::proceed() {
  while (allocations_.size() < temporaries_.steps().size()) {
    take_next_step();
  }
}

void TemporaryMemory::end() {
  while (!allocations_.empty()) {
    allocations_.pop_back();
  }
}

void TemporaryMemory::take_next_step() {
  const size_t index = allocations_.size();
  const int64_t step = temporaries_.steps()[index];
  if (step < 0) {
    allocations_[-1 - step].clear();
    allocations_.emplace_back();
  } else if (step == 0) {
    allocations_.emplace_back();
  } else if (temporaries_.is_optional(index)) {
    allocations_.push_back(allocate_if_it_fits(static_cast<size_t>(step), device_));
  } else {
    allocations_.push_back(allocate_workspace(static_cast<size_t>(step), device_));
  }
}

TemporariesOf temporaries_of(const std::string& name) {
  for (const auto table :
       {&reduction_temporaries_of, &index_temporaries_of, &normalization_temporaries_of,
        &copy_temporaries_of, &sort_temporaries_of, &scan_temporaries_of,
        &convolution_temporaries_of, &library_temporaries_of}) {
    if (const auto found = table(name)) {
      return found;
    }
  }
  return nullptr;
}

} // namespace anyrig::virtual_gpu
