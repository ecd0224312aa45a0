// More than 400 lines: one table of the rules of each operator, and the checks that only the table
// refers to.
#include "dispatch/operand_rules.h"

#include "dispatch/promoted_dtype_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

using DtypeList = std::vector<c10::ScalarType>;

const at::Tensor* given_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() ? &value.toTensor() : nullptr;
}

std::string with_dtypes(std::string text, c10::ScalarType first, c10::ScalarType second) {
  const auto type_name = [](c10::ScalarType dtype) {
    return std::string(c10::scalarTypeToTypeMeta(dtype).name());
  };
  const std::pair<std::string, std::string> names[] = {
      {"{1}", c10::toString(first)},
      {"{2}", c10::toString(second)},
      {"{type 1}", type_name(first)},
      {"{type 2}", type_name(second)},
  };
  for (const auto& [mark, name] : names) {
    for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark)) {
      text.replace(at, mark.size(), name);
    }
  }
  return text;
}

void raise_with(RefusalError error, const std::string& text) {
  switch (error) {
    case RefusalError::Runtime:
      TORCH_CHECK(false, text);
    case RefusalError::Index:
      TORCH_CHECK_INDEX(false, text);
    case RefusalError::NotImplemented:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
  }
}

void check_dtype_rule(const DtypeRule& rule, Arguments arguments) {
  const auto* tensor = given_tensor(arguments[rule.argument]);
  const auto* other = given_tensor(arguments[rule.other]);
  if (tensor == nullptr || other == nullptr) {
    return;
  }
  const auto dtype = tensor->scalar_type();
  const auto& dtypes = rule.dtypes;
  const bool fits = dtypes.empty()
      ? dtype == other->scalar_type()
      : std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
  if (!fits) {
    raise_with(rule.error, with_dtypes(rule.text, dtype, other->scalar_type()));
  }
}

// _softmax(self, dim, half_to_float)
void check_dimension(Arguments arguments) {
  c10::maybe_wrap_dim(arguments[1].toInt(), arguments[0].toTensor().dim());
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

// CUDA's slow_conv_transpose2d and slow_conv_transpose3d, which run where cuDNN does not.
void check_output_padding(Arguments arguments) {
  auto stride = arguments[3].toIntVector();
  auto dilation = arguments[5].toIntVector();
  auto padding = arguments[7].toIntVector();
  const size_t dimensions = static_cast<size_t>(arguments[0].toTensor().dim()) - 2;
  const auto spread = [&](std::vector<int64_t>& numbers, int64_t for_height) {
    numbers.resize(dimensions, numbers.empty() ? for_height : numbers[0]);
    if (dimensions == 1) {
            numbers.insert(numbers.begin(), for_height); // 1d is computed as an image of height 1
    }
  };
  spread(stride, 1);
  spread(dilation, 1);
  spread(padding, 0);
  bool fits = true;
  for (size_t i = 0; i < padding.size(); ++i) {
    fits = fits && (padding[i] < stride[i] || padding[i] < dilation[i]);
  }
  if (fits) {
    return;
  }
  static const char* const kNames[] = {"depth", "height", "width"};
  std::string text = "output padding must be smaller than either stride or dilation, but got";
  const auto append = [&](const char* what, const std::vector<int64_t>& numbers) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      text += c10::str(' ', what, '_', kNames[3 - numbers.size() + i], ": ", numbers[i]);
    }
  };
  append("output_padding", padding);
  append("stride", stride);
  append("dilation", dilation);
  TORCH_CHECK(false, text);
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
// check_shape_forward of aten/src/ATen/native/Convolution.cpp
void check_convolution(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  const auto* bias = given_tensor(arguments[2]);
  const bool transposed = arguments[6].toBool();
  const int64_t groups = arguments[8].toInt();
  if (input.dim() != weight.dim() || input.dim() < 3) {
        return; // every backend refuses it
  }
  const auto none_below = [&arguments](size_t i, int64_t least) {
    const auto numbers = arguments[i].toIntVector();
    return std::all_of(
        numbers.begin(), numbers.end(), [least](int64_t number) { return number >= least; });
  };
  TORCH_CHECK(none_below(4, 0), "negative padding is not supported");
  TORCH_CHECK(none_below(7, 0), "negative output_padding is not supported");
  TORCH_CHECK(none_below(3, 1), "non-positive stride is not supported");
  TORCH_CHECK(none_below(5, 1), "dilation should be greater than zero");
  TORCH_CHECK(groups > 0, "non-positive groups is not supported");
  TORCH_CHECK(
      weight.size(0) >= groups, "Given groups=", groups, ", expected weight to be at least ",
      groups, " at dimension 0, but got weight of size ", weight.sizes(), " instead");
  TORCH_CHECK(
      weight.size(0) % groups == 0, "Given groups=", groups, ", expected weight to be divisible by ",
      groups, " at dimension 0, but got weight of size [", weight.sizes(), "] instead");
  TORCH_CHECK(
      transposed || input.size(1) == weight.size(1) * groups, "Given groups=", groups,
      ", weight of size ", weight.sizes(), ", expected input", input.sizes(), " to have ",
      weight.size(1) * groups, " channels, but got ", input.size(1), " channels instead");
  TORCH_CHECK(
      !transposed || input.size(1) == weight.size(0),
      "Given transposed=", transposed, ", weight of size ", weight.sizes(), ", expected input",
      input.sizes(), " to have ", weight.size(0), " channels, but got ", input.size(1),
      " channels instead");
  const int64_t outputs = transposed ? weight.size(1) * groups : weight.size(0);
  TORCH_CHECK(
      bias == nullptr || (bias->dim() == 1 && bias->size(0) == outputs),
      "Given ", transposed ? "transposed=1, " : "", "weight of size ", weight.sizes(),
      ", expected bias to be 1-dimensional with ", outputs, " elements, but got bias of size ",
      bias->sizes(), " instead");
  if (transposed) {
    check_output_padding(arguments);
  }
}

