// Pruning for training with 2:4 sparsity, along rows and columns at once: each 4x4 tile keeps at
// most eight numbers, and both the matrix and its transpose are packed. Checks, texts and sizes:
// aten/src/ATen/native/sparse/cuda/SparseSemiStructured{Tile,Apply,ApplyDense}.cu.

#include "extras/sparsity/semi_structured.h"
#include "operators/rounding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kTile = 4;
// The parts of a matrix that one warp and one thread prune on CUDA.
constexpr int64_t kWarpRows = 32;
constexpr int64_t kWarpColumns = 64;
constexpr int64_t kThreadTile = 8;
constexpr int64_t kMaskBytes = 8;

// The numbers that a tile keeps: bit 4 * row + column.
using Mask = uint16_t;

struct Candidate {
  float rank = 0;
  int row = 0;
  int column = 0;
};

// The sorting network of CUDA's kernel (Bose and Nelson). It determines the order of equal numbers.
template <size_t N>
class Network {
 public:
  static void sort(std::array<Candidate, N>& values) { sort_part(values, 0, N); }

 private:
  static void order(std::array<Candidate, N>& values, int64_t i, int64_t j) {
    if (!(values[i].rank < values[j].rank)) {
      std::swap(values[i], values[j]);
    }
  }

  static void sort_part(std::array<Candidate, N>& values, int64_t first, int64_t count) {
    if (count < 2) {
      return;
    }
    const int64_t half = count / 2;
    sort_part(values, first, half);
    sort_part(values, first + half, count - half);
    merge(values, first, half, first + half, count - half);
  }

  static void merge(
      std::array<Candidate, N>& values,
      int64_t a,
      int64_t a_count,
      int64_t b,
      int64_t b_count) {
    if (a_count == 1 && b_count == 1) {
      order(values, a, b);
    } else if (a_count == 1 && b_count == 2) {
      order(values, a, b + 1);
      order(values, a, b);
    } else if (a_count == 2 && b_count == 1) {
      order(values, a, b);
      order(values, a + 1, b);
    } else {
      const int64_t a_half = a_count / 2;
      const int64_t b_half = (a_count % 2 == 1 ? b_count : b_count + 1) / 2;
      merge(values, a, a_half, b, b_half);
      merge(values, a + a_half, a_count - a_half, b + b_half, b_count - b_half);
      merge(values, a + a_half, a_count - a_half, b, b_half);
    }
  }
};

using Tile = std::array<std::array<float, kTile>, kTile>;

// Keeps the largest numbers whose row and column have fewer than two so far. May keep fewer than
// eight.
Mask keep_largest(const Tile& tile) {
  std::array<Candidate, kTile * kTile> candidates;
  for (int i = 0; i < kTile * kTile; ++i) {
    candidates[i] = {tile[i / kTile][i % kTile], i / int(kTile), i % int(kTile)};
  }
  Network<kTile * kTile>::sort(candidates);
  std::array<int, kTile> kept_in_row{};
  std::array<int, kTile> kept_in_column{};
  Mask mask = 0;
  for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
    if (kept_in_row[it->row] < 2 && kept_in_column[it->column] < 2) {
      ++kept_in_row[it->row];
      ++kept_in_column[it->column];
      mask |= static_cast<Mask>(1 << (kTile * it->row + it->column));
    }
  }
  return mask;
}

// Keeps one number in each of the first two rows and two in each of the others, from the top down.
Mask keep_causally(const Tile& tile) {
  std::array<int, kTile> kept_in_column{};
  Mask mask = 0;
  for (int row = 0; row < kTile; ++row) {
    std::array<Candidate, kTile> candidates;
    for (int column = 0; column < kTile; ++column) {
      candidates[column] = {tile[row][column], row, column};
    }
    Network<kTile>::sort(candidates);
    int room = row < 2 ? 1 : 2;
    for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
      if (room > 0 && kept_in_column[it->column] < 2) {
        --room;
        ++kept_in_column[it->column];
        mask |= static_cast<Mask>(1 << (kTile * row + it->column));
      }
    }
  }
  return mask;
}

