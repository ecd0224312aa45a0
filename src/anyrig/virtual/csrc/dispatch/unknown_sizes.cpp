#include "dispatch/unknown_sizes.h"

#include <c10/util/Exception.h>

namespace anyrig::virtual_gpu {
namespace {

RaiseSizesUnknown& sizes_unknown_raiser() {
  static auto* raise = new RaiseSizesUnknown();
  return *raise;
}

} // namespace

void set_raise_sizes_unknown(RaiseSizesUnknown raise) {
  sizes_unknown_raiser() = std::move(raise);
}

void raise_sizes_unknown(const std::string& name) {
  sizes_unknown_raiser()(name);
  TORCH_CHECK(false, name, " has results whose sizes a shape-only rehearsal cannot determine");
}

bool infers_sizes(const c10::OperatorHandle& op) {
  using enum c10::DispatchKey;
  return op.hasKernelForDispatchKey(Meta) ||
      op.hasKernelForDispatchKey(CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(CompositeExplicitAutogradNonFunctional) ||
      op.hasKernelForDispatchKey(CompositeImplicitAutograd);
}

} // namespace anyrig::virtual_gpu
