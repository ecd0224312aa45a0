#include "collectives/captured.h"

#ifdef USE_C10D_GLOO

#include "dispatch/each_tensor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace anyrig::virtual_gpu {
namespace {

bool is_functional_collective(const c10::FunctionSchema& schema) {
  return schema.name().rfind("_c10d_functional::", 0) == 0;
}

void wait_for(const at::Tensor& tensor) {
  static const auto wait = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("_c10d_functional::wait_tensor", "")
                               .typed<at::Tensor(const at::Tensor&)>();
  wait.call(tensor);
}

} // namespace

bool is_collective(const c10::FunctionSchema& schema) {
  return schema.name().rfind("c10d::", 0) == 0;
}

void await_collective(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> results) {
  if (is_functional_collective(schema)) {
    for (const c10::IValue& result : results) {
      for_each_tensor(result, wait_for);
    }
  } else if (is_collective(schema)) {
    for (const c10::IValue& result : results) {
      if (result.isObject()) {
        result.toCustomClass<c10d::Work>()->wait();
      }
    }
  }
}

} // namespace anyrig::virtual_gpu

#else

namespace anyrig::virtual_gpu {

bool is_collective(const c10::FunctionSchema& /*schema*/) {
  return false;
}

void await_collective(
    const c10::FunctionSchema& /*schema*/,
    c10::ArrayRef<c10::IValue> /*results*/) {}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
