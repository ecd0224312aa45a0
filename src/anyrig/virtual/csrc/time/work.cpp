#include "time/work.h"

#include <ATen/Context.h>

#include <unordered_map>
#include <unordered_set>

namespace anyrig::virtual_gpu {
namespace {

// Argument positions of aten::convolution and aten::convolution_backward.
constexpr size_t kTransposed = 6;
constexpr size_t kTransposedOfBackward = 7;
constexpr size_t kOutputMask = 10;

double element_count(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

// Returns the FLOPs per element of a convolution's result, or of a transposed convolution's input.
double flops_per_element(const at::Tensor& weight) {
  const auto outputs = static_cast<double>(weight.size(0));
  return outputs == 0 ? 0 : 2.0 * element_count(weight) / outputs;
}

Count product(const at::Tensor& a, const at::Tensor& b, double groups = 1) {
  double operands = element_count(a);
  if (a.dim() == 2 && b.dim() == 2 && a.size(1) != b.size(0)) {
    // A 2:4 sparse matrix stores half of its elements, and the GPU skips the others.
    operands = 0.5 * static_cast<double>(a.size(0)) * static_cast<double>(b.size(0));
  }
  const double flops = 2.0 * operands * static_cast<double>(b.size(-1)) / groups;
  return {{flops, DenseKind::Product, precision_of(a.scalar_type(), DenseKind::Product)}};
}

// Returns the operand at `i`, or the next argument if argument `i` is the metadata of a 2:4 sparse
// matrix, which precedes the other operand.
const at::Tensor& other_operand(c10::ArrayRef<c10::IValue> arguments, size_t i) {
  const auto& tensor = arguments[i].toTensor();
  const auto dtype = tensor.scalar_type();
  const bool is_metadata = (dtype == at::kShort || dtype == at::kInt) && i + 1 < arguments.size() &&
      arguments[i + 1].isTensor();
  return is_metadata ? arguments[i + 1].toTensor() : tensor;
}

// When one operand of a grouped product is 2-D and divided into groups, each matrix of the 3-D
// operand is multiplied by one group.
Count grouped_product(const at::Tensor& a, const at::Tensor& b) {
  const bool cuts_b = a.dim() == 3 && b.dim() == 2 && a.size(0) > 0;
  return product(a, b, cuts_b ? static_cast<double>(a.size(0)) : 1);
}

Count convolution(const at::Tensor& input, const at::Tensor& weight, bool transposed) {
  const auto precision = precision_of(input.scalar_type(), DenseKind::Convolution);
  const double each = flops_per_element(weight);
  if (transposed) {
    return {{each * element_count(input), DenseKind::Convolution, precision}};
  }
  return {{0, DenseKind::Convolution, precision}, each};
}

Count convolution_backward(c10::ArrayRef<c10::IValue> arguments) {
  const auto& gradient = arguments[0].toTensor();
  const auto& input = arguments[1].toTensor();
  const auto& weight = arguments[2].toTensor();
  const auto mask = arguments[kOutputMask].toBoolList();
  const bool transposed = arguments[kTransposedOfBackward].toBool();
  // The gradients with respect to the input and to the weight each cost as much as the forward
  // pass.
  const double parts = static_cast<double>(mask.get(0)) + static_cast<double>(mask.get(1));
  const double forward = flops_per_element(weight) * element_count(transposed ? input : gradient);
  return {{parts * forward, DenseKind::Convolution,
           precision_of(input.scalar_type(), DenseKind::Convolution)}};
}

bool allows_tf32(DenseKind kind) {
  const auto op = kind == DenseKind::Convolution ? at::Float32Op::CONV : at::Float32Op::MATMUL;
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) ==
      at::Float32Precision::TF32;
}

} // namespace

Formula formula_of(const std::string& name) {
  static const std::unordered_map<std::string, Formula> formulas = {
      {"mm", Formula::Product},
      {"bmm", Formula::Product},
      {"_int_mm", Formula::Product},
      {"_scaled_mm", Formula::Product},
      {"_scaled_mm_v2", Formula::Product},
      {"_cslt_sparse_mm", Formula::Product},
      {"_sparse_semi_structured_mm", Formula::Product},
      {"_sparse_semi_structured_addmm", Formula::ProductAndSum},
      {"addmm", Formula::ProductAndSum},
      {"addmm_", Formula::ProductAndSum},
      {"addbmm", Formula::ProductAndSum},
      {"addbmm_", Formula::ProductAndSum},
      {"baddbmm", Formula::ProductAndSum},
      {"baddbmm_", Formula::ProductAndSum},
      {"_addmm_activation", Formula::ProductAndSum},
      {"_grouped_mm", Formula::GroupedProduct},
      {"_scaled_grouped_mm", Formula::GroupedProduct},
      {"_scaled_grouped_mm_v2", Formula::GroupedProduct},
      {"convolution", Formula::Convolution},
      {"convolution_overrideable", Formula::Convolution},
      {"cudnn_convolution", Formula::PlainConvolution},
      {"cudnn_convolution_relu", Formula::PlainConvolution},
      {"cudnn_convolution_add_relu", Formula::PlainConvolution},
      {"_slow_conv2d_forward", Formula::PlainConvolution},
      {"_conv_depthwise2d", Formula::PlainConvolution},
      {"conv_depthwise3d", Formula::PlainConvolution},
      {"slow_conv_dilated2d", Formula::PlainConvolution},
      {"slow_conv_dilated3d", Formula::PlainConvolution},
      {"cudnn_convolution_transpose", Formula::TransposedConvolution},
      {"slow_conv_transpose2d", Formula::TransposedConvolution},
      {"slow_conv_transpose3d", Formula::TransposedConvolution},
      {"convolution_backward", Formula::ConvolutionBackward},
  };
  const auto found = formulas.find(name);
  return found == formulas.end() ? Formula::None : found->second;
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
      {"resize_", Traffic::Free},
      {"resize_as_", Traffic::Free},
  };
  const auto found = traffic.find(name);
  return found == traffic.end() ? Traffic::All : found->second;
}

