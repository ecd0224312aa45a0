// Selecting and writing by index or mask, and concatenation.

#include "dispatch/operator_record.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace anyrig::virtual_gpu {
namespace {

constexpr DtypeSet kIndices = {at::kInt, at::kLong};

// Returns whether scatter(self, dim, index, src, reduce) or scatter_reduce(…, include_self)
// multiplies.
bool multiplies(Arguments arguments) {
  return arguments.size() > 4 && arguments[4].isString() &&
      (arguments[4].toStringRef() == "multiply" || arguments[4].toStringRef() == "prod");
}

// scatter_reduce(self, dim, index, src, reduce). Another kernel computes sums.
bool is_not_sum(Arguments arguments) {
  return arguments[4].toStringRef() != "sum";
}

// Without accumulation the CPU kernel raises the error itself.
bool accumulates(Arguments arguments) {
  return arguments[3].toBool();
}

// Returns whether a scatter multiplies by tensors. CUDA adds with the deterministic index_put, and
// its kernel for a number is deterministic.
bool multiplies_tensors(Arguments arguments) {
  return multiplies(arguments) && arguments[3].isTensor();
}

// index_select(self, dim, index)
void check_is_vector(Arguments arguments) {
  TORCH_CHECK_INDEX(
      arguments[2].toTensor().dim() <= 1, "index_select(): Index is supposed to be a vector");
}

// index(self, indices)
void check_indices(Arguments arguments) {
  std::vector<at::Tensor> indices;
  bool has_mask = false;
  for (const std::optional<at::Tensor>& index : arguments[1].toOptionalTensorVector()) {
    if (!index.has_value() || !index->defined()) {
      continue;
    }
    const auto dtype = index->scalar_type();
    TORCH_CHECK_INDEX(
        dtype == at::kLong || dtype == at::kInt || dtype == at::kByte || dtype == at::kBool,
        "tensors used as indices must be long, int, byte or bool tensors");
    has_mask |= dtype == at::kByte || dtype == at::kBool;
    indices.push_back(*index);
  }
  for (size_t i = 1; !has_mask && i < indices.size(); ++i) {
    if (!at::are_expandable(indices[i - 1].sizes(), indices[i].sizes())) {
      std::string shapes;
      for (const auto& index : indices) {
        shapes += (shapes.empty() ? "" : ", ") + c10::str(index.sizes());
      }
      TORCH_CHECK_INDEX(
          false, "shape mismatch: indexing tensors could not be broadcast together with shapes ",
          shapes);
    }
  }
}

// Returns the sizes of self[indices], without masks. The broadcast sizes of the indices replace the
// indexed dimensions if these are adjacent, and otherwise come first.
std::optional<std::vector<int64_t>> selected_sizes(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  std::vector<int64_t> common;
  std::vector<int64_t> before;
  std::vector<int64_t> after;
  int64_t dimension = 0;
  int64_t groups = 0;
  bool in_group = false;
  for (const std::optional<at::Tensor>& index : arguments[1].toOptionalTensorVector()) {
    const bool is_given = index.has_value() && index->defined();
    if (is_given && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte)) {
      return std::nullopt;
    }
    TORCH_CHECK_INDEX(
        dimension < self.dim(), "too many indices for tensor of dimension ", self.dim(), " (got ",
        arguments[1].toOptionalTensorVector().size(), ")");
    if (is_given) {
      common = at::infer_size(common, index->sizes());
      groups += in_group ? 0 : 1;
    } else {
      (groups == 0 ? before : after).push_back(self.size(dimension));
    }
    in_group = is_given;
    ++dimension;
  }
  for (; dimension < self.dim(); ++dimension) {
    after.push_back(self.size(dimension));
  }
  auto& first = groups == 1 ? before : common;
  auto& second = groups == 1 ? common : before;
  std::vector<int64_t> result = first;
  result.insert(result.end(), second.begin(), second.end());
  result.insert(result.end(), after.begin(), after.end());
  return result;
}

// index_put_(self, indices, values, accumulate). A single value may have any dtype. Sizes are
// checked only without masks, since a mask's selection depends on its values.
void check_values(Arguments arguments) {
  check_indices(arguments);
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& values = arguments[2].toTensor();
  TORCH_CHECK(
      self.scalar_type() == values.scalar_type() || values.numel() == 1,
      "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
      " for the destination and ", values.scalar_type(), " for the source.");
  const auto selected = selected_sizes(arguments);
  TORCH_CHECK(
      !selected.has_value() || at::is_expandable_to(values.sizes(), *selected),
      "shape mismatch: value tensor of shape ", values.sizes(),
      " cannot be broadcast to indexing result of shape ", at::IntArrayRef(*selected));
}

// index_copy(self, dim, index, source)
void check_copied_slices(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& index = arguments[2].toTensor();
  const at::Tensor& source = arguments[3].toTensor();
  TORCH_CHECK_INDEX(
      index.dim() < 2, "index_copy_(): Index should have dimension 1 or 0 (got ", index.dim(), ")");
  if (self.dim() == 0 || self.dim() != source.dim()) {
    return; // every backend refuses it, unless both are single numbers
  }
  const int64_t along = c10::maybe_wrap_dim(arguments[1].toInt(), self.dim());
  auto slice = self.sizes().vec();
  auto source_slice = source.sizes().vec();
  slice.erase(slice.begin() + along);
  source_slice.erase(source_slice.begin() + along);
  TORCH_CHECK(
      slice == source_slice,
      "index_copy_(): Source/destination tensor must have same slice shapes. Destination slice "
      "shape: ",
      c10::Join(" ", slice), " at dimension ", along,
      " and source slice shape: ", c10::Join(" ", source_slice), " at dimension 0.");
  TORCH_CHECK_INDEX(
      index.numel() == source.size(along), "index_copy_(): Number of indices (", index.numel(),
      ") should be equal to source.size(dim) (", source.size(along), ")");
}

