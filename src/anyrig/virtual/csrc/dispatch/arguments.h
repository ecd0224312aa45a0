// The arguments of one operator call, and a predicate that several files share.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

using Arguments = c10::ArrayRef<c10::IValue>;

// Returns whether scatter(self, dim, index, src, reduce) or scatter_reduce(…, include_self)
// multiplies.
inline bool multiplies(Arguments arguments) {
  return arguments.size() > 4 && arguments[4].isString() &&
      (arguments[4].toStringRef() == "multiply" || arguments[4].toStringRef() == "prod");
}

} // namespace anyrig::virtual_gpu