void check_product(Arguments arguments) {
  const at::Tensor& first = arguments[0].toTensor();
  const at::Tensor& second = arguments[1].toTensor();
  TORCH_CHECK(
      first.dim() != 2 || second.dim() != 2 || first.size(1) == second.size(0),
      "mat1 and mat2 shapes cannot be multiplied (", first.size(0), "x", first.size(1), " and ",
      second.size(0), "x", second.size(1), ")");
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
      "shape: ", c10::Join(" ", slice), " at dimension ", along, " and source slice shape: ",
      c10::Join(" ", source_slice), " at dimension 0.");
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

// clamp(self, min, max)
void check_has_bound(Arguments arguments) {
  TORCH_CHECK(
      !arguments[1].isNone() || !arguments[2].isNone(),
      "torch.clamp: At least one of 'min' or 'max' must not be None");
}

// smooth_l1_loss(self, target, reduction, beta)
void check_beta(Arguments arguments) {
  TORCH_CHECK(
      arguments[3].toDouble() >= 0, "smooth_l1_loss does not support negative values for beta.");
}

// bucketize(self, boundaries)
void check_boundaries(Arguments arguments) {
  const int64_t dimensions = arguments[1].toTensor().dim();
  TORCH_CHECK(
      dimensions == 1, "boundaries tensor must be 1 dimension, but got dim(", dimensions, ")");
}

// linalg_lstsq(self, b)
void check_is_matrix(Arguments arguments) {
  TORCH_CHECK(
      arguments[0].toTensor().dim() >= 2,
      "torch.linalg.lstsq: input must have at least 2 dimensions.");
}