// cat(tensors, dim). An empty vector can be concatenated with anything.
void check_concatenated_sizes(Arguments arguments) {
  if (!arguments[0].isTensorList()) {
    return;
  }
  const auto tensors = arguments[0].toTensorVector();
  const at::Tensor* first = nullptr;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (tensor.dim() == 1 && tensor.numel() == 0) {
      continue;
    }
    if (first == nullptr) {
      first = &tensor;
      continue;
    }
    if (tensor.dim() != first->dim() || tensor.dim() == 0) {
      return; // every backend refuses it
    }
    const int64_t along = c10::maybe_wrap_dim(arguments[1].toInt(), first->dim());
    for (int64_t dimension = 0; dimension < first->dim(); ++dimension) {
      TORCH_CHECK(
          dimension == along || tensor.size(dimension) == first->size(dimension),
          "Sizes of tensors must match except in dimension ", along, ". Expected size ",
          first->size(dimension), " but got size ", tensor.size(dimension), " for tensor number ",
          i, " in the list.");
    }
  }
}

OperatorRecords indexing_records() {
  using enum c10::ScalarType;
  const DtypeRule kFilledIndex =
      dtype_in(2, {Long}, "index_fill_(): Expected dtype int64 for index.", RefusalError::Index);
  return {
      {{"index"}, {.check_arguments = check_indices, .device_check = DeviceCheck::Indices}},
      {{"_unsafe_index"}, {.device_check = DeviceCheck::Indices}},
      {{"index_put_"}, {.device_check = DeviceCheck::WrittenIndices, .moved_value = 2}},
      {{"_index_put_impl_"},
       {.check_arguments = check_values,
        .device_check = DeviceCheck::WrittenIndices,
        .moved_value = 2}},
      {{"index_select"},
       {.dtype_rules = {dtype_in(
            2, kIndices, "index_select(): Expected dtype int32 or int64 for index")},
        .check_arguments = check_is_vector}},
      {{"index_add", "index_add_"},
       {.dtype_rules =
            {dtype_in(
                 2, kIndices, "index_add_(): Expected dtype int32/int64 for index but got: {1}"),
             same_dtype(
                 3, 0,
                 "index_add_(): self ({2}) and source ({1}) must have the same scalar type")}}},
      {{"index_copy", "index_copy_"},
       {.dtype_rules =
            {dtype_in(2, {Long}, "index_copy_(): Expected a long tensor for index, but got {1}"),
             same_dtype(
                 3, 0,
                 "index_copy_(): self and source expected to have the same dtype, but got (self) "
                 "{2} and (source) {1}")},
        .check_arguments = check_copied_slices}},
      {{"index_fill_"}, {.dtype_rules = {kFilledIndex}}},
      {{"index_fill_.int_Tensor"}, {.dtype_rules = {kFilledIndex}, .moved_value = 3}},
      {{"index_reduce", "index_reduce_"}, {.nondeterministic = "index_reduce_cuda"}},
      {{"put_"},
       {.dtype_rules =
            {dtype_in(1, {Long}, "put_(): Expected a long tensor for index, but got {1}"),
             same_dtype(
                 2, 0,
                 "put_(): self and source expected to have the same dtype, but got self.dtype = "
                 "{2} and source.dtype = {1}")},
        .nondeterministic = "put_",
        .is_nondeterministic = accumulates}},
      {{"scatter", "scatter_"},
       {.kernel = "cuda_scatter_gather_base_kernel_func",
        .refused = kBoolAndComplexes,
        .reaches_kernel = multiplies,
        .nondeterministic = "scatter_reduce_cuda_kernel",
        .is_nondeterministic = multiplies_tensors}},
      {{"scatter_reduce", "scatter_reduce_"},
       {.kernel = "cuda_scatter_gather_base_kernel_func",
        .refused = kBoolAndComplexes,
        .reaches_kernel = is_not_sum,
        .nondeterministic = "scatter_reduce_cuda_prod_",
        .is_nondeterministic = multiplies_tensors}},
      {{"masked_fill_"},
       {.dtype_rules = {dtype_in(
            1, {Bool}, "masked_fill only supports boolean masks, but got dtype {1}")},
        .device_check = DeviceCheck::Mask}},
      {{"masked_scatter_"},
       {.dtype_rules = {dtype_in(
            1, {Bool},
            "masked_scatter_ only supports boolean masks, but got mask with dtype {1}")}}},
      {{"masked_select"},
       {.dtype_rules = {dtype_in(1, {Bool}, "masked_select: expected BoolTensor for mask")}}},
      {{"where"},
       {.dtype_rules = {dtype_in(
            0, {Bool, Byte},
            "where expected condition to be a boolean tensor, but got a tensor with dtype {1}")}}},
      {{"cat"}, {.check_arguments = check_concatenated_sizes}},
      {{"fill_"}, {.moved_value = 1}},
  };
}

const DeclaredRecords kIndexingRecords(indexing_records());

} // namespace

} // namespace anyrig::virtual_gpu
