#include "time/giving_way.h"

#include <Python.h>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

namespace anyrig::virtual_gpu {
namespace {

#ifdef __linux__

// Returns whether a thread that Python started is alive. Threads of PyTorch also have a Python
// thread state, but Python does not count them.
bool python_started_threads() {
  static PyObject* count = nullptr; // guarded by the GIL
  if (count == nullptr) {
    PyObject* module = PyImport_ImportModule("_thread");
    count = module != nullptr ? PyObject_GetAttrString(module, "_count") : nullptr;
    Py_XDECREF(module);
  }
  PyObject* threads = count != nullptr ? PyObject_CallNoArgs(count) : nullptr;
  const bool some = threads != nullptr && PyLong_AsLong(threads) > 0;
  Py_XDECREF(threads);
  PyErr_Clear();
  return some;
}

// Returns the threads that Python started, and the main thread. Asks `threading` rather than walk
// the interpreter's thread states: their list is guarded by a lock of the interpreter, not by the
// GIL, and C++ threads enter and leave it without the GIL.
std::vector<pid_t> threads_of_python() {
  static PyObject* enumerate = nullptr; // guarded by the GIL
  if (enumerate == nullptr) {
    PyObject* module = PyImport_ImportModule("threading");
    enumerate = module != nullptr ? PyObject_GetAttrString(module, "enumerate") : nullptr;
    Py_XDECREF(module);
  }
  std::vector<pid_t> threads;
  PyObject* found = enumerate != nullptr ? PyObject_CallNoArgs(enumerate) : nullptr;
  const Py_ssize_t count = found != nullptr ? PyList_Size(found) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* id = PyObject_GetAttrString(PyList_GetItem(found, i), "native_id");
    if (id != nullptr && id != Py_None) { // a thread that is being started has none yet
      threads.push_back(static_cast<pid_t>(PyLong_AsLong(id)));
    }
    Py_XDECREF(id);
    PyErr_Clear();
  }
  Py_XDECREF(found);
  PyErr_Clear();
  return threads;
}

bool is_running(pid_t thread) {
  // The format is "pid (name) state ..." (proc(5)), and the name may contain parentheses.
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return false; // the thread has ended
  }
  char text[128];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) {
    return false;
  }
  text[length] = '\0';
  const char* end_of_name = std::strrchr(text, ')');
  return end_of_name != nullptr && (end_of_name[2] == 'R' || end_of_name[2] == 'D');
}

#endif

} // namespace

bool Waiters::has_earlier_waiter(Place place) const {
  return std::any_of(waiters_.begin(), waiters_.end(), [place](const Waiter& other) {
    return other.until < place->until;
  });
}

bool Waiters::any_not_waiting(const std::vector<pid_t>& threads) const {
  return std::any_of(threads.begin(), threads.end(), [this](pid_t thread) {
    return std::none_of(waiters_.begin(), waiters_.end(), [thread](const Waiter& waiter) {
      return waiter.thread == thread;
    });
  });
}

#ifdef __linux__

pid_t kernel_thread_id() {
  static thread_local const auto id = static_cast<pid_t>(syscall(SYS_gettid));
  return id;
}

std::vector<pid_t> other_python_threads() {
  std::vector<pid_t> others;
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr || PyGILState_Check()) {
    return others;
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  if (python_started_threads()) {
    for (const pid_t thread : threads_of_python()) {
      if (thread != kernel_thread_id()) {
        others.push_back(thread);
      }
    }
  }
  PyGILState_Release(state);
  return others;
}

bool has_ended(pid_t thread) {
  return access(("/proc/self/task/" + std::to_string(thread)).c_str(), F_OK) != 0;
}

std::vector<pid_t> running_threads(const std::vector<pid_t>& threads) {
  std::vector<pid_t> running;
  std::copy_if(threads.begin(), threads.end(), std::back_inserter(running), is_running);
  return running;
}

#else

pid_t kernel_thread_id() {
  return 0;
}

std::vector<pid_t> other_python_threads() {
  return {};
}

bool has_ended(pid_t /*thread*/) {
  return true;
}

std::vector<pid_t> running_threads(const std::vector<pid_t>&) {
  return {};
}

#endif

} // namespace anyrig::virtual_gpu
