#include "dispatch/known_values.h"

#include "dispatch/twin.h"

#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// Larger tensors are data, whose values ShapeOnly does not keep. Pickled objects travel as bytes
// and get a larger limit.
constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr size_t kMaxObjectBytes = size_t{64} << 20;
// Calls on more bytes are not computed.
constexpr size_t kMaxComputedBytes = size_t{64} << 10;

struct Extent {
    size_t begin = 0; // byte offsets in the storage
  size_t end = 0;
};

// Returns the range that the elements of a tensor span, including gaps.
Extent extent_of(const at::TensorBase& tensor) {
  const auto size = tensor.element_size();
  const auto begin = static_cast<size_t>(tensor.storage_offset()) * size;
  if (tensor.numel() == 0) {
    return {begin, begin};
  }
  size_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += static_cast<size_t>((tensor.size(dim) - 1) * tensor.stride(dim));
  }
  return {begin, begin + (last + 1) * size};
}

DeviceMemory* memory_of(const at::TensorBase& tensor) {
  const bool plain = tensor.device().type() == kDeviceType && !tensor.is_nested() &&
      tensor.has_storage() && !tensor.is_conj() && !tensor.is_neg();
  return plain ? device_memory(tensor.storage().data_ptr()) : nullptr;
}

at::Tensor share_values(const KnownValues& known, const at::TensorBase& tensor) {
  auto values = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(known.storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = values.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return values;
}

// Returns whether torch.arange with these arguments is short enough to compute.
bool is_short_range(c10::ArrayRef<c10::IValue> arguments) {
  const auto number = [&](size_t i) { return arguments[i].toScalar().toDouble(); };
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (!arguments[i].isScalar() || arguments[i].toScalar().isComplex()) {
      return false;
    }
  }
  const bool has_start = arguments.size() == 4; // start, end, step and the result
  const double length = has_start ? (number(1) - number(0)) / number(2) : number(0);
  return length * static_cast<double>(sizeof(int64_t)) <= static_cast<double>(kMaxComputedBytes);
}

// Returns whether a scatter writes to every position of its first argument, as when it inverts a
// permutation.
bool scatters_everywhere(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto& overload = op.schema().overload_name();
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& index = arguments[2].toTensor();
  if ((overload != "src" && overload != "value") || self.dim() != 1 || index.dim() != 1 ||
      index.scalar_type() != at::kLong || index.nbytes() > kMaxComputedBytes ||
      index.numel() < self.numel()) {
    return false;
  }
  const at::Tensor places = index.is_cpu() ? index : known_values(index);
  if (!places.defined()) {
    return false;
  }
  std::vector<bool> is_written(self.numel());
  const auto* first = places.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < places.numel(); ++i) {
    const int64_t place = first[i * places.stride(0)];
    if (place >= 0 && place < self.numel()) {
      is_written[place] = true;
    }
  }
  return std::all_of(is_written.begin(), is_written.end(), [](bool written) { return written; });
}

// Returns the index of the argument that a call overwrites entirely, whose old values need not be
// known. Of tensors created on the device, only single numbers, short ranges and permutations are
// kept; a larger fill counts as data.
std::optional<size_t> overwritten_argument(
    const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto& name = op.schema().name();
  if (name == "aten::zero_" || name == "aten::fill_") {
    return arguments[0].toTensor().numel() == 1 ? std::optional<size_t>(0) : std::nullopt;
  }
  if (name == "aten::arange" && arguments.back().isTensor() && is_short_range(arguments)) {
    return arguments.size() - 1;
  }
  if (name == "aten::scatter_" && scatters_everywhere(op, arguments)) {
    return 0;
  }
  return std::nullopt;
}

bool makes_views(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool draws_numbers(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return op.hasTag(at::Tag::nondeterministic_seeded) ||
      std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) {
           return argument.name() == "generator";
         });
}

// Replaces a tensor by a CPU tensor of its values and adds its size to `bytes`. Returns false if
// they are unknown or too many. Leaves an undefined tensor (an index that selects all) as it is.
bool put_values(at::Tensor& tensor, size_t& bytes) {
  if (!tensor.defined()) {
    return true;
  }
  bytes += tensor.nbytes();
  if (bytes > kMaxComputedBytes || tensor.layout() != at::kStrided) {
    return false;
  }
  if (!tensor.is_cpu()) {
    tensor = is_virtual(tensor) ? known_values(tensor) : at::Tensor();
  }
  return tensor.defined();
}

