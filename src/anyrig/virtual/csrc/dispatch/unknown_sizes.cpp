#include "dispatch/unknown_sizes.h"

#include <c10/util/Exception.h>

namespace anyrig::virtual_gpu {
namespace {

RaiseSizesUnknown& raiser_of_unknown_sizes() {
  static auto* raise = new RaiseSizesUnknown();
  return *raise;
}

} // namespace

void set_raise_sizes_unknown(RaiseSizesUnknown raise) {
  raiser_of_unknown_sizes() = std::move(raise);
}

void raise_sizes_unknown(const std::string& name) {
  raiser_of_unknown_sizes()(name);
  TORCH_CHECK(false, name, " has results whose sizes a shape-only rehearsal cannot tell");
}

bool tells_sizes(const c10::OperatorHandle& op) {
  using enum c10::DispatchKey;
  return op.hasKernelForDispatchKey(Meta) ||
      op.hasKernelForDispatchKey(CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(CompositeExplicitAutogradNonFunctional) ||
      op.hasKernelForDispatchKey(CompositeImplicitAutograd);
}

} // namespace anyrig::virtual_gpu
