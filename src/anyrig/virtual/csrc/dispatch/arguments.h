// The arguments of one operator call.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

using Arguments = c10::ArrayRef<c10::IValue>;

} // namespace anyrig::virtual_gpu