// Returns `value` with its tensors replaced by their known values; none if any value is unknown.
std::optional<c10::IValue> known_argument(const c10::IValue& value, size_t& bytes) {
  if (value.isTensor()) {
    at::Tensor tensor = value.toTensor();
    return put_values(tensor, bytes) ? std::optional<c10::IValue>(tensor) : std::nullopt;
  }
  if (value.isTensorList()) {
    std::vector<at::Tensor> list = value.toTensorVector();
    for (at::Tensor& tensor : list) {
      if (!put_values(tensor, bytes)) {
        return std::nullopt;
      }
    }
    return c10::IValue(std::move(list));
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorVector()) {
      if (tensor.has_value() && !put_values(*tensor, bytes)) {
        return std::nullopt;
      }
      list.push_back(std::move(tensor));
    }
    return c10::IValue(std::move(list));
  }
  if (value.isDevice() && value.toDevice().type() == kDeviceType) {
    return c10::IValue(c10::Device(at::kCPU));
  }
  return value;
}

} // namespace

at::Tensor known_values(const at::TensorBase& tensor) {
  const DeviceMemory* memory = memory_of(tensor);
  const KnownValues* known = memory == nullptr ? nullptr : memory->known.get();
  if (known == nullptr || known->bytes == 0 || extent_of(tensor).end > known->bytes) {
    return {};
  }
  return share_values(*known, tensor);
}

at::Tensor values_to_write(const at::TensorBase& tensor) {
  DeviceMemory* memory = memory_of(tensor);
  if (memory == nullptr) {
    return {};
  }
  const auto [begin, end] = extent_of(tensor);
  const auto limit = tensor.scalar_type() == at::kByte ? kMaxObjectBytes : kMaxBytes;
  const size_t known_bytes = memory->known ? memory->known->bytes.load() : 0;
  const bool is_known = end <= known_bytes;
  const bool follows = begin <= known_bytes && tensor.is_non_overlapping_and_dense();
  if (end == begin || memory->bytes > limit || !(is_known || follows)) {
    forget_values(tensor);
    return {};
  }
  if (!memory->known) {
    memory->known = c10::make_intrusive<KnownValues>();
    memory->known->storage = c10::Storage(
        c10::Storage::use_byte_size_t(), memory->bytes, c10::GetCPUAllocator());
  }
  memory->known->bytes = std::max(known_bytes, end);
  return share_values(*memory->known, tensor);
}

void forget_values(const at::TensorBase& tensor) {
  const DeviceMemory* memory = memory_of(tensor);
  if (memory != nullptr && memory->known) {
    memory->known->bytes = 0;
  }
}

ValuesInDoubt::ValuesInDoubt(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    const DeviceMemory* memory = memory_of(tensor);
    if (memory != nullptr && memory->known) {
      values_.push_back(memory->known);
    }
  }
}

void ValuesInDoubt::forget() const {
  for (const auto& known : values_) {
    known->bytes = 0;
  }
}

std::optional<KnownCall> KnownCall::of(
    const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  KnownCall call;
  size_t bytes = 0;
  bool has_tensors = false;
  const auto overwritten = overwritten_argument(op, arguments);
  for (const auto& argument : arguments) {
    if (call.arguments_.size() == overwritten) {
      // `store_values` reads the result from this argument.
      const at::Tensor& tensor = argument.toTensor();
      call.arguments_.emplace_back(
          at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.dtype())));
      has_tensors = true;
      continue;
    }
    auto known = known_argument(argument, bytes);
    if (!known.has_value()) {
      return std::nullopt;
    }
    has_tensors |= argument.isTensor() || argument.isTensorList();
    call.arguments_.push_back(std::move(*known));
  }
  if (!has_tensors || makes_views(op.schema()) || draws_numbers(op)) {
    return std::nullopt;
  }
  return call;
}

std::optional<torch::jit::Stack> KnownCall::run(const c10::OperatorHandle& op) {
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments_);
    return std::move(arguments_);
  } catch (const std::exception&) {
        return std::nullopt; // the CPU has no such kernel, or the call is invalid
  }
}

void store_values(const torch::jit::Stack& values, c10::ArrayRef<c10::IValue> results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].isTensor() || !values[i].isTensor()) {
      continue;
    }
    const auto& result = results[i].toTensor();
    const auto& computed = values[i].toTensor();
    if (!is_virtual(result) || result.nbytes() > kMaxComputedBytes ||
        result.sizes() != computed.sizes() || result.scalar_type() != computed.scalar_type()) {
      continue;
    }
    auto to = values_to_write(result);
    if (to.defined() && to.data_ptr() != computed.data_ptr()) {
      to.copy_(computed);
    }
  }
}

} // namespace anyrig::virtual_gpu