struct Algorithm {
  Mask (*keep)(const Tile&);
  bool by_size; // by absolute value rather than by value
};

Algorithm algorithm_of(std::string_view name) {
  if (name.empty() || name == "largest_values_greedy") {
    return {keep_largest, false};
  }
  if (name == "largest_abs_values_greedy") {
    return {keep_largest, true};
  }
  TORCH_CHECK(name == "causal1122", "Unknown algorithm \"", name, "\"");
  return {keep_causally, false};
}

// Pads a matrix with `filling` to a multiple of the warp's tile.
at::Tensor pad_to_warps(const at::Tensor& matrix, float filling) {
  auto whole = at::full(
      {in_whole_tiles(matrix.size(0), kWarpRows), in_whole_tiles(matrix.size(1), kWarpColumns)},
      filling, matrix.options());
  whole.narrow(0, 0, matrix.size(0)).narrow(1, 0, matrix.size(1)).copy_(matrix);
  return whole;
}

at::Tensor empty_masks(const at::Tensor& matrix) {
  return at::empty(
      {in_whole_tiles(matrix.size(0), kWarpRows) / kThreadTile,
       in_whole_tiles(matrix.size(1), kWarpColumns) / kThreadTile, kMaskBytes},
      matrix.options().dtype(at::kByte));
}

// Writes the four masks of each thread: upper left, upper right, lower left, lower right.
void choose_masks(const at::Tensor& whole, const Algorithm& algorithm, const at::Tensor& masks) {
  const auto ranks = (algorithm.by_size ? whole.abs() : whole).to(at::kFloat);
  const auto rank = ranks.accessor<float, 2>();
  const auto words = masks.view(at::kShort);
  auto word = words.accessor<int16_t, 3>();
  for (int64_t row = 0; row < whole.size(0) / kTile; ++row) {
    for (int64_t column = 0; column < whole.size(1) / kTile; ++column) {
      Tile tile;
      for (int64_t i = 0; i < kTile; ++i) {
        for (int64_t j = 0; j < kTile; ++j) {
          tile[i][j] = rank[row * kTile + i][column * kTile + j];
        }
      }
      word[row / 2][column / 2][row % 2 * 2 + column % 2] =
          static_cast<int16_t>(algorithm.keep(tile));
    }
  }
}

// Returns a bool for each number of the padded matrix: whether it is kept.
at::Tensor kept_numbers(const at::Tensor& masks) {
  const int64_t rows = masks.size(0);
  const int64_t columns = masks.size(1);
  const auto words =
      masks.contiguous().view(at::kShort).to(at::kInt).view({rows, columns, 2, 2, 1, 1});
  const auto places = at::arange(kTile * kTile, words.options()).view({kTile, kTile});
  return words.bitwise_right_shift(places)
      .bitwise_and(1)
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({rows * kThreadTile, columns * kThreadTile})
      .to(at::kBool);
}

struct PackedRows {
  at::Tensor numbers; // half as many columns as the matrix
  at::Tensor codes; // one byte for every four columns
};

// The positions of the numbers kept in a group of four. A missing number has position 0.
struct KeptPair {
  int first = 0;
  int second = 0;
  bool has_first = false;
  bool has_second = false;
};

KeptPair pair_of(const bool* kept) {
  KeptPair places;
  if (kept[0] || kept[1]) {
    places = {kept[0] ? 0 : 1, 0, true, false};
  }
  if (kept[0] && kept[1]) {
    places = {0, 1, true, true};
  }
  if (kept[2] || kept[3]) {
    places.second = kept[3] ? 3 : 2;
    places.has_second = true;
  }
  if (kept[2] && kept[3]) {
    places.first = 2;
    places.has_first = true;
  }
  return places;
}

