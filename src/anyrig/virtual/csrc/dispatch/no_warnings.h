// Replacing a kernel of PyTorch's, of which it warns, without the warning.
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
