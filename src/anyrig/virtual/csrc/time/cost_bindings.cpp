// The Python bindings of the cost model: a script fits its coefficients by the same function that
// the clock uses.

#include "time/cost_bindings.h"

#include "time/cost/collective_cost.h"
#include "time/cost/copy_cost.h"
#include "time/cost/cost.h"
#include "time/gpu_facts.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

using CoefficientValues = std::map<std::string, std::vector<double>>;
using WorkColumn = std::vector<double>;

// How Python reads and writes a field of a record: as a number. Of a field that the record's family
// does not have, Python reads 0, and what it writes is ignored.
struct WorkField {
  bool (*exists)(const Work&);
  double (*get)(const Work&);
  void (*set)(Work&, double);
};

void require(bool holds, const std::string& message) {
  if (!holds) {
    throw std::invalid_argument(message); // a ValueError in Python
  }
}

void set_coefficients(GpuFacts& gpu, const CoefficientValues& values) {
  size_t known = 0;
  visit_coefficients(gpu.coefficients, [&](const std::string& name, double* first, size_t count) {
    const auto found = values.find(name);
    require(found != values.end(), "the coefficients have no " + name);
    require(
        found->second.size() == count,
        "the coefficient " + name + " has " + std::to_string(found->second.size()) +
            " values instead of " + std::to_string(count));
    std::copy(found->second.begin(), found->second.end(), first);
    ++known;
  });
  if (known == values.size()) {
    return;
  }
  auto unknown = values;
  visit_coefficients(
      gpu.coefficients, [&](const std::string& name, double*, size_t) { unknown.erase(name); });
  require(false, "there is no coefficient " + unknown.begin()->first);
}

CoefficientValues read_coefficients(GpuFacts& gpu) {
  CoefficientValues values;
  visit_coefficients(gpu.coefficients, [&](const std::string& name, double* first, size_t count) {
    values[name] = std::vector<double>(first, first + count);
  });
  return values;
}

Work work_of_family(Family family) {
  switch (family) {
    case Family::Memory:
      return Work(MemoryShape());
    case Family::Product:
      return Work(ProductShape());
    case Family::Convolution:
      return Work(ConvolutionShape());
    case Family::Attention:
      return Work(AttentionShape());
  }
  throw std::invalid_argument("there is no family of works with this number");
}

const std::map<std::string, WorkField>& work_fields() {
#define FIELD(exists, place)                                                                 \
  {                                                                                          \
    [](const Work& w) { return exists; },                                                    \
        [](const Work& w) { return static_cast<double>(w.place); },                          \
        [](Work& w, double v) { w.place = static_cast<std::decay_t<decltype(w.place)>>(v); } \
  }
  static const std::map<std::string, WorkField> fields = {
      {"family",
       {[](const Work&) { return true; },
        [](const Work& w) { return static_cast<double>(w.family); },
        [](Work& w, double v) { w = work_of_family(static_cast<Family>(v)); }}},
      {"precision", FIELD(true, precision)},
      {"element_bytes", FIELD(true, element_bytes)},
      {"flops", FIELD(true, flops)},
      {"share", FIELD(true, share)},
      {"bytes_read", FIELD(true, bytes_read)},
      {"bytes_written", FIELD(true, bytes_written)},
      {"footprint_bytes", FIELD(true, footprint_bytes)},
      {"kernels", FIELD(true, kernels)},
      {"batch",
       {[](const Work& w) { return w.family != Family::Memory; },
        [](const Work& w) {
          return w.family == Family::Convolution ? w.convolution.batch
              : w.family == Family::Attention    ? w.attention.batch
                                                 : w.product.batch;
        },
        [](Work& w, double v) {
          (w.family == Family::Convolution     ? w.convolution.batch
               : w.family == Family::Attention ? w.attention.batch
                                               : w.product.batch) = v;
        }}},
      {"m", FIELD(w.family == Family::Product, product.m)},
      {"n", FIELD(w.family == Family::Product, product.n)},
      {"k", FIELD(w.family == Family::Product, product.k)},
      {"pass", FIELD(w.family == Family::Convolution, convolution.pass)},
      {"groups", FIELD(w.family == Family::Convolution, convolution.groups)},
      {"in_channels", FIELD(w.family == Family::Convolution, convolution.in_channels)},
      {"out_channels", FIELD(w.family == Family::Convolution, convolution.out_channels)},
      {"in_d", FIELD(w.family == Family::Convolution, convolution.in[0])},
      {"in_h", FIELD(w.family == Family::Convolution, convolution.in[1])},
      {"in_w", FIELD(w.family == Family::Convolution, convolution.in[2])},
      {"out_d", FIELD(w.family == Family::Convolution, convolution.out[0])},
      {"out_h", FIELD(w.family == Family::Convolution, convolution.out[1])},
      {"out_w", FIELD(w.family == Family::Convolution, convolution.out[2])},
      {"kernel_d", FIELD(w.family == Family::Convolution, convolution.kernel[0])},
      {"kernel_h", FIELD(w.family == Family::Convolution, convolution.kernel[1])},
      {"kernel_w", FIELD(w.family == Family::Convolution, convolution.kernel[2])},
      {"stride_d", FIELD(w.family == Family::Convolution, convolution.stride[0])},
      {"stride_h", FIELD(w.family == Family::Convolution, convolution.stride[1])},
      {"stride_w", FIELD(w.family == Family::Convolution, convolution.stride[2])},
      {"dilation_d", FIELD(w.family == Family::Convolution, convolution.dilation[0])},
      {"dilation_h", FIELD(w.family == Family::Convolution, convolution.dilation[1])},
      {"dilation_w", FIELD(w.family == Family::Convolution, convolution.dilation[2])},
      {"channels_last", FIELD(w.family == Family::Convolution, convolution.channels_last)},
      {"kernel", FIELD(w.family == Family::Attention, attention.kernel)},
      {"backward", FIELD(w.family == Family::Attention, attention.backward)},
      {"heads", FIELD(w.family == Family::Attention, attention.heads)},
      {"queries", FIELD(w.family == Family::Attention, attention.queries)},
      {"keys", FIELD(w.family == Family::Attention, attention.keys)},
      {"access", FIELD(w.family == Family::Memory, memory.access)},
      {"rows", FIELD(w.family == Family::Memory, memory.rows)},
      {"elements", FIELD(w.family == Family::Memory, memory.elements)},
  };
#undef FIELD
  return fields;
}