PackedRows pack_kept(const at::Tensor& whole, const at::Tensor& kept) {
  const auto bits = whole.contiguous().view(at::kShort);
  const auto stays = kept.contiguous();
  const int64_t codes = whole.numel() / kTile;
  PackedRows packed{
      at::zeros({whole.size(0), whole.size(1) / 2}, bits.options()),
      at::empty({whole.size(0), whole.size(1) / kTile}, bits.options().dtype(at::kByte))};
  const auto* from = bits.const_data_ptr<int16_t>();
  auto* to = packed.numbers.mutable_data_ptr<int16_t>();
  auto* code = packed.codes.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < codes; ++i) {
    const auto places = pair_of(stays.const_data_ptr<bool>() + i * kTile);
    to[2 * i] = places.has_first ? from[i * kTile + places.first] : int16_t{0};
    to[2 * i + 1] = places.has_second ? from[i * kTile + places.second] : int16_t{0};
    code[i] = static_cast<uint8_t>(places.first | places.second << 2);
  }
  packed.numbers = packed.numbers.view(whole.scalar_type());
  return packed;
}

// The operands of a sparse product: the numbers, and the codes in the library's order.
struct Compressed {
  at::Tensor whole;
  at::Tensor numbers;
  at::Tensor meta;
};

Compressed empty_for_cutlass(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  const int64_t all_rows = in_whole_tiles(rows, kWarpRows);
  const int64_t all_columns = in_whole_tiles(columns, kWarpColumns);
  const auto numbers = at::empty({all_rows, all_columns / 2}, options);
  const auto meta =
      at::empty({all_columns / 32, all_rows, 2}, options.dtype(at::kShort)).permute({1, 2, 0});
  return {numbers, numbers, meta};
}

Compressed empty_for_cusparselt(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  TORCH_CHECK(rows % 128 == 0 && columns % 128 == 0, "Only supports rows/cols multiples of 128");
  const int64_t numbers = rows * columns / 2;
  const int64_t words = rows * columns / 16;
  const auto whole = at::empty({numbers + words}, options);
  return {
      whole, whole.narrow(0, 0, numbers).view({rows, columns / 2}),
      whole.narrow(0, numbers, words).view({rows / 128, columns / 32, 256})};
}

void write_cutlass_codes(const at::Tensor& codes, const at::Tensor& meta) {
  constexpr int64_t codes_of_word = 4;
  auto* words = meta.mutable_data_ptr<int16_t>();
  const auto code = codes.accessor<uint8_t, 2>();
  for (int64_t row = 0; row < codes.size(0); ++row) {
    for (int64_t column = 0; column < codes.size(1) / codes_of_word; ++column) {
      int word = 0;
      for (int64_t i = 0; i < codes_of_word; ++i) {
        word |= code[row][column * codes_of_word + i] << (4 * i);
      }
      words[place_of_word(row, column, codes.size(0), true)] = static_cast<int16_t>(word);
    }
  }
}

void write_cusparselt_codes(const at::Tensor& codes, const at::Tensor& meta) {
  const auto pairs = codes.view({-1, 2});
  const auto bytes = pairs.select(1, 0).bitwise_or(pairs.select(1, 1).bitwise_left_shift(4));
  meta.view({-1}).view(at::kByte).copy_(bytes);
}

// Crops and pads with zeros, since the transpose is rounded up along the other dimension.
at::Tensor crop_or_pad(const at::Tensor& matrix, int64_t rows, int64_t columns) {
  const auto result = at::zeros({rows, columns}, matrix.options());
  const int64_t common_rows = std::min(rows, matrix.size(0));
  const int64_t common_columns = std::min(columns, matrix.size(1));
  result.narrow(0, 0, common_rows)
      .narrow(1, 0, common_columns)
      .copy_(matrix.narrow(0, 0, common_rows).narrow(1, 0, common_columns));
  return result;
}

using FiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

