// Which operators reduce, over which dimensions and in which dtypes: ATen/native/ReduceOps.cpp, and
// Reduce{SumProd,Moment,Norm,Logic,MinValues,MaxValues,ArgMax,AMinMax}Kernel.cu in
// aten/src/ATen/native/cuda.
#include "temporaries/reduction.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// Returns the argument called `name`; null if the operator has none.
const c10::IValue* argument_called(
    const c10::FunctionSchema& schema,
    Arguments arguments,
    const char* name) {
  const auto place = schema.argumentIndexWithName(name);
  return place.has_value() ? &arguments[*place] : nullptr;
}

c10::DimVector dims_of(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto* dims = argument_called(schema, arguments, "dim");
  if (dims == nullptr || dims->isNone()) {
    return {};
  }
  return dims->isInt() ? c10::DimVector{dims->toInt()} : dims->toDimVector();
}

std::optional<at::ScalarType> dtype_of(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto* dtype = argument_called(schema, arguments, "dtype");
  return dtype == nullptr ? std::nullopt : dtype->toOptional<at::ScalarType>();
}

bool is_narrow_float(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

// A reduction whose result has the dtype argument, or, if `widens`, int64 for integers.
template <bool kWidens>
Temporaries of_sum(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  const at::ScalarType own = self.scalar_type();
  const bool is_integral = at::isIntegralType(own, /*includeBool=*/true);
  const at::ScalarType result =
      dtype_of(schema, arguments).value_or(kWidens && is_integral ? at::kLong : own);
  // Narrow floats are converted to float32 within the kernel.
  const bool in_kernel = is_narrow_float(own) && result == at::kFloat;
  return reduction_temporaries(
      {}, self, dims_of(schema, arguments), in_kernel ? own : result, result,
      self.device().index());
}

template <Accumulator kAccumulator, int kResults>
Temporaries of_values(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  const at::ScalarType dtype = self.scalar_type();
  return reduction_temporaries(
      {kAccumulator, kResults}, self, dims_of(schema, arguments), dtype, dtype,
      self.device().index());
}

Temporaries of_position(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  return reduction_temporaries(
      {Accumulator::ValueAndIndex, 1}, self, dims_of(schema, arguments), self.scalar_type(),
      at::kLong, self.device().index());
}

// With a dimension: values and positions. Without: the value alone. With another tensor: no
// reduction.
Temporaries of_extreme(const c10::FunctionSchema& schema, Arguments arguments) {
  if (schema.argumentIndexWithName("other").has_value()) {
    return {};
  }
  return schema.argumentIndexWithName("dim").has_value()
      ? of_values<Accumulator::ValueAndIndex, 2>(schema, arguments)
      : of_values<Accumulator::Value, 1>(schema, arguments);
}

Temporaries of_truth(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  const at::ScalarType result = self.scalar_type() == at::kByte ? at::kByte : at::kBool;
  return reduction_temporaries(
      {Accumulator::Value, 1}, self, dims_of(schema, arguments), self.scalar_type(), result,
      self.device().index());
}

} // namespace

TemporariesOf reduction_temporaries_of(const std::string& name) {
  static const std::unordered_map<std::string, TemporariesOf> functions = {
      {"sum", &of_sum<true>},
      {"nansum", &of_sum<true>},
      {"prod", &of_sum<true>},
      {"mean", &of_sum<false>},
      {"linalg_vector_norm", &of_sum<false>},
      {"norm", &of_sum<false>},
      {"std", &of_values<Accumulator::Moments, 1>},
      {"var", &of_values<Accumulator::Moments, 1>},
      {"std_mean", &of_values<Accumulator::Moments, 2>},
      {"var_mean", &of_values<Accumulator::Moments, 2>},
      {"amax", &of_values<Accumulator::Value, 1>},
      {"amin", &of_values<Accumulator::Value, 1>},
      {"aminmax", &of_values<Accumulator::TwoValues, 2>},
      {"argmax", &of_position},
      {"argmin", &of_position},
      {"all", &of_truth},
      {"any", &of_truth},
      {"max", &of_extreme},
      {"min", &of_extreme},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
