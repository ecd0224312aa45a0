#include "dispatch/operand_checks.h"

#include <ATen/Context.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/result_type.h>

#include <optional>
#include <string>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

const at::Tensor* given_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() ? &value.toTensor() : nullptr;
}

std::string insert_dtypes(std::string text, c10::ScalarType first, c10::ScalarType second) {
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
    case RefusalError::Type:
      TORCH_CHECK_TYPE(false, text);
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
  const bool fits =
      rule.dtypes.empty() ? dtype == other->scalar_type() : rule.dtypes.contains(dtype);
  if (!fits) {
    raise_with(rule.error, insert_dtypes(rule.text, dtype, other->scalar_type()));
  }
}

std::optional<c10::ScalarType> promoted_dtype(Arguments arguments) {
  const auto& first = arguments[0];
  const auto& second = arguments[1];
  if (first.isTensor() && second.isTensor()) {
    return at::result_type(first.toTensor(), second.toTensor());
  }
  if (first.isTensor() && second.isScalar()) {
    return at::result_type(first.toTensor(), second.toScalar());
  }
  if (first.isScalar() && second.isTensor()) {
    return at::result_type(first.toScalar(), second.toTensor());
  }
  return std::nullopt;
}

void check_kernel_supports(const char* kernel, DtypeSet refused, c10::ScalarType dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !refused.contains(dtype), '"', kernel, "\" not implemented for '", c10::toString(dtype), "'");
}

} // namespace

void check_not_refused(const OperatorRecord& record, c10::ScalarType dtype, Arguments arguments) {
  if (record.reaches_kernel == nullptr || record.reaches_kernel(arguments)) {
    check_kernel_supports(record.kernel, record.refused, dtype);
  }
}

void check_promoted(const char* kernel, DtypeSet dtypes, Arguments arguments) {
  if (const auto dtype = promoted_dtype(arguments)) {
    check_kernel_supports(kernel, dtypes, *dtype);
  }
}

void check_dimension(Arguments arguments) {
  c10::maybe_wrap_dim(arguments[1].toInt(), arguments[0].toTensor().dim());
}

void check_operands(const OperatorRecord& record, Arguments arguments) {
  for (const auto& rule : record.dtype_rules) {
    check_dtype_rule(rule, arguments);
  }
  if (!record.refused_promoted.empty()) {
    check_promoted(record.kernel, record.refused_promoted, arguments);
  }
  if (record.check_arguments != nullptr) {
    record.check_arguments(arguments);
  }
}

void check_deterministic(const OperatorRecord& record, Arguments arguments) {
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() &&
      (record.is_nondeterministic == nullptr || record.is_nondeterministic(arguments))) {
    context.alertNotDeterministic(record.nondeterministic);
  }
}

} // namespace anyrig::virtual_gpu
