#include "dispatch/operand_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
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

void refuse_with(RefusalError error, const std::string& text) {
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
    refuse_with(rule.error, with_dtypes(rule.text, dtype, other->scalar_type()));
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

// index_put_(self, indices, values, accumulate): one number is filled in, of whatever dtype.
void check_values(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& values = arguments[2].toTensor();
  TORCH_CHECK(
      self.scalar_type() == values.scalar_type() || values.numel() == 1,
      "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
      " for the destination and ", values.scalar_type(), " for the source.");
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
// check_shape_forward of aten/src/ATen/native/Convolution.cpp
void check_convolution(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  const auto* bias = given_tensor(arguments[2]);
  const bool transposed = arguments[6].toBool();
  if (input.dim() != weight.dim() || input.dim() < 3) {
    return; // refused by all
  }
  TORCH_CHECK(
      !transposed || input.size(1) == weight.size(0),
      "Given transposed=", transposed, ", weight of size ", weight.sizes(), ", expected input",
      input.sizes(), " to have ", weight.size(0), " channels, but got ", input.size(1),
      " channels instead");
  const int64_t outputs = transposed ? weight.size(1) * arguments[8].toInt() : weight.size(0);
  TORCH_CHECK(
      bias == nullptr || (bias->dim() == 1 && bias->size(0) == outputs),
      "Given ", transposed ? "transposed=1, " : "", "weight of size ", weight.sizes(),
      ", expected bias to be 1-dimensional with ", outputs, " elements, but got bias of size ",
      bias->sizes(), " instead");
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
        "(source) {1}"}}};
  static const OperandRules kSumOfProduct = {
      {{0, {}, 2, "self and mat2 must have the same dtype, but got {1} and {2}"},
       {1, {}, 2, "mat1 and mat2 must have the same dtype, but got {1} and {2}"}}};
  static const OperandRules kFloats = {{{0, kInexact, 0, kNoStatistics}}};
  static const OperandRules kComplex = {
      {{1, {}, 0,
        "Expected object of scalar type {2} but got scalar type {1} for second argument"}}};
  static const OperandRules kSecondLikeFirst = {{{1, {}, 0, kFound}}};
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
      {"_softmax", kDimension},
      {"_log_softmax", kDimension},
      {"native_layer_norm", {{{2, {}, 0, kFound}, {3, {}, 0, kFound}}}},
      {"native_group_norm", {{{1, {}, 0, kFound}, {2, {}, 0, kFound}}}},
      {"mm",
       {{{1, {}, 0,
          "expected mat1 and mat2 to have the same dtype, but got: {type 2} != {type 1}"}}}},
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
      {"put_", {{{1, {Long}, 0, "put_(): Expected a long tensor for index, but got {1}"}}}},
      {"masked_fill_",
       {{{1, {Bool}, 0, "masked_fill only supports boolean masks, but got dtype {1}"}}}},
      {"var", kFloats},
      {"std", kFloats},
      {"var_mean", kFloats},
      {"std_mean", kFloats},
      {"complex", kComplex},
      {"polar", kComplex},
      {"grid_sampler_2d", kSecondLikeFirst},
      {"grid_sampler_3d", kSecondLikeFirst},
      {"_cdist_forward", kSecondLikeFirst},
  };
  return rules;
}

} // namespace

const OperandRules* rules_of(const std::string& name, const std::string& overload) {
  if (overload.rfind("dtype", 0) == 0) {
    return nullptr; // products with another dtype for their result
  }
  const auto found = all_rules().find(name);
  return found == all_rules().end() ? nullptr : &found->second;
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
