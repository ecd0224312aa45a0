// Records of matrix factorizations by cuSOLVER, and of the solvers that use them.
//
//   |####|....|....|    a panel: its columns wait for each other (a memory record with steps)
//   |    |####|....|    the rest: a product updates it (a product record)
//
// The steps per column are relative to Cholesky's, whose column takes 0.75 us on an H100
// (pytorch/pytorch pull request 173515). The others are fitted to published times, too:
//
//   LU          2048 columns in 12.9 ms                    pull request 73878
//   QR          128 x 32 in 189 us, both of its parts      pull request 173788
//   geqrf       1024 columns in 3.8 ms                     flagos-ai/FlagGems, pull request 5586
//   eigh        500 times 100 columns in 914 ms            issue 174674
//   svd         400 columns in 207 ms in float64           tensor4all/tenferro-rs, issue 1849
//   eig         512 times 3 columns in 182 ms              issue 183806
//
// Which batches are factorized at once: aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp.
#include "time/records/factorization_record.h"

#include <algorithm>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

struct Factorization {
  double steps; // per column
  double flops; // over m n^2, where n is the smaller side
  // Matrices up to this size are factorized in one batch; larger ones one after the other.
  double longest_in_batch;
};

constexpr double kAnySize = 1e9;

constexpr Factorization kCholesky{1, 1.0 / 3, kAnySize};
constexpr Factorization kLu{8, 2.0 / 3, 128};
constexpr Factorization kGeqrf{5, 4.0 / 3, 256};
constexpr Factorization kQr{8, 8.0 / 3, 256};
constexpr Factorization kEigh{24, 9, 32};
constexpr Factorization kSvd{350, 20, 32};
constexpr Factorization kEig{150, 25, 0};
constexpr Factorization kLuAndSolves{9, 8.0 / 3, 128};
constexpr Factorization kTriangularSolve{0.5, 1, kAnySize};
constexpr Factorization kTwoSolves{1, 2, kAnySize};

// Adds the records of a factorization: the columns, and the product that updates the rest, which
// PyTorch's FLOP counter does not count. `results` is the number of columns of the product's result.
void add_factorization(
    const Factorization& kind,
    const at::Tensor& matrices,
    double results,
    Works& works) {
  if (matrices.dim() < 2 || matrices.numel() == 0) {
    return;
  }
  const auto rows = static_cast<double>(matrices.size(-2));
  const auto columns = static_cast<double>(matrices.size(-1));
  const double shorter = std::min(rows, columns), longer = std::max(rows, columns);
  const double batch = static_cast<double>(matrices.numel()) / (rows * columns);
  MemoryShape columns_in_turn;
  columns_in_turn.access = Access::Factorization;
  columns_in_turn.rows = kind.steps * shorter * (longer <= kind.longest_in_batch ? 1 : batch);
  works.emplace_back(columns_in_turn);
  ProductShape updated;
  updated.batch = batch;
  updated.m = longer;
  updated.n = results > 0 ? results : shorter;
  updated.k = kind.flops * shorter / 2;
  Work& update = works.emplace_back(updated);
  const Precision precision = precision_of(matrices.scalar_type(), Family::Product);
  // cuSOLVER does not follow the setting for TF32.
  update.precision = precision == Precision::Tfloat32 ? Precision::Float32 : precision;
  update.element_bytes = static_cast<double>(matrices.element_size());
  update.kernels = 0; // those above
}

// (matrices, ...)
template <const Factorization& kind>
void describe_matrices(const WorkRules&, Arguments arguments, Description& description) {
  if (arguments[0].isTensor()) {
    add_factorization(kind, arguments[0].toTensor(), 0, description.works);
  }
}

// The argument positions of the factors and the right-hand sides.
template <const Factorization& kind, size_t factors, size_t right>
void describe_solve(const WorkRules&, Arguments arguments, Description& description) {
  if (arguments[factors].isTensor() && arguments[right].isTensor()) {
    const auto& right_sides = arguments[right].toTensor();
    const double columns = right_sides.dim() == 0 ? 1 : static_cast<double>(right_sides.size(-1));
    add_factorization(kind, arguments[factors].toTensor(), columns, description.works);
  }
}

} // namespace

Describe find_factorization(const std::string& name) {
  static const std::unordered_map<std::string, Describe> factorizations = {
      {"cholesky", describe_matrices<kCholesky>},
      {"linalg_cholesky_ex", describe_matrices<kCholesky>},
      {"linalg_lu", describe_matrices<kLu>},
      {"linalg_lu_factor_ex", describe_matrices<kLu>},
      {"_linalg_det", describe_matrices<kLu>},
      {"_linalg_slogdet", describe_matrices<kLu>},
      {"linalg_ldl_factor_ex", describe_matrices<kLu>},
      {"geqrf", describe_matrices<kGeqrf>},
      {"linalg_householder_product", describe_matrices<kGeqrf>},
      {"linalg_qr", describe_matrices<kQr>},
      {"linalg_lstsq", describe_matrices<kQr>},
      {"_linalg_eigh", describe_matrices<kEigh>},
      {"_linalg_svd", describe_matrices<kSvd>},
      {"linalg_eig", describe_matrices<kEig>},
      {"_linalg_eigvals", describe_matrices<kEig>},
      {"linalg_inv_ex", describe_matrices<kLuAndSolves>},
      {"_linalg_solve_ex", describe_matrices<kLuAndSolves>},
      {"linalg_solve_triangular", describe_solve<kTriangularSolve, 0, 1>},
      {"triangular_solve", describe_solve<kTriangularSolve, 1, 0>},
      {"linalg_lu_solve", describe_solve<kTwoSolves, 0, 2>},
      {"linalg_ldl_solve", describe_solve<kTwoSolves, 0, 2>},
      {"_cholesky_solve_helper", describe_solve<kTwoSolves, 1, 0>},
      {"cholesky_inverse", describe_solve<kTwoSolves, 0, 0>},
  };
  const auto found = factorizations.find(name);
  return found == factorizations.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
