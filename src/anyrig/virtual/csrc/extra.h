// Extras: parts of CUDA that few programs use. The folder `extras` contains them, and its list.cpp
// names them. Files outside that folder do not include them: they know this header only, and an
// extra that is not in the list does not exist.
#pragma once

#include "dispatch/operator_record.h"

#include <pybind11/pybind11.h>

#include <vector>

namespace anyrig::virtual_gpu {

struct Extra {
  const char* name; // of its folder or file
  std::vector<OperatorRecords (*)()> records = {};
  // Called once devices exist, before their operators are registered.
  void (*install)() = nullptr;
  // Adds functions to the Python module.
  void (*bind)(pybind11::module_& module) = nullptr;
};

const std::vector<Extra>& extras();

} // namespace anyrig::virtual_gpu
