// Suppression of PyTorch's warnings: of a kernel that replaces another, or of the host's kernels.
#pragma once

#include <c10/util/Exception.h>

namespace anyrig::virtual_gpu {

class WithoutWarnings {
 private:
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };

  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};

} // namespace anyrig::virtual_gpu