std::vector<Work> works_of(const std::map<std::string, WorkColumn>& columns) {
  std::vector<Work> works(columns.empty() ? 0 : columns.begin()->second.size());
  const auto set = [&works](const std::string& name, const WorkColumn& column) {
    const WorkField& field = work_fields().at(name);
    for (size_t i = 0; i < column.size(); ++i) {
      if (field.exists(works[i])) {
        field.set(works[i], column[i]);
      }
    }
  };
  for (const auto& [name, column] : columns) {
    require(work_fields().count(name) > 0, "a work record has no field " + name);
    require(
        column.size() == works.size(),
        "the column " + name + " has " + std::to_string(column.size()) + " rows, and " +
            columns.begin()->first + " has " + std::to_string(works.size()));
  }
  // The family decides which other fields exist.
  if (const auto families = columns.find("family"); families != columns.end()) {
    set("family", families->second);
  }
  for (const auto& [name, column] : columns) {
    if (name != "family") {
      set(name, column);
    }
  }
  return works;
}

// The works of many calls, converted once for many predictions.
struct WorkTable {
  std::vector<Work> all;
};

} // namespace

std::map<std::string, WorkColumn> columns_of(const std::vector<std::pair<Work, double>>& works) {
  std::map<std::string, WorkColumn> columns;
  for (const auto& [work, seconds] : works) {
    for (const auto& [name, field] : work_fields()) {
      columns[name].push_back(field.exists(work) ? field.get(work) : 0);
    }
    columns["seconds"].push_back(seconds);
  }
  return columns;
}

void bind_cost(pybind11::module_& m) {
  namespace py = pybind11;
  py::class_<GpuFacts>(m, "GpuFacts")
      .def(py::init<>())
      .def_readwrite("multiprocessors", &GpuFacts::multiprocessors)
      .def_readwrite("clock_hertz", &GpuFacts::clock_hertz)
      .def_readwrite("l2_bytes", &GpuFacts::l2_bytes)
      .def_readwrite("memory_bytes_per_second", &GpuFacts::memory_bytes_per_second)
      .def_readwrite("flops_per_second", &GpuFacts::flops_per_second)
      .def_readwrite("has_matrix_units", &GpuFacts::has_matrix_units)
      .def_readwrite("link_bytes_per_second", &GpuFacts::link_bytes_per_second)
      .def_readwrite("pcie_bytes_per_second", &GpuFacts::pcie_bytes_per_second)
      .def_readwrite("network_bytes_per_second", &GpuFacts::network_bytes_per_second)
      .def_readwrite("fabric", &GpuFacts::fabric)
      .def_property("coefficients", &read_coefficients, &set_coefficients);
  py::class_<WorkTable>(m, "Works")
      .def(py::init([](const std::map<std::string, WorkColumn>& columns) {
        return WorkTable{works_of(columns)};
      }));
  // Predicts collectives of `ranks` ranks on one node; `kind` is a CollectiveKind as a number.
  m.def(
      "predict_collective_seconds",
      [](const GpuFacts& gpu, int kind, const std::vector<double>& bytes, int ranks) {
        const auto inside = gpu.fabric.empty() ? LinkKind::Pcie : LinkKind::Nvlink;
        const RingLinks links{1, {inside, copy_rate(gpu, inside)}, {LinkKind::Network, 0}, ranks};
        std::vector<double> seconds;
        for (const double size : bytes) {
          seconds.push_back(collective_seconds(
              gpu.coefficients.collective, static_cast<CollectiveKind>(kind), size, links, ranks));
        }
        return seconds;
      });
  m.def("predict_seconds", [](const GpuFacts& gpu, const WorkTable& works) {
    std::vector<double> seconds;
    seconds.reserve(works.all.size());
    for (const Work& work : works.all) {
      seconds.push_back(gpu_seconds(gpu, work));
    }
    return seconds;
  });
}

} // namespace anyrig::virtual_gpu
