// nonzero_cuda_out_impl and masked_select_out_cuda_impl: {Nonzero,IndexKernel}.cu in
// aten/src/ATen/native/cuda. CUB counts the true elements, then writes their positions.
#include "temporaries/selected.h"

#include "device/device.h"
#include "memory/known_values.h"
#include "temporaries/cub.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/from_blob.h>

#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kSelectedPositionBytes = 8;
constexpr int64_t kSelectionCounterBytes = 4;

int64_t bytes_to_select_from(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

// Returns the allocation of the counter, which lives until the positions are written.
int count_true(Temporaries& steps, const at::Tensor& mask, const CubGpu& gpu) {
  const int counter = steps.allocate(kSelectionCounterBytes);
  steps.free(steps.allocate(reduce_bytes(gpu, mask.numel())));
  return counter;
}

void write_positions(Temporaries& steps, const at::Tensor& mask, const CubGpu& gpu) {
  if (mask.dim() > 0) {
    steps.free(steps.allocate(select_positions_bytes(gpu, mask.numel())));
  }
}

Temporaries of_nonzero(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  Temporaries steps;
  if (self.numel() == 0) {
    return steps;
  }
  const CubGpu gpu = CubGpu::of(self.device().index());
  if (!self.is_contiguous()) {
    steps.allocate(bytes_to_select_from(self));
  }
  count_true(steps, self, gpu);
  steps.results_follow();
  write_positions(steps, self, gpu);
  return steps;
}

// Selects as an index: the mask and the tensor are expanded to common sizes.
Temporaries of_masked_select(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto &self = arguments[0].toTensor(), &mask = arguments[1].toTensor();
  Temporaries steps;
  if (self.numel() == 0 || mask.numel() == 0 || !at::are_expandable(self.sizes(), mask.sizes())) {
    return steps;
  }
  const auto selected = count_selected(mask);
  if (selected.has_value()) {
    const auto expanded = mask.expand(at::infer_size_dimvector(self.sizes(), mask.sizes()));
    find_selected(steps, expanded, *selected * (expanded.numel() / mask.numel()));
  }
  steps.results_follow();
  return steps;
}

} // namespace

std::optional<int64_t> count_selected(const at::Tensor& mask) {
  at::Tensor values = mask;
  if (!mask.is_cpu() && shape_only()) {
    values = known_values(mask);
  } else if (!mask.is_cpu()) {
    // The memory of a virtual GPU is the host's.
    values = at::from_blob(
        const_cast<void*>(mask.const_data_ptr()), mask.sizes(), mask.strides(),
        at::TensorOptions().dtype(mask.scalar_type()));
  }
  if (!values.defined() || !values.is_cpu()) {
    return settings().assume_values ? std::optional(mask.numel()) : std::nullopt;
  }
  return at::count_nonzero(values).item<int64_t>();
}

bool puts_by_one_mask(Arguments arguments) {
  const auto &self = arguments[0].toTensor(), &values = arguments[2].toTensor();
  if (arguments[3].toBool() || values.numel() != 1 || !values.is_cpu()) {
    return false;
  }
  int masks = 0;
  for (const auto& index : arguments[1].toOptionalTensorVector()) {
    if (!index.has_value() || !index->defined()) {
      continue;
    }
    const bool is_mask = index->scalar_type() == at::kBool || index->scalar_type() == at::kByte;
    if (!is_mask || index->device() != self.device()) {
      return false;
    }
    ++masks;
  }
  return masks == 1;
}

int find_selected(Temporaries& steps, const at::Tensor& mask, int64_t number) {
  if (mask.numel() == 0) {
    return steps.allocate(0);
  }
  const CubGpu gpu = CubGpu::of(mask.device().index());
  const int copy = steps.allocate(mask.is_contiguous() ? 0 : bytes_to_select_from(mask));
  const int counter = count_true(steps, mask, gpu);
  const int positions = steps.allocate(number * mask.dim() * kSelectedPositionBytes);
  write_positions(steps, mask, gpu);
  steps.free(counter);
  steps.free(copy);
  return positions;
}

TemporariesOf selection_temporaries_of(const std::string& name) {
  static const std::unordered_map<std::string, TemporariesOf> functions = {
      {"nonzero", &of_nonzero},
      {"masked_select", &of_masked_select},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
