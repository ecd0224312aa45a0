#pragma once

#include "time/work.h"

#include <pybind11/pybind11.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {

// Returns the fields of `works` as columns, and their seconds as another column.
std::map<std::string, std::vector<double>> columns_of(
    const std::vector<std::pair<Work, double>>& works);

// Adds GpuFacts, Works and predict_seconds to the Python module.
void bind_cost(pybind11::module_& m);

} // namespace anyrig::virtual_gpu
