// The name of the operator that a thread runs, for the record of the work that it launches.
#pragma once

#include <cstdint>
#include <string_view>

namespace anyrig::virtual_gpu {

// While an instance is alive, it names the work that its thread launches. The innermost one counts.
class RunningOperator {
 public:
  // `name` must outlive the instance.
  explicit RunningOperator(std::string_view name)
      : previous_(current), previous_call_(current_call) {
    current = name;
    current_call = ++last_call;
  }
  ~RunningOperator() {
    current = previous_;
    current_call = previous_call_;
  }
  RunningOperator(const RunningOperator&) = delete;
  RunningOperator& operator=(const RunningOperator&) = delete;

  // Returns an empty name outside any operator.
  static std::string_view name() { return current; }
  // Distinguishes the instances of a thread; 0 outside any operator.
  static uint64_t call() { return current_call; }

 private:
  inline static thread_local std::string_view current;
  inline static thread_local uint64_t current_call = 0;
  inline static thread_local uint64_t last_call = 0;

  std::string_view previous_;
  uint64_t previous_call_;
};

} // namespace anyrig::virtual_gpu
