#include "time/python_code.h"

#include <Python.h>

namespace anyrig::virtual_gpu {

bool is_called_by_python() {
  // PyTorch's threads have a state of Python from their start, with frames while Python code runs.
  // PyThreadState_GetFrame needs the GIL, which operators have released. Only the thread itself
  // changes what is read here.
  const PyThreadState* state = Py_IsInitialized() ? PyGILState_GetThisThreadState() : nullptr;
  if (state == nullptr) {
    return false;
  }
#if PY_VERSION_HEX >= 0x030D0000
  return state->current_frame != nullptr;
#elif PY_VERSION_HEX >= 0x030B0000
  return state->cframe != nullptr && state->cframe->current_frame != nullptr;
#else
  return state->frame != nullptr;
#endif
}

} // namespace anyrig::virtual_gpu
