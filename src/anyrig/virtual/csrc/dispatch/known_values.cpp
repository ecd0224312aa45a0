#include "dispatch/known_values.h"

#include "dispatch/twin.h"

#include <ATen/core/enum_tag.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// Larger ones are data, of which ShapeOnly keeps none. Pickled objects travel as bytes.
constexpr size_t kMostBytes = size_t{1} << 20;
constexpr size_t kMostBytesOfObjects = size_t{64} << 20;
// Nothing larger is computed.
constexpr size_t kMostComputedBytes = size_t{64} << 10;

struct Extent {
  size_t begin = 0; // bytes, in the storage
  size_t end = 0;
};

// Where the elements of a tensor lie, gaps included.
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

at::Tensor over(DeviceMemory& memory, const at::TensorBase& tensor) {
  auto* first = static_cast<char*>(memory.known.get()) +
      static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  return at::from_blob(
      first, tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
}

// They overwrite all of their first argument, whatever was there.
bool fills_whole(const std::string& name) {
  return name == "aten::zero_" || name == "aten::fill_";
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

// Puts the values of a tensor in its place; false where they are unknown. An undefined one, as an
// index that takes all, has none and needs none.
bool put_values(at::Tensor& tensor, size_t& bytes) {
  if (!tensor.defined()) {
    return true;
  }
  bytes += tensor.nbytes();
  if (bytes > kMostComputedBytes || tensor.layout() != at::kStrided) {
    return false;
  }
  if (!tensor.is_cpu()) {
    tensor = is_virtual(tensor) ? known_values(tensor) : at::Tensor();
  }
  return tensor.defined();
}

// `value` with the values of its tensors in their place; none where one is unknown.
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
  DeviceMemory* memory = memory_of(tensor);
  if (memory == nullptr || memory->known_bytes == 0 ||
      extent_of(tensor).end > memory->known_bytes) {
    return {};
  }
  return over(*memory, tensor);
}

at::Tensor values_to_write(const at::TensorBase& tensor) {
  DeviceMemory* memory = memory_of(tensor);
  if (memory == nullptr) {
    return {};
  }
  const auto [begin, end] = extent_of(tensor);
  const auto most = tensor.scalar_type() == at::kByte ? kMostBytesOfObjects : kMostBytes;
  const bool is_known = end <= memory->known_bytes;
  const bool follows = begin <= memory->known_bytes && tensor.is_non_overlapping_and_dense();
  if (end == begin || memory->bytes > most || !(is_known || follows)) {
    forget_values(tensor);
    return {};
  }
  if (memory->known.get() == nullptr) {
    memory->known = c10::GetCPUAllocator()->allocate(memory->bytes);
  }
  memory->known_bytes = std::max(memory->known_bytes.load(), end);
  return over(*memory, tensor);
}

void forget_values(const at::TensorBase& tensor) {
  DeviceMemory* memory = memory_of(tensor);
  if (memory != nullptr) {
    memory->known_bytes = 0;
  }
}

std::optional<KnownCall> KnownCall::of(
    const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  KnownCall call;
  size_t bytes = 0;
  bool has_tensors = false;
  for (const auto& argument : arguments) {
    const bool is_first = call.arguments_.empty();
    // Of what is filled on the device, single numbers are kept: flags and counters, not data.
    if (is_first && argument.isTensor() && fills_whole(op.schema().name()) &&
        argument.toTensor().numel() == 1) {
      auto values = values_to_write(argument.toTensor());
      if (!values.defined()) {
        return std::nullopt;
      }
      call.arguments_.emplace_back(std::move(values));
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
    return std::nullopt; // a card has kernels that the CPU lacks
  }
}

void give_values(const torch::jit::Stack& values, c10::ArrayRef<c10::IValue> results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].isTensor() || !values[i].isTensor()) {
      continue;
    }
    const auto& result = results[i].toTensor();
    const auto& computed = values[i].toTensor();
    if (!is_virtual(result) || result.nbytes() > kMostComputedBytes ||
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
