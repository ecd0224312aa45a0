// The name of the operator that a thread runs, for the record of the work that it launches.
#pragma once

#include <string_view>

namespace anyrig::virtual_gpu {

// While an instance is alive, it names the work that its thread launches. The innermost one counts.
class RunningOperator {
 public:
  // `name` must outlive the instance.
  explicit RunningOperator(std::string_view name) : previous_(current) { current = name; }
  ~RunningOperator() { current = previous_; }
  RunningOperator(const RunningOperator&) = delete;
  RunningOperator& operator=(const RunningOperator&) = delete;

  // Returns an empty name outside any operator.
  static std::string_view name() { return current; }

 private:
  inline static thread_local std::string_view current;

  std::string_view previous_;
};

} // namespace anyrig::virtual_gpu