FiveTensors prune_tiles(const at::Tensor& input, std::string_view name, bool for_cutlass) {
  TORCH_CHECK(
      input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16,
      input.scalar_type());
  TORCH_CHECK(input.dim() == 2, "Can only sparsify 2d tensors");
  TORCH_CHECK(
      input.stride(1) == 1,
      "Can only sparsify contiguous tensors. Sparsify the transpose otherwise.");
  const auto empty_for = for_cutlass ? empty_for_cutlass : empty_for_cusparselt;
  const auto straight = empty_for(input.size(0), input.size(1), input.options());
  const auto transposed = empty_for(input.size(1), input.size(0), input.options());
  TORCH_CHECK(input.size(1) % 32 == 0, "Number of cols should be multiple of 32");
  const auto algorithm = algorithm_of(name);
  const auto masks = empty_masks(input);
  if (!input.is_meta()) {
    const auto whole = pad_to_warps(input, -std::numeric_limits<float>::infinity());
    choose_masks(whole, algorithm, masks);
    const auto kept = kept_numbers(masks);
    const auto write = for_cutlass ? write_cutlass_codes : write_cusparselt_codes;
    const auto fill = [&write](const Compressed& compressed, const PackedRows& packed) {
      const auto& numbers = compressed.numbers;
      numbers.copy_(crop_or_pad(packed.numbers, numbers.size(0), numbers.size(1)));
      write(crop_or_pad(packed.codes, numbers.size(0), numbers.size(1) / 2), compressed.meta);
    };
    fill(straight, pack_kept(whole, kept));
    fill(transposed, pack_kept(whole.t(), kept.t()));
  }
  return {straight.whole, straight.meta, transposed.whole, transposed.meta, masks};
}

void check_masks(const at::Tensor& threads_masks, const at::Tensor& input) {
  TORCH_CHECK(threads_masks.dim() == 3);
  TORCH_CHECK(threads_masks.size(0) == in_whole_tiles(input.size(0), kWarpRows) / kThreadTile);
  TORCH_CHECK(threads_masks.size(1) == in_whole_tiles(input.size(1), kWarpColumns) / kThreadTile);
  TORCH_CHECK(threads_masks.stride(1) == kMaskBytes);
  TORCH_CHECK(threads_masks.size(2) == kMaskBytes);
  TORCH_CHECK(threads_masks.stride(2) == 1);
  TORCH_CHECK(threads_masks.scalar_type() == at::kByte);
}

std::tuple<at::Tensor, at::Tensor> apply_masks(const at::Tensor& input, const at::Tensor& masks) {
  TORCH_CHECK(
      input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16,
      "Unsupported dtype - only `float16` and `bfloat16` are supported currently");
  const auto matrix = input.stride(1) == 1 ? input : input.contiguous();
  TORCH_CHECK(matrix.dim() == 2);
  TORCH_CHECK(matrix.stride(0) % 8 == 0);
  TORCH_CHECK(matrix.size(1) % 32 == 0, "Wrong alignment shape[1]");
  check_masks(masks, matrix);
  if (input.is_meta()) {
    const int64_t rows = in_whole_tiles(matrix.size(0), kWarpRows);
    const int64_t columns = in_whole_tiles(matrix.size(1), kWarpColumns);
    return {
        at::empty({rows, columns / 2}, matrix.options()),
        at::empty({columns, rows / 2}, matrix.options())};
  }
  const auto whole = pad_to_warps(matrix, 0);
  const auto kept = kept_numbers(masks);
  return {pack_kept(whole, kept).numbers, pack_kept(whole.t(), kept.t()).numbers};
}

at::Tensor apply_masks_densely(const at::Tensor& input, const at::Tensor& masks) {
  TORCH_CHECK(
      input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16,
      "Unsupported `input` dtype");
  TORCH_CHECK(
      input.stride(0) == 1 || input.stride(1) == 1,
      "`input` should be either RowMajor or ColMajor. Invalid memory layout - try .contiguous()?");
  check_masks(masks, input);
  const auto result = at::empty(input.sizes(), input.options());
  if (!input.is_meta()) {
    const auto kept = kept_numbers(masks).narrow(0, 0, input.size(0)).narrow(1, 0, input.size(1));
    result.copy_(input).masked_fill_(kept.logical_not(), 0);
  }
  return result;
}

} // namespace

OperatorRecords pruning_records() {
  return {
      {{"_sparse_semi_structured_tile"}, {.host_kernels = {host_kernel(&prune_tiles)}}},
      {{"_sparse_semi_structured_apply"}, {.host_kernels = {host_kernel(&apply_masks)}}},
      {{"_sparse_semi_structured_apply_dense"},
       {.host_kernels = {host_kernel(&apply_masks_densely)}}},
  };
}

} // namespace anyrig::virtual_gpu
