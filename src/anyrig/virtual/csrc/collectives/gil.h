// Releases the GIL around a wait that may end only after another Python thread has run.
#pragma once

#include <Python.h>

namespace anyrig::virtual_gpu {

// Releases the GIL for a scope, if this thread holds it.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) {
      PyEval_RestoreThread(state_);
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

} // namespace anyrig::virtual_gpu
