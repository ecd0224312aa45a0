// Where in the program work is launched: the innermost line outside PyTorch and anyrig, and the
// innermost module that runs.
//
//   forward     Python's frames:   train.py:31, calls of modules, calls inside PyTorch
//   backward    the node of the graph, which has the origin of the operator that created it
//
// PyTorch's engine has no Python frames in its threads, so the origins of nodes are kept by the
// thread that created a node and the node's sequence number (memory/recorder.py does the same).
//
// Lines and modules are numbered from 0 in the order in which they were found; -1 is unknown.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {

struct Origin {
  int32_t line = -1;
  int32_t module = -1;
};

// What the search for origins needs from Python. Call once, with the GIL.
struct OriginSettings {
  std::vector<std::string> library_paths; // code in files that begin so is not the program's
  PyObject* module_call = nullptr;        // the code of nn.Module.__call__; borrowed
  // (outermost module, module) -> its name; borrowed, must live as long as the process
  PyObject* name_module = nullptr;
};
void set_origins(const OriginSettings& settings);

// Returns where the calling thread is, and keeps it as the origin of the last node of the graph
// that this thread has created. Takes the GIL, so the caller must hold no lock.
Origin find_origin();
// Returns the line alone; -1 if unknown. Keeps nothing. Takes the GIL, so the caller must hold no
// lock.
int32_t find_line();
// Keeps the origin of the last node that this thread has created, if it has none. For operators
// that launch no work, such as views, whose backward does.
void keep_origin_of_node();
// Returns whether the calling thread computes gradients: within a backward pass, and not in what it
// computes again for activation checkpoints.
bool replays_graph();
// Drops the origins of nodes: no later backward pass is expected to use them.
void forget_nodes();

// The lines as (file, number), the functions that they are in, and the names of the modules. The
// caller has the GIL.
const std::vector<std::pair<std::string, int>>& origin_lines();
const std::vector<std::string>& origin_functions();
const std::vector<std::string>& origin_modules();

} // namespace anyrig::virtual_gpu
