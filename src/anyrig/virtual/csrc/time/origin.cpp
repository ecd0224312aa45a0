#include "time/origin.h"

#include "time/running_operator.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <frameobject.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// About 100 MB of entries. A program that takes no optimizer step would collect them for ever.
constexpr size_t kMostNodes = size_t{1} << 20;

struct CodeFacts {
  bool is_library = false;
  bool is_module_call = false;
};

// A module by its address, which another module can have once this one is gone.
struct KnownModule {
  PyObject* weak_reference;
  int32_t number;
};

// Guarded by the GIL. Never freed: other threads may launch work while the process ends.
struct Origins {
  OriginSettings settings;
  PyObject* self_name = nullptr;
  std::unordered_map<PyCodeObject*, CodeFacts> codes; // holds a reference of each
  std::map<std::pair<PyCodeObject*, int>, int32_t> line_at; // by code and instruction
  std::map<std::pair<std::string, int>, int32_t> line_numbers;
  std::vector<std::pair<std::string, int>> lines;
  std::vector<std::string> functions; // of the lines
  std::unordered_map<PyObject*, KnownModule> known_modules;
  std::map<std::string, int32_t> module_numbers;
  std::vector<std::string> modules;

  static Origins& get() {
    static auto* origins = new Origins();
    return *origins;
  }
};

// The origins of nodes of graphs, by thread and sequence number.
struct NodeOrigins {
  std::mutex mutex;
  std::unordered_map<uint64_t, Origin> by_node;

  static NodeOrigins& get() {
    static auto* nodes = new NodeOrigins();
    return *nodes;
  }
};

uint64_t node_key(uint64_t thread, uint64_t sequence) {
  return (thread << 44) ^ sequence;
}

std::optional<Origin> origin_of_node(uint64_t thread, uint64_t sequence) {
  auto& nodes = NodeOrigins::get();
  std::lock_guard<std::mutex> guard(nodes.mutex);
  const auto found = nodes.by_node.find(node_key(thread, sequence));
  return found == nodes.by_node.end() ? std::nullopt : std::optional(found->second);
}

// The node that an operator belongs to exists before its kernel runs.
std::optional<uint64_t> key_of_last_node() {
  const uint64_t next = at::sequence_number::peek();
  if (next == 0) {
    return std::nullopt;
  }
  return node_key(at::RecordFunction::currentThreadId(), next - 1);
}

bool has_node_with_origin() {
  const auto key = key_of_last_node();
  auto& nodes = NodeOrigins::get();
  std::lock_guard<std::mutex> guard(nodes.mutex);
  return !key.has_value() || nodes.by_node.count(*key) > 0;
}

void keep(Origin origin) {
  const auto key = key_of_last_node();
  if (!key.has_value()) {
    return;
  }
  auto& nodes = NodeOrigins::get();
  std::lock_guard<std::mutex> guard(nodes.mutex);
  if (nodes.by_node.size() >= kMostNodes) {
    nodes.by_node.clear();
  }
  nodes.by_node.try_emplace(*key, origin);
}

std::string text_of(PyObject* text) {
  const char* bytes = PyUnicode_AsUTF8(text);
  if (bytes == nullptr) {
    PyErr_Clear();
    return "";
  }
  return bytes;
}

std::string file_of(PyCodeObject* code) {
  return text_of(code->co_filename);
}

const CodeFacts& facts_of(Origins& origins, PyCodeObject* code) {
  const auto found = origins.codes.find(code);
  if (C10_LIKELY(found != origins.codes.end())) {
    return found->second;
  }
  const std::string file = file_of(code);
  CodeFacts facts;
  facts.is_module_call = reinterpret_cast<PyObject*>(code) == origins.settings.module_call;
  facts.is_library = file.empty() || file[0] == '<';
  for (const auto& path : origins.settings.library_paths) {
    facts.is_library = facts.is_library || file.rfind(path, 0) == 0;
  }
  Py_INCREF(code);
  return origins.codes.emplace(code, facts).first->second;
}

int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti;
#endif
}

int32_t line_of(Origins& origins, PyFrameObject* frame, PyCodeObject* code) {
  const std::pair place(code, instruction_of(frame));
  const auto found = origins.line_at.find(place);
  if (C10_LIKELY(found != origins.line_at.end())) {
    return found->second;
  }
  const std::pair line(file_of(code), PyFrame_GetLineNumber(frame));
  const auto [entry, is_new] =
      origins.line_numbers.try_emplace(line, static_cast<int32_t>(origins.lines.size()));
  if (is_new) {
    origins.lines.push_back(line);
    origins.functions.push_back(text_of(code->co_name));
  }
  return origins.line_at[place] = entry->second;
}

// Returns the first argument of a call of nn.Module.__call__; a new reference, or null.
PyObject* module_in(const Origins& origins, PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* module = PyFrame_GetVar(frame, origins.self_name);
#else
  PyObject* module = nullptr;
  if (PyObject* locals = PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_locals")) {
    module = PyObject_GetItem(locals, origins.self_name);
    Py_DECREF(locals);
  }
#endif
  if (module == nullptr) {
    PyErr_Clear();
  }
  return module;
}

bool is_referent(PyObject* weak_reference, PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* referent = nullptr;
  const bool is_alive = PyWeakref_GetRef(weak_reference, &referent) == 1;
  const bool is_same = is_alive && referent == object;
  Py_XDECREF(referent);
  return is_same;
#else
  return PyWeakref_GetObject(weak_reference) == object;
#endif
}

