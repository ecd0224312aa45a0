// The arguments of a call, and what more than one part asks of them.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

using Arguments = c10::ArrayRef<c10::IValue>;

// Whether scatter(self, dim, index, src, reduce) or scatter_reduce(…, include_self) makes products.
inline bool multiplies(Arguments arguments) {
  return arguments.size() > 4 && arguments[4].isString() &&
      (arguments[4].toStringRef() == "multiply" || arguments[4].toStringRef() == "prod");
}

} // namespace anyrig::virtual_gpu
