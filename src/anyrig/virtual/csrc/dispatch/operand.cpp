#include "dispatch/operand.h"

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

void add_operand(Moved& moved, const Operand& operand) {
  if (operand.shadow == nullptr) {
    return; // a container, whose parts are counted
  }
  const double bytes = touched_bytes(operand.owner);
  moved.read += operand.plan.is_read ? bytes : 0;
  moved.written += operand.plan.is_written ? bytes : 0;
  moved.footprint += operand.plan.is_read || operand.plan.is_written ? bytes : 0;
  moved.elements = std::max(moved.elements, static_cast<double>(operand.owner.numel()));
}

// Reduces what `moved` says about an operand of which only `most` bytes are accessed.
void limit_to(Moved& moved, double most) {
  moved.read = std::min(moved.read, most);
  moved.written = std::min(moved.written, most);
  moved.footprint = std::min(moved.footprint, most);
}

// Returns the bytes of the rows of `table` that the indices name.
double row_bytes(const at::Tensor& table, const at::Tensor& indices) {
  return table.dim() == 0 || table.size(0) == 0 ? 0
                                                : static_cast<double>(indices.numel()) *
          static_cast<double>(table.nbytes()) / static_cast<double>(table.size(0));
}

// Returns whether the largest operands differ in their fastest dimension. Operands of other sizes are
// broadcast, so that threads find most of their elements in a cache, whatever their order.
bool is_strided(c10::ArrayRef<Operand> operands) {
  const at::Tensor* largest = nullptr;
  int64_t common = -1; // the fastest dimension of the largest operands so far
  bool differs = false;
  for (const auto& operand : operands) {
    const auto& tensor = operand.owner;
    if (operand.shadow == nullptr || tensor.dim() < 2 || repeats_elements(tensor)) {
      continue;
    }
    const int64_t fastest = tensor.is_contiguous() && tensor.size(-1) > 1
        ? tensor.dim() - 1
        : fastest_dimension(tensor);
    if (fastest < 0) {
      continue;
    }
    if (largest == nullptr || tensor.numel() > largest->numel()) {
      largest = &tensor;
      common = fastest;
      differs = false;
    } else if (fastest != common && tensor.sizes() == largest->sizes()) {
      differs = true;
    }
  }
  return differs;
}

} // namespace

Moved moved_by(
    Traffic traffic,
    c10::ArrayRef<Operand> operands,
    c10::ArrayRef<Operand> parts,
    double result_bytes,
    bool order_counts) {
  Moved first, others;
  if (!operands.empty()) {
    add_operand(first, operands.front());
  }
  for (size_t i = 1; i < operands.size(); ++i) {
    add_operand(others, operands[i]);
  }
  for (const auto& part : parts) {
    add_operand(others, part);
  }
  const double other_bytes = others.read + others.written;
  switch (traffic) {
    case Traffic::Gather:
      limit_to(first, std::max(result_bytes, other_bytes));
      break;
    case Traffic::Scatter:
      limit_to(first, other_bytes);
      break;
    case Traffic::Rows:
      if (operands.size() > 1) {
        limit_to(first, row_bytes(operands[0].owner, operands[1].owner));
      }
      break;
    case Traffic::All:
    case Traffic::Free:
      break;
  }
  Moved moved;
  moved.read = first.read + others.read;
  moved.written = first.written + others.written + result_bytes;
  moved.footprint = first.footprint + others.footprint + result_bytes;
  moved.elements = traffic == Traffic::All ? std::max(first.elements, others.elements) : 0;
  moved.is_strided = order_counts && traffic == Traffic::All && is_strided(operands);
  return moved;
}

} // namespace anyrig::virtual_gpu