// Returns a new reference to the outermost module whose call `frame` or a frame below it is.
PyObject* outermost_module(Origins& origins, PyFrameObject* frame, PyObject* innermost) {
  Py_INCREF(innermost);
  PyObject* outermost = innermost;
  Py_INCREF(frame);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (facts_of(origins, code).is_module_call) {
      if (PyObject* module = module_in(origins, frame)) {
        Py_DECREF(outermost);
        outermost = module;
      }
    }
    Py_DECREF(code);
    PyFrameObject* caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  return outermost;
}

int32_t module_of(Origins& origins, PyFrameObject* frame) {
  PyObject* module = module_in(origins, frame);
  if (module == nullptr) {
    return -1;
  }
  const auto found = origins.known_modules.find(module);
  if (C10_LIKELY(
          found != origins.known_modules.end() &&
          is_referent(found->second.weak_reference, module))) {
    Py_DECREF(module);
    return found->second.number;
  }
  PyObject* outermost = outermost_module(origins, frame, module);
  PyObject* name =
      PyObject_CallFunctionObjArgs(origins.settings.name_module, outermost, module, nullptr);
  Py_DECREF(outermost);
  int32_t number = -1;
  if (name != nullptr) {
    const auto [entry, is_new] = origins.module_numbers.try_emplace(
        text_of(name), static_cast<int32_t>(origins.modules.size()));
    if (is_new) {
      origins.modules.push_back(entry->first);
    }
    number = entry->second;
    Py_DECREF(name);
    if (PyObject* weak_reference = PyWeakref_NewRef(module, nullptr)) {
      // The reference of a module that is gone, if any, is replaced.
      auto& known = origins.known_modules[module];
      Py_XDECREF(std::exchange(known.weak_reference, weak_reference));
      known.number = number;
    }
  }
  PyErr_Clear();
  Py_DECREF(module);
  return number;
}

Origin search_frames() {
  Origin origin;
  auto& origins = Origins::get();
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && (origin.line < 0 || origin.module < 0)) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const CodeFacts facts = facts_of(origins, code);
    if (origin.line < 0 && !facts.is_library) {
      origin.line = line_of(origins, frame, code);
    }
    if (origin.module < 0 && facts.is_module_call) {
      origin.module = module_of(origins, frame);
    }
    Py_DECREF(code);
    PyFrameObject* caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  Py_XDECREF(frame);
  return origin;
}

int32_t search_line() {
  auto& origins = Origins::get();
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  int32_t line = -1;
  while (frame != nullptr && line < 0) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (!facts_of(origins, code).is_library) {
      line = line_of(origins, frame, code);
    }
    Py_DECREF(code);
    PyFrameObject* caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  Py_XDECREF(frame);
  return line;
}

// Calls `search` with the GIL and without the exception that may be on its way. Returns `unknown`
// where Python does not run.
template <class Found>
Found search_in_python(Found (*search)(), Found unknown) {
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr ||
      Origins::get().settings.module_call == nullptr) {
    return unknown;
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const Found found = search();
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
  return found;
}

// Naming a module runs the program's code, which may launch work.
thread_local bool is_searching = false;

Origin origin_in_python() {
  if (is_searching) {
    return {};
  }
  is_searching = true;
  const Origin origin = search_in_python<Origin>(&search_frames, {});
  is_searching = false;
  return origin;
}

Origin find_origin_of_call() {
  if (replays_graph()) {
    if (const auto node = torch::autograd::get_current_node()) {
      if (const auto origin = origin_of_node(node->thread_id(), node->sequence_nr())) {
        return *origin;
      }
    }
    return origin_in_python();
  }
  const Origin origin = origin_in_python();
  keep(origin);
  return origin;
}

} // namespace

bool replays_graph() {
  return torch::autograd::get_current_graph_task_id() != -1 && !at::GradMode::is_enabled();
}

void set_origins(const OriginSettings& settings) {
  auto& origins = Origins::get();
  origins.settings = settings;
  // The new `name_module` must see each module once.
  for (const auto& [module, known] : origins.known_modules) {
    Py_XDECREF(known.weak_reference);
  }
  origins.known_modules.clear();
  Py_XINCREF(settings.module_call);
  Py_XINCREF(settings.name_module);
  origins.self_name = PyUnicode_InternFromString("self");
}

Origin find_origin() {
  // An operator asks for each block that it makes and for each kernel that it launches.
  thread_local struct {
    uint64_t call = 0;
    Origin origin;
  } last;
  const uint64_t call = RunningOperator::call();
  if (call == 0 || call != last.call) {
    last.origin = find_origin_of_call();
    last.call = call;
  }
  return last.origin;
}

void keep_origin_of_node() {
  if (at::GradMode::is_enabled() && !has_node_with_origin()) {
    keep(origin_in_python());
  }
}

int32_t find_line() {
  return search_in_python<int32_t>(&search_line, -1);
}

void forget_nodes() {
  auto& nodes = NodeOrigins::get();
  std::lock_guard<std::mutex> guard(nodes.mutex);
  nodes.by_node.clear();
}

const std::vector<std::pair<std::string, int>>& origin_lines() {
  return Origins::get().lines;
}

const std::vector<std::string>& origin_functions() {
  return Origins::get().functions;
}

const std::vector<std::string>& origin_modules() {
  return Origins::get().modules;
}

} // namespace anyrig::virtual_gpu
