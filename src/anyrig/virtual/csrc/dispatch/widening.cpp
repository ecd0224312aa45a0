#include "dispatch/widening.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace anyrig::virtual_gpu {
namespace {

at::ScalarType wider(at::ScalarType dtype) {
  switch (dtype) {
    case at::kComplexHalf:
      return at::kComplexFloat;
    case at::kBool:
      return at::kByte;
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    default: // integers; double is exact up to 2^53
      return at::kDouble;
  }
}

// Returns the dtype that a result has on CUDA, for operands of dtype `operand` before widening.
at::ScalarType narrower(at::ScalarType result, at::ScalarType operand) {
  const bool half = operand == at::kHalf || operand == at::kComplexHalf;
  if (half && result == at::kFloat) {
    return at::kHalf;
  }
  if (half && result == at::kComplexFloat) {
    return at::kComplexHalf;
  }
  return result == wider(operand) ? operand : result;
}

bool contains(DtypeSet dtypes, const at::Tensor& tensor) {
  return tensor.defined() && dtypes.contains(tensor.scalar_type());
}

template <class Visit>
void visit_tensors(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      visit(tensor);
    }
  }
}

// Returns `value` with each of its tensors replaced.
template <class Replace>
c10::IValue replaced(const c10::IValue& value, Replace replace) {
  if (value.isTensor()) {
    return replace(value.toTensor());
  }
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      tensors.push_back(replace(tensor));
    }
    return tensors;
  }
  return value;
}

struct Widened {
  at::Tensor narrow;
  at::Tensor wide;
  bool written;
};

} // namespace

bool needs_widening(
    DtypeSet dtypes,
    const c10::FunctionSchema& schema,
    const torch::jit::Stack& stack) {
  bool found = false;
  const size_t first = stack.size() - schema.arguments().size();
  for (size_t i = first; !found && i < stack.size(); ++i) {
    visit_tensors(stack[i], [&](const at::Tensor& tensor) { found |= contains(dtypes, tensor); });
  }
  return found;
}

void run_widened(
    DtypeSet dtypes,
    const c10::FunctionSchema& schema,
    torch::jit::Stack& stack,
    const std::function<void()>& kernel) {
  std::vector<Widened> operands;
  const size_t first = stack.size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    stack[first + i] = replaced(stack[first + i], [&](const at::Tensor& tensor) {
      if (!contains(dtypes, tensor)) {
        return tensor;
      }
      operands.push_back({tensor, tensor.to(wider(tensor.scalar_type())), written});
      return operands.back().wide;
    });
  }
  const auto narrow = operands.front().narrow.scalar_type();
  kernel();
  for (const auto& operand : operands) {
    if (operand.written) {
      if (operand.narrow.layout() == at::kStrided) {
        operand.narrow.resize_(operand.wide.sizes());
      } else {
        operand.narrow.resize_as_sparse_(operand.wide);
      }
      operand.narrow.copy_(operand.wide);
    }
  }
  for (size_t i = stack.size() - schema.returns().size(); i < stack.size(); ++i) {
    stack[i] = replaced(stack[i], [&](const at::Tensor& tensor) {
      for (const auto& operand : operands) {
        if (tensor.is_same(operand.wide)) {
          return operand.narrow;
        }
      }
      return tensor.defined() ? tensor.to(narrower(tensor.scalar_type(), narrow)) : tensor;
    });
  }
}

} // namespace anyrig::virtual_gpu
