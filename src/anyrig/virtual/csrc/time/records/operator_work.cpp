#include "time/records/operator_work.h"

#include "time/records/convolution_record.h"
#include "time/records/factorization_record.h"
#include "time/records/list_record.h"
#include "time/records/memory_record.h"
#include "time/records/product_record.h"

#include <ATen/Context.h>

#include <initializer_list>
#include <unordered_map>
#include <unordered_set>

namespace anyrig::virtual_gpu {
namespace {

int place_of(const c10::FunctionSchema& schema, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto place = schema.argumentIndexWithName(name)) {
      return *place;
    }
  }
  return -1;
}

Traffic traffic_of(const std::string& name) {
  static const std::unordered_map<std::string, Traffic> traffic = {
      {"gather", Traffic::Gather},
      {"index", Traffic::Gather},
      {"_unsafe_index", Traffic::Gather},
      {"index_select", Traffic::Gather},
      {"nll_loss_forward", Traffic::Gather},
      {"nll_loss2d_forward", Traffic::Gather},
      {"take", Traffic::Gather},
      {"index_add_", Traffic::Scatter},
      {"index_copy_", Traffic::Scatter},
      {"index_put_", Traffic::Scatter},
      {"_index_put_impl_", Traffic::Scatter},
      {"put_", Traffic::Scatter},
      {"scatter_", Traffic::Scatter},
      {"scatter_add_", Traffic::Scatter},
      {"scatter_reduce_", Traffic::Scatter},
      {"_embedding_bag", Traffic::Rows},
      {"_embedding_bag_forward_only", Traffic::Rows},
      {"resize_", Traffic::Free},
      {"resize_as_", Traffic::Free},
  };
  const auto found = traffic.find(name);
  return found == traffic.end() ? Traffic::All : found->second;
}

Describe describe_of(const std::string& name) {
  for (const auto& find :
       {find_product, find_convolution, find_factorization, find_list, find_memory}) {
    if (const Describe describe = find(name)) {
      return describe;
    }
  }
  return nullptr;
}

bool allows_tf32(Family family) {
  const auto op = family == Family::Convolution ? at::Float32Op::CONV : at::Float32Op::MATMUL;
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) ==
      at::Float32Precision::TF32;
}

} // namespace

WorkRules::WorkRules(const std::string& name, const c10::FunctionSchema& schema)
    : describe(describe_of(name)),
      multiplies(find_product(name) != nullptr || find_convolution(name) != nullptr),
      traffic(traffic_of(name)) {
  const MemoryRule rule = memory_rule_of(name);
  access = rule.access;
  read_passes = rule.read_passes;
  kernels = rule.kernels;
  places = {
      place_of(schema, {"bias"}),
      place_of(schema, {"stride"}),
      place_of(schema, {"padding"}),
      place_of(schema, {"dilation"}),
      place_of(schema, {"transposed"}),
      place_of(schema, {"output_padding"}),
      place_of(schema, {"groups"}),
      place_of(schema, {"output_mask"}),
      place_of(schema, {"training", "train", "update"}),
      place_of(schema, {"dim", "normalized_shape"})};
}

bool order_counts(const WorkRules& rules, const Description& description) {
  if (description.works.empty()) {
    return rules.access == Access::Pointwise;
  }
  const Work& work = description.works[0];
  return work.family == Family::Memory && work.memory.access == Access::Pointwise;
}

void complete(const WorkRules& rules, const Moved& moved, Description& description) {
  Works& works = description.works;
  if (works.empty()) {
    works.emplace_back();
    works[0].memory.access = rules.access;
    works[0].kernels = rules.kernels;
  }
  Work& work = works[0];
  if (work.footprint_bytes > 0) {
    return; // the geometry gave the bytes of each part
  }
  const bool is_memory_bound = work.family == Family::Memory;
  const double passes = description.read_passes > 0 ? description.read_passes : rules.read_passes;
  work.bytes_read = moved.read * (is_memory_bound ? passes : 1);
  work.bytes_written = moved.written;
  work.footprint_bytes = moved.footprint;
  if (is_memory_bound) {
    work.memory.elements = moved.elements;
  }
  if (moved.is_strided) {
    work.memory.access = Access::Strided;
  }
}

int unread_argument_of(const std::string& name) {
  static const std::unordered_set<std::string> second = {
      "_adaptive_avg_pool2d_backward",
      "_adaptive_avg_pool3d_backward",
      "avg_pool2d_backward",
      "avg_pool3d_backward",
      "max_pool2d_with_indices_backward",
      "max_pool3d_with_indices_backward",
      "nll_loss_backward",
      "nll_loss2d_backward"};
  return second.count(name) > 0 ? 1 : -1;
}

bool overwrites(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "_foreach_copy_", "_foreach_zero_", "fill_", "zero_"};
  return names.count(name) > 0;
}

Precision precision_of(at::ScalarType dtype, Family family) {
  switch (dtype) {
    case at::kDouble:
    case at::kComplexDouble:
      return Precision::Float64;
    case at::kHalf:
    case at::kComplexHalf:
      return Precision::Float16;
    case at::kBFloat16:
      return Precision::Bfloat16;
    case at::kChar:
    case at::kByte:
      return Precision::Int8;
    case at::kFloat:
    case at::kComplexFloat:
      return allows_tf32(family) ? Precision::Tfloat32 : Precision::Float32;
    case at::kFloat4_e2m1fn_x2: // packs two elements in a value: half the FLOPs, at the float8 rate
      return Precision::Float8;
    default:
      return c10::isFloat8Type(dtype) ? Precision::Float8 : Precision::Float32;
  }
}

double touched_bytes(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) {
    return static_cast<double>(tensor.nbytes());
  }
  int64_t elements = tensor.numel() == 0 ? 0 : 1;
  for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    if (tensor.stride(dimension) != 0) {
      elements *= tensor.size(dimension);
    }
  }
  return static_cast<double>(elements) * static_cast<double>(tensor.element_size());
}

bool repeats_elements(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) {
    return false;
  }
  for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    if (tensor.size(dimension) > 1 && tensor.stride(dimension) == 0) {
      return true;
    }
  }
  return false;
}

int64_t fastest_dimension(const at::Tensor& tensor) {
  for (int64_t dimension = tensor.dim() - 1; dimension >= 0; --dimension) {
    if (tensor.size(dimension) > 1 && tensor.stride(dimension) == 1) {
      return dimension;
    }
  }
  return -1;
}

} // namespace anyrig::virtual_gpu
