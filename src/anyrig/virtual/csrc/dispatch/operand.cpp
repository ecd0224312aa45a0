#include "dispatch/operand.h"

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

double moved_bytes_of(const Operand& operand) {
  if (operand.shadow == nullptr) {
        return 0; // a container, whose parts are counted
  }
  const double times = static_cast<double>(operand.plan.is_read) +
      static_cast<double>(operand.plan.is_written);
  return times * touched_bytes(operand.owner);
}

} // namespace

double moved_bytes(
    Traffic traffic,
    c10::ArrayRef<Operand> operands,
    c10::ArrayRef<Operand> parts,
    double result_bytes) {
  double first = operands.empty() ? 0 : moved_bytes_of(operands.front());
  double others = 0;
  for (size_t i = 1; i < operands.size(); ++i) {
    others += moved_bytes_of(operands[i]);
  }
  for (const auto& part : parts) {
    others += moved_bytes_of(part);
  }
  if (traffic == Traffic::Gather) {
    first = std::min(first, std::max(result_bytes, others));
  } else if (traffic == Traffic::Scatter) {
    first = std::min(first, 2 * others);
  }
  return first + others + result_bytes;
}

} // namespace anyrig::virtual_gpu