const std::unordered_map<std::string, OperandRules>& all_rules() {
  using enum c10::ScalarType;
  static const DtypeList kIndices = {Int, Long};
  static const DtypeList kInexact = {Half, BFloat16, Float, Double, ComplexHalf, ComplexFloat,
                                  ComplexDouble};
  static const char* const kFound = "expected scalar type {2} but found {1}";
  static const char* const kNoStatistics =
      "std and var only support floating point and complex dtypes";
  static const OperandRules kIndexAdd = {
      {{2, kIndices, 0, "index_add_(): Expected dtype int32/int64 for index but got: {1}"},
       {3, {}, 0, "index_add_(): self ({2}) and source ({1}) must have the same scalar type"}}};
  static const OperandRules kIndexCopy = {
      {{2, {Long}, 0, "index_copy_(): Expected a long tensor for index, but got {1}"},
       {3, {}, 0,
        "index_copy_(): self and source expected to have the same dtype, but got (self) {2} and "
        "(source) {1}"}},
      check_copied_slices};
  static const OperandRules kSumOfProduct = {
      {{0, {}, 2, "self and mat2 must have the same dtype, but got {1} and {2}"},
       {1, {}, 2, "mat1 and mat2 must have the same dtype, but got {1} and {2}"}}};
  static const OperandRules kFloats = {{{0, kInexact, 0, kNoStatistics}}};
  static const OperandRules kComplex = {
      {{1, {}, 0,
        "Expected object of scalar type {2} but got scalar type {1} for second argument"}}};
  static const OperandRules kSecondLikeFirst = {{{1, {}, 0, kFound}}};
  static const DtypeList kReal = {Bool, Byte, Char, Short, Int, Long, Half, BFloat16, Float, Double};
  static const DtypeList kNotBool = {Byte, Char, Short, Int, Long, Half, BFloat16, Float, Double,
                                  ComplexHalf, ComplexFloat, ComplexDouble};
  static const auto no_complex = [](const char* text, RefusalError error = RefusalError::Runtime) {
    return OperandRules{{{0, kReal, 0, text, error}}};
  };
  static const OperandRules kNoOrder = 
      no_complex("Sort currently does not support complex dtypes on CUDA.");
  static const OperandRules kClamp =
      no_complex("clamp is not supported for complex types", RefusalError::NotImplemented);
  static const OperandRules kMedian = no_complex(
      "\"median_out_impl\" not implemented for '{1}'", RefusalError::NotImplemented);
  static const OperandRules kHasEigenvalues = {
      {{0, kInexact, 0, "Unknown Complex ScalarType for {1}"}}};
  static const OperandRules kDimension = {{}, check_dimension};
  static const std::unordered_map<std::string, OperandRules> rules = {
      {"nll_loss_forward",
       {{{1, {Long, Byte}, 0,
          "\"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for '{1}'",
          RefusalError::NotImplemented},
         {2, {}, 0, kFound}}}},
      {"nll_loss2d_forward",
       {{{1, {Long, Byte}, 0, "expected scalar type Long but found {1}"}, {2, {}, 0, kFound}}}},
      {"binary_cross_entropy", {{{1, {}, 0, "Found dtype {1} but expected {2}"}}}},
      {"bucketize", {{}, check_boundaries}},
      {"linalg_lstsq", {{}, check_is_matrix}},
      {"linalg_eig", kHasEigenvalues},
      {"_linalg_eigvals", kHasEigenvalues},
      {"masked_scatter_",
       {{{1, {Bool}, 0, "masked_scatter_ only supports boolean masks, but got mask with dtype {1}"}}}},
      {"_logcumsumexp", kDimension},
      {"_softmax", kDimension},
      {"_log_softmax", kDimension},
      {"native_layer_norm", {{{2, {}, 0, kFound}, {3, {}, 0, kFound}}}},
      {"native_group_norm", {{{1, {}, 0, kFound}, {2, {}, 0, kFound}}}},
      {"mm",
       {{{1, {}, 0,
          "expected mat1 and mat2 to have the same dtype, but got: {type 2} != {type 1}"}},
        check_product}},
      {"cat", {{}, check_concatenated_sizes}},
      {"where",
       {{{0, {Bool, Byte}, 0,
          "where expected condition to be a boolean tensor, but got a tensor with dtype {1}"}}}},
      {"smooth_l1_loss", {{}, check_beta}},
      {"masked_select", {{{1, {Bool}, 0, "masked_select: expected BoolTensor for mask"}}}},
      {"addmm", kSumOfProduct},
      {"addmm_", kSumOfProduct},
      {"_addmm_activation", kSumOfProduct},
      {"convolution", {{}, check_convolution}},
      {"index", {{}, check_indices}},
      {"_index_put_impl_", {{}, check_values}},
      {"index_select",
       {{{2, kIndices, 0, "index_select(): Expected dtype int32 or int64 for index"}},
        check_is_vector}},
      {"index_add", kIndexAdd},
      {"index_add_", kIndexAdd},
      {"index_copy", kIndexCopy},
      {"index_copy_", kIndexCopy},
      {"index_fill_",
       {{{2, {Long}, 0, "index_fill_(): Expected dtype int64 for index.", RefusalError::Index}}}},
      {"put_",
       {{{1, {Long}, 0, "put_(): Expected a long tensor for index, but got {1}"},
         {2, {}, 0,
          "put_(): self and source expected to have the same dtype, but got self.dtype = {2} and "
          "source.dtype = {1}"}}}},
      {"masked_fill_",
       {{{1, {Bool}, 0, "masked_fill only supports boolean masks, but got dtype {1}"}}}},
      {"var", kFloats},
      {"std", kFloats},
      {"var_mean", kFloats},
      {"std_mean", kFloats},
      {"complex", kComplex},
      {"polar", kComplex},
      {"clamp", {kClamp.dtypes, check_has_bound}},
      {"hardtanh", kClamp},
      {"clamp_min", kClamp},
      {"clamp_max", kClamp},
      {"floor", no_complex("floor is not supported for complex inputs", RefusalError::NotImplemented)},
      {"ceil", no_complex("ceil is not supported for complex inputs", RefusalError::NotImplemented)},
      {"trunc", no_complex("trunc is not supported for complex inputs", RefusalError::NotImplemented)},
      {"sign",
       no_complex(
           "Unlike NumPy, torch.sign is not intended to support complex numbers. Please use "
           "torch.sgn instead.",
           RefusalError::NotImplemented)},
      {"signbit",
       no_complex("signbit is not implemented for complex tensors.", RefusalError::NotImplemented)},
      {"maximum", no_complex("maximum not implemented for complex tensors.")},
      {"minimum", no_complex("minimum not implemented for complex tensors.")},
      {"fmax", no_complex("fmax not implemented for complex tensors.")},
      {"fmin", no_complex("fmin not implemented for complex tensors.")},
      {"heaviside", no_complex("heaviside is not yet implemented for complex tensors.")},
      {"argmax",
       {{{0, kNotBool, 0, "argmax(): does not support bool input"},
         {0, kReal, 0, "argmax(): does not support complex input"}}}},
      {"argmin",
       {{{0, kNotBool, 0, "argmin(): does not support bool input"},
         {0, kReal, 0, "argmin(): does not support complex input"}}}},
      {"sort", kNoOrder},
      {"max", no_complex("max(): does not support complex input")},
      {"min", no_complex("min(): does not support complex input")},
      {"median", kMedian},
      {"nanmedian", kMedian},
      {"relu",
       {{kClamp.dtypes[0], {0, kNotBool, 0, "Boolean inputs not supported for relu"}}}},
      {"grid_sampler_2d", kSecondLikeFirst},
      {"grid_sampler_3d", kSecondLikeFirst},
      {"_cdist_forward",
       {{{0, {Half, BFloat16, Float, Double}, 0,
          "cdist only supports floating-point dtypes, X1 got: {1}"},
         {1, {}, 0, kFound}}}},
  };
  return rules;
}

} // namespace

const OperandRules* rules_of(const std::string& name, const std::string& overload) {
  if (overload.rfind("dtype", 0) == 0) {
        return nullptr; // these overloads return another dtype
  }
  const auto found = all_rules().find(name);
  return found == all_rules().end() ? promoted_dtype_rules_of(name) : &found->second;
}

void check_operands(const OperandRules& rules, Arguments arguments) {
  for (const auto& rule : rules.dtypes) {
    check_dtype_rule(rule, arguments);
  }
  if (rules.check != nullptr) {
    rules.check(arguments);
  }
}

} // namespace anyrig::virtual_gpu
