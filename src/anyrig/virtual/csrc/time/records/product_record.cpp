// Records of products: m, n, k and the batch, from the shapes of the operands.
#include "time/records/product_record.h"

#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// Returns the operand at `i`, or the next argument if argument `i` is the metadata of a 2:4 sparse
// matrix, which precedes the other operand.
const at::Tensor& other_operand(Arguments arguments, size_t i) {
  const auto& tensor = arguments[i].toTensor();
  const auto dtype = tensor.scalar_type();
  const bool is_metadata = (dtype == at::kShort || dtype == at::kInt) && i + 1 < arguments.size() &&
      arguments[i + 1].isTensor();
  return is_metadata ? arguments[i + 1].toTensor() : tensor;
}

Work& add_product(Works& works, const at::Tensor& a, const at::Tensor& b) {
  Work& work = works.emplace_back(ProductShape());
  work.precision = precision_of(a.scalar_type(), Family::Product);
  work.element_bytes = static_cast<double>(a.element_size());
  ProductShape& shape = work.product;
  shape.batch = a.dim() == 3 ? static_cast<double>(a.size(0)) : 1;
  shape.m = static_cast<double>(a.size(-2));
  shape.n = static_cast<double>(b.size(-1));
  // A 2:4 sparse matrix stores half of its elements: b has the whole length.
  shape.k = static_cast<double>(b.size(-2));
  work.flops = 2 * shape.batch * shape.m * shape.n * shape.k;
  return work;
}

void describe_product(const at::Tensor& a, const at::Tensor& b, Works& works) {
  Work& work = add_product(works, a, b);
  if (a.dim() == 2 && b.dim() == 2 && a.size(1) != b.size(0)) {
    // The GPU skips the elements that a 2:4 sparse matrix does not store.
    work.flops /= 2;
    work.product.k /= 2;
  }
}

// (a, b, ...)
void describe_plain(const WorkRules&, Arguments arguments, Description& description) {
  describe_product(arguments[0].toTensor(), other_operand(arguments, 1), description.works);
}

// (summand, a, b, ...)
void describe_with_summand(const WorkRules&, Arguments arguments, Description& description) {
  describe_product(arguments[1].toTensor(), other_operand(arguments, 2), description.works);
}

// (a, b, ...): one product per group. A 2-D operand is divided into groups along its rows, its
// columns, or, if both are 2-D, along k. The sizes of the groups are on the GPU: assume equal ones.
void describe_groups(const WorkRules&, Arguments arguments, Description& description) {
  const auto &a = arguments[0].toTensor(), &b = arguments[1].toTensor();
  Work& work = add_product(description.works, a, b);
  ProductShape& shape = work.product;
  if (a.dim() == 2 && b.dim() == 3) {
    shape.batch = static_cast<double>(b.size(0));
    shape.m /= std::max(shape.batch, 1.0);
  } else if (a.dim() == 3 && b.dim() == 2) {
    shape.n /= std::max(shape.batch, 1.0);
  }
  work.flops = 2 * shape.batch * shape.m * shape.n * shape.k;
}

} // namespace

Describe find_product(const std::string& name) {
  static const std::unordered_map<std::string, Describe> products = {
      {"mm", describe_plain},
      {"bmm", describe_plain},
      {"_int_mm", describe_plain},
      {"_scaled_mm", describe_plain},
      {"_scaled_mm_v2", describe_plain},
      {"_cslt_sparse_mm", describe_plain},
      {"_sparse_semi_structured_mm", describe_plain},
      {"_sparse_semi_structured_addmm", describe_with_summand},
      {"addmm", describe_with_summand},
      {"addmm_", describe_with_summand},
      {"addbmm", describe_with_summand},
      {"addbmm_", describe_with_summand},
      {"baddbmm", describe_with_summand},
      {"baddbmm_", describe_with_summand},
      {"_addmm_activation", describe_with_summand},
      {"_grouped_mm", describe_groups},
      {"_scaled_grouped_mm", describe_groups},
      {"_scaled_grouped_mm_v2", describe_groups},
  };
  const auto found = products.find(name);
  return found == products.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
