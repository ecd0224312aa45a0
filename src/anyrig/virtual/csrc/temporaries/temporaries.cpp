#include "temporaries/temporaries.h"

#include "memory/memory.h"

namespace anyrig::virtual_gpu {

void TemporaryMemory::begin_result(size_t index) {
  while (allocations_.size() < temporaries_.steps_before_result(index)) {
    take_step(temporaries_.steps()[allocations_.size()]);
  }
}

void TemporaryMemory::proceed() {
  while (allocations_.size() < temporaries_.steps().size()) {
    take_step(temporaries_.steps()[allocations_.size()]);
  }
}

void TemporaryMemory::end() {
  while (!allocations_.empty()) {
    allocations_.pop_back();
  }
}

void TemporaryMemory::take_step(int64_t step) {
  if (step < 0) {
    allocations_[-1 - step].clear();
    allocations_.emplace_back();
  } else if (step == 0) {
    allocations_.emplace_back();
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
