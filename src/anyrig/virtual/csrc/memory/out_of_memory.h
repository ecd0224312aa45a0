// The out-of-memory exception, with the figures and the text of CUDA's error message.
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

/// Formats bytes as c10::CachingAllocator::format_size: 1024 bytes, not 1.00 KiB.
inline std::string format_bytes(size_t bytes) {
  const double value = static_cast<double>(bytes);
  char text[48];
  if (bytes <= size_t{1} << 10) {
    std::snprintf(text, sizeof text, "%zu bytes", bytes);
  } else if (bytes <= size_t{1} << 20) {
    std::snprintf(text, sizeof text, "%.2f KiB", value / (size_t{1} << 10));
  } else if (bytes <= size_t{1} << 30) {
    std::snprintf(text, sizeof text, "%.2f MiB", value / (size_t{1} << 20));
  } else {
    std::snprintf(text, sizeof text, "%.2f GiB", value / (size_t{1} << 30));
  }
  return text;
}

struct ProcessMemory {
  std::optional<int> pid;  // empty: this process
  size_t bytes;            // all memory on the GPU, not only PyTorch's
};

struct OutOfMemory : std::exception {
  static constexpr size_t kExabyte = size_t{1} << 60;

  size_t tried_bytes = 0;  // the size of the segment requested from the driver
  size_t rounded_bytes = 0;  // the size of the request, in whole blocks
  size_t total_bytes = 0;
  size_t free_bytes = 0;
  std::vector<ProcessMemory> processes;
  std::optional<size_t> allowed_bytes;  // set by set_per_process_memory_fraction
  size_t allocated_bytes = 0;
  size_t reserved_bytes = 0;
  size_t private_bytes = 0;  // free, but reserved for private pools, such as those of CUDA graphs

  const char* what() const noexcept override { return "out of memory on a virtual device"; }

  /// Returns the text of torch.OutOfMemoryError in PyTorch 2.13 for device `index`.
  std::string message(int index) const {
    if (tried_bytes >= kExabyte)
      return "CUDA out of memory. Tried to allocate more than 1EB memory.";
    std::string text = "CUDA out of memory. Tried to allocate " + format_bytes(tried_bytes) +
        ". GPU " + std::to_string(index) + " has a total capacity of " + format_bytes(total_bytes) +
        " of which " + format_bytes(free_bytes) + " is free. ";
    for (const ProcessMemory& process : processes) {
      text += process.pid ? "Process " + std::to_string(*process.pid)
                          : "Including non-PyTorch memory, this process";
      text += " has " + format_bytes(process.bytes) + " memory in use. ";
    }
    if (allowed_bytes) text += format_bytes(*allowed_bytes) + " allowed; ";
    text += "Of the allocated memory " + format_bytes(allocated_bytes + private_bytes) +
        " is allocated by PyTorch, ";
    if (private_bytes > 0)
      text += "with " + format_bytes(private_bytes) +
          " allocated in private pools (e.g., CUDA Graphs), ";
    return text + "and " + format_bytes(reserved_bytes - allocated_bytes - private_bytes) +
        " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large"
        " try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
        "  See documentation for Memory Management "
        " (https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-alloc-conf)";
  }
};

}  // namespace anyrig::virtual_gpu
