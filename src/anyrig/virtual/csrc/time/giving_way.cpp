#include "time/giving_way.h"

#include <Python.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
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

std::vector<pid_t> threads_with_python_state() {
  std::vector<pid_t> threads;
#if PY_VERSION_HEX >= 0x030B0000
  PyInterpreterState* interpreter = PyThreadState_GetInterpreter(PyThreadState_Get());
  for (auto* thread = PyInterpreterState_ThreadHead(interpreter); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    threads.push_back(static_cast<pid_t>(thread->native_thread_id));
  }
#else
  // Python does not provide the thread IDs, so use all threads of the process.
  if (DIR* folder = opendir("/proc/self/task")) {
    while (const dirent* entry = readdir(folder)) {
      threads.push_back(static_cast<pid_t>(std::atoi(entry->d_name)));
    }
    closedir(folder);
  }
#endif
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
    for (const pid_t thread : threads_with_python_state()) {
      if (thread != kernel_thread_id()) {
        others.push_back(thread);
      }
    }
  }
  PyGILState_Release(state);
  return others;
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

std::vector<pid_t> running_threads(const std::vector<pid_t>&) {
  return {};
}

#endif

} // namespace anyrig::virtual_gpu
