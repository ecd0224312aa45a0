// A C interface to gpu_ledger.h for ctypes.
#include "memory/gpu_ledger.cpp"

#include <cstdio>

using namespace anyrig::virtual_gpu;

extern "C" {

GpuLedger* ledger_new() {
  return new GpuLedger();
}

/// Returns false on failure; `error` then receives the message.
bool join(GpuLedger* ledger, const char* folder, int gpus, char* error, size_t size) {
  try {
    ledger->join(folder, gpus);
    return true;
  } catch (const std::exception& raised) {
    std::snprintf(error, size, "%s", raised.what());
    return false;
  }
}

bool reserve(GpuLedger* ledger, int gpu, size_t bytes, size_t total_bytes) {
  return ledger->reserve(gpu, bytes, total_bytes);
}
void release(GpuLedger* ledger, int gpu, size_t bytes) {
  ledger->release(gpu, bytes);
}
size_t used_bytes(GpuLedger* ledger, int gpu) {
  return ledger->used_bytes(gpu);
}
size_t used_bytes_upper_bound(GpuLedger* ledger, int gpu) {
  return ledger->used_bytes_upper_bound(gpu);
}

/// Writes pairs (process, bytes), where 0 is this process. Returns the number of pairs.
size_t processes(GpuLedger* ledger, int gpu, size_t* out, size_t limit) {
  const auto found = ledger->processes(gpu);
  for (size_t i = 0; i < found.size() && i < limit; ++i) {
    out[2 * i] = static_cast<size_t>(found[i].pid.value_or(0));
    out[2 * i + 1] = found[i].bytes;
  }
  return found.size();
}

void leave(GpuLedger* ledger) {
  ledger->leave();
}
void before_fork(GpuLedger* ledger) {
  ledger->before_fork();
}
void after_fork_in_parent(GpuLedger* ledger) {
  ledger->after_fork_in_parent();
}
void after_fork_in_child(GpuLedger* ledger) {
  ledger->after_fork_in_child();
}

}  // extern "C"