int unread_argument_of(const std::string& name) {
  static const std::unordered_set<std::string> second = {
      "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "avg_pool2d_backward",
      "avg_pool3d_backward", "max_pool2d_with_indices_backward",
      "max_pool3d_with_indices_backward", "nll_loss_backward", "nll_loss2d_backward"};
  return second.count(name) > 0 ? 1 : -1;
}

bool overwrites(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "_foreach_copy_", "_foreach_zero_", "fill_", "zero_"};
  return names.count(name) > 0;
}

Count count(Formula formula, c10::ArrayRef<c10::IValue> arguments) {
  switch (formula) {
    case Formula::None:
      return {};
    case Formula::Product:
      return product(arguments[0].toTensor(), other_operand(arguments, 1));
    case Formula::ProductAndSum:
      return product(arguments[1].toTensor(), other_operand(arguments, 2));
    case Formula::GroupedProduct:
      return grouped_product(arguments[0].toTensor(), arguments[1].toTensor());
    case Formula::Convolution:
      return convolution(
          arguments[0].toTensor(), arguments[1].toTensor(), arguments[kTransposed].toBool());
    case Formula::PlainConvolution:
      return convolution(arguments[0].toTensor(), arguments[1].toTensor(), false);
    case Formula::TransposedConvolution:
      return convolution(arguments[0].toTensor(), arguments[1].toTensor(), true);
    case Formula::ConvolutionBackward:
      return convolution_backward(arguments);
  }
  return {};
}

Precision precision_of(at::ScalarType dtype, DenseKind kind) {
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
      return allows_tf32(kind) ? Precision::Tfloat32 : Precision::Float32;
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

} // namespace anyrig::virtual_gpu
