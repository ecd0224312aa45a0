#include "dispatch/operator_plan.h"

#include "dispatch/integer_division.h"

#include <string_view>
#include <unordered_set>

namespace anyrig::virtual_gpu {
namespace {

bool starts_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

constexpr std::string_view kPyTorch = "aten::";

// Returns the name of an operator in the tables. The tables list PyTorch's operators without a
// namespace; an operator of another library keeps its namespace and so matches no entry.
std::string name_in_tables(const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  if (starts_with(name, kPyTorch)) {
    name = name.substr(kPyTorch.size());
  }
  // _convolution has the arguments of convolution and four more.
  return name == "_convolution" ? "convolution" : name;
}

// Builds the name of a generated wrapper as torchgen/dest/register_dispatch_key.py does.
std::string wrapper_name_of(const c10::FunctionSchema& schema, bool structured, bool is_out) {
  const std::string name = schema.name().substr(schema.name().find("::") + 2);
  const std::string& overload = schema.overload_name();
  if (!structured) {
    return "wrapper_CUDA_" + overload + "_" + name;
  }
  return "wrapper_CUDA_" + name + (is_out ? "_out" : "") +
      (overload.empty() ? "" : "_" + overload);
}

bool uses_cublas(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::baddbmm_",
      "aten::_addmm_activation", "aten::addmv", "aten::addmv_", "aten::dot", "aten::vdot",
      "aten::addbmm", "aten::addbmm_", "aten::_int_mm", "aten::_scaled_mm",
      "aten::_scaled_mm_v2",
  };
  return names.count(name) > 0;
}

bool indexes(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::index", "aten::_unsafe_index", "aten::index_put_", "aten::_index_put_impl_"};
  return names.count(name) > 0;
}

bool is_out_argument(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() != nullptr &&
      argument.alias_info()->isWrite();
}

// Batch normalization updates these in place although its schema does not append so.
bool is_running_statistic(const std::string& name) {
  return name == "running_mean" || name == "running_var";
}

// Returns the index of the argument that a return aliases and writes to, or -1.
int argument_of_return(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) {
    return -1;
  }
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && *alias == *result.alias_info()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

} // namespace

OperatorPlan::OperatorPlan(const c10::FunctionSchema& schema, const OperatorFacts& facts)
    : work(name_in_tables(schema), schema) {
  const auto& declared = schema.arguments();
  const std::string name = name_in_tables(schema);
  const int unread = unread_argument_of(name);
  bool is_out = false;
  for (size_t i = 0; i < declared.size(); ++i) {
    const auto& argument = declared[i];
    if (argument.real_type()->str().find("Generator") != std::string::npos) {
      generators.push_back(static_cast<int>(i));
    }
    if (argument.real_type()->str() == "Tensor?[]") {
      optional_lists.push_back(static_cast<int>(i));
      takes_optional_lists = true;
    }
    const bool is_written =
        (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
        is_running_statistic(argument.name());
    const bool is_read = static_cast<int>(i) != unread && !is_out_argument(argument) &&
        !(is_written && overwrites(name));
    arguments.push_back({is_written, is_read});
    if (is_out_argument(argument)) {
      is_out = true;
      check_order.push_back(static_cast<int>(i));
    }
  }
  for (size_t i = 0; i < declared.size(); ++i) {
    if (!declared[i].kwarg_only()) {
      check_order.push_back(static_cast<int>(i));
    }
  }
  for (const auto& result : schema.returns()) {
    returned_argument.push_back(argument_of_return(schema, result));
    makes_tensors |= returned_argument.back() < 0;
  }
  if (indexes(schema.name())) {
    check = DeviceCheck::Indices;
  } else if (name == "convolution") {
    check = DeviceCheck::Convolution;
  } else if (!facts.checks_devices && starts_with(schema.name(), "aten::_foreach_")) {
    check = DeviceCheck::Foreach;
  } else if (
      !facts.checks_devices &&
      (starts_with(schema.name(), "aten::_nested_") || starts_with(schema.name(), "aten::_use_"))) {
    check = DeviceCheck::Nothing;
  } else if (!facts.checks_devices) {
    check = DeviceCheck::Iterator;
  }
  wrapper_name = wrapper_name_of(schema, facts.structured, is_out);
  if (check == DeviceCheck::Convolution) {
        wrapper_name = "wrapper_CUDA__cudnn_convolution"; // the wrapper that PyTorch's kernel calls
  }
  uses_cublas = virtual_gpu::uses_cublas(schema.name());
  widened = dtypes_to_widen(name);
  refusal = refusal_of(name);
  rules = rules_of(name, schema.overload_name());
  check_limits = limits_of(name);
  nondeterminism = nondeterminism_of(name);
  const auto& overload = schema.overload_name();
  const std::string full_name = overload.empty() ? name : name + "." + overload;
  choose_layout = choose_layout_of(full_name);
  missing_meta = missing_meta_of(full_name);
  divides_integers = virtual_gpu::divides_integers(schema);
  raises_versions = starts_with(name, "_foreach_");
}

} // namespace anyrig::virtual_gpu
