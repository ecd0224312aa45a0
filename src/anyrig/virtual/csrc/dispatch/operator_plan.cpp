#include "dispatch/operator_plan.h"

#include <string_view>

namespace anyrig::virtual_gpu {
namespace {

bool starts_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

// Builds the name of a generated wrapper as torchgen/dest/register_dispatch_key.py does.
std::string wrapper_name_of(const c10::FunctionSchema& schema, bool structured, bool is_out) {
  const std::string name = schema.name().substr(schema.name().find("::") + 2);
  const std::string& overload = schema.overload_name();
  if (!structured) {
    return "wrapper_CUDA_" + overload + "_" + name;
  }
  return "wrapper_CUDA_" + name + (is_out ? "_out" : "") + (overload.empty() ? "" : "_" + overload);
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

DeviceCheck device_check_of(
    const c10::FunctionSchema& schema,
    const OperatorFacts& facts,
    const OperatorRecord& record) {
  if (record.device_check.has_value()) {
    return *record.device_check;
  }
  if (facts.checks_devices) {
    return DeviceCheck::Wrapper;
  }
  const std::string& name = schema.name();
  if (starts_with(name, "aten::_foreach_")) {
    return DeviceCheck::Foreach;
  }
  if (starts_with(name, "aten::_nested_") || starts_with(name, "aten::_use_")) {
    return DeviceCheck::Nothing; // about sizes
  }
  return facts.structured && !facts.is_iterator ? DeviceCheck::Output : DeviceCheck::Iterator;
}

// Returns whether values of a type may be, or hold, a tensor or a device.
bool may_be_operand(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::ComplexType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::GeneratorType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::MemoryFormatType:
      return false;
    case c10::TypeKind::ListType:
    case c10::TypeKind::OptionalType:
      return may_be_operand(*type.containedType(0));
    default:
      return true;
  }
}

DtypeSet widened_dtypes(const OperatorRecord& record, c10::DispatchKey host_key) {
  switch (host_key) {
    case c10::DispatchKey::CPU:
      return record.widened;
    // Most operators on sparse tensors apply the dense kernel to the values.
    case c10::DispatchKey::SparseCPU:
      return record.widened_coordinates.empty() ? record.widened : record.widened_coordinates;
    case c10::DispatchKey::SparseCsrCPU:
      return record.widened_compressed.empty() ? record.widened : record.widened_compressed;
    default:
      return {};
  }
}

} // namespace

std::string recorded_name(const c10::FunctionSchema& schema) {
  constexpr std::string_view kPyTorch = "aten::";
  const std::string& name = schema.name();
  return starts_with(name, kPyTorch) ? name.substr(kPyTorch.size()) : name;
}

namespace {

// Returns the name under which the work and the temporaries of an operator are known.
std::string name_of_work(const c10::FunctionSchema& schema) {
  const std::string name = recorded_name(schema);
  return name == "_convolution" ? "convolution" : name; // has the same arguments and four more
}

} // namespace

OperatorPlan::OperatorPlan(
    const c10::FunctionSchema& schema,
    const OperatorFacts& facts,
    c10::DispatchKey host_key)
    : name(schema.name()),
      work(name_of_work(schema), schema),
      record(&record_of(recorded_name(schema), schema.overload_name())) {
  const auto& declared = schema.arguments();
  const std::string named = name_of_work(schema);
  const int unread = unread_argument_of(named);
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
    const bool is_declared = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const bool is_written = is_declared || is_running_statistic(argument.name());
    const bool is_read = static_cast<int>(i) != unread && !is_out_argument(argument) &&
        !(is_written && overwrites(named));
    if (may_be_operand(*argument.type())) {
      operand_places.push_back(static_cast<int>(i));
    }
    arguments.push_back({is_written, is_read, is_written && !is_declared});
    writes |= is_written;
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
  check = device_check_of(schema, facts, *record);
  wrapper_name = wrapper_name_of(schema, facts.structured, is_out);
  if (check == DeviceCheck::Convolution) {
    wrapper_name = "wrapper_CUDA__cudnn_convolution"; // the wrapper that PyTorch's kernel calls
  }
  uses_cublas = record->uses_cublas;
  temporaries = temporaries_of(named);
  widened = widened_dtypes(*record, host_key);
  refused = record->refused;
  // The overloads `dtype` return another dtype than that of their operands.
  checks_operands = !starts_with(schema.overload_name(), "dtype") &&
      (!record->dtype_rules.empty() || !record->refused_promoted.empty() ||
       record->check_arguments != nullptr);
  check_limits = record->check_limits;
  checks_determinism = record->nondeterministic != nullptr;
  divides_integers = record->divides_integers;
  choose_layout = is_out ? nullptr : record->choose_layout;
  has_missing_meta = !is_out && record->missing_meta.has_value();
  raises_versions = starts_with(named, "_foreach_");
  checks_repeats = named == "repeat_interleave";
  for (const auto& kernel : record->host_kernels) {
    const bool is_for_key = kernel.key == c10::DispatchKey::CUDA
        ? host_key == c10::DispatchKey::CPU
        : kernel.key == c10::DispatchKey::SparseCsrCUDA &&
            host_key == c10::DispatchKey::SparseCsrCPU;
    if (is_for_key && kernel.overload == schema.overload_name()) {
      host_kernel = kernel.function;
      computes_known_values = record->cpu_kernel_agrees;
    }
  }
}

} // namespace anyrig::virtual_gpu
