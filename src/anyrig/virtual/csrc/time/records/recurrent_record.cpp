#include "time/records/recurrent_record.h"

#include <ATen/Context.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// How long a step waits for the previous one, beyond its kernels, in columns of a Cholesky
// factorization (MemoryShape): about 20 us on a V100. Fitted to half of the V100 rows of
// baidu-research/DeepBench (da81ba78), which were measured with cuDNN 7.
constexpr double kColumnsPerStep = 20;

// Calls `use(width, count)` for the diagonals that have `width` cells each, `count` of them.
template <class Use>
void for_each_diagonal(const RecurrentLayers& all, Use use) {
  if (all.directions > 1) {
    use(all.directions, all.steps * all.layers);
    return;
  }
  const double widest = std::min(all.layers, all.steps);
  for (double width = 1; width < widest; ++width) {
    use(width, 2.0);
  }
  use(widest, all.layers + all.steps + 1 - 2 * widest);
}

// Adds `times` equal products, each a kernel or `kernels` together.
void add_products(
    const RecurrentLayers& all,
    double m,
    double n,
    double k,
    double times,
    double kernels,
    Works& works) {
  Work& work = works.emplace_back(ProductShape{.m = m, .n = n, .k = k});
  work.precision = all.precision;
  work.element_bytes = all.element_bytes;
  work.flops = 2 * m * n * k * times;
  work.share = times;
  work.bytes_read = all.element_bytes * (m * k + k * n) * times;
  work.bytes_written = all.element_bytes * m * n * times;
  work.footprint_bytes = all.element_bytes * (m * k + k * n + m * n);
  work.kernels = kernels;
}

// Adds the element-wise kernel of each cell, which reads and writes these numbers for each hidden
// unit, and the waits of the diagonals for each other.
void add_cells(const RecurrentLayers& all, double read, double written, Works& works) {
  const double cells = all.steps * all.layers * all.directions;
  const double units = all.rows * all.layers * all.directions * all.hidden;
  Work& work = works.emplace_back(
      memory_work(all.element_bytes * read * units, all.element_bytes * written * units));
  work.footprint_bytes /= std::max(cells, 1.0); // one cell at a time
  work.kernels = cells;
  double diagonals = 0;
  for_each_diagonal(all, [&](double /*width*/, double count) { diagonals += count; });
  Work& waits = works.emplace_back(
      MemoryShape{.access = Access::Factorization, .rows = kColumnsPerStep * diagonals});
  waits.kernels = 0;
}

// Adds a kernel that reads and writes these numbers for each output of a layer, between the layers.
void add_dropout(const RecurrentLayers& all, double read, double written, Works& works) {
  if (!all.drops_out || all.layers < 2) {
    return;
  }
  const double bytes =
      all.element_bytes * all.rows * all.directions * all.state() * (all.layers - 1);
  works.push_back(memory_work(read * bytes, written * bytes));
  works.back().kernels = all.layers - 1;
}

} // namespace

Precision precision_of_recurrent(at::ScalarType dtype) {
  const Precision precision = precision_of(dtype, Family::Product);
  if (dtype != at::kFloat) {
    return precision;
  }
  const bool allows_tf32 =
      at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::RNN) ==
      at::Float32Precision::TF32;
  return allows_tf32 ? Precision::Tfloat32 : Precision::Float32;
}

Works recurrent_forward(const RecurrentLayers& all) {
  Works works;
  const double columns = all.gates * all.hidden;
  const double samples = all.rows / std::max(all.steps, 1.0);
  for (double layer = 0; layer < all.layers; ++layer) {
    add_products(all, all.rows, columns * all.directions, all.inputs_of(layer), 1, 1, works);
  }
  for_each_diagonal(all, [&](double width, double count) {
    add_products(all, samples, columns * width, all.state(), count, count * width, works);
    if (all.projected > 0) {
      add_products(all, samples, all.projected * width, all.hidden, count, count * width, works);
    }
  });
  // Both parts of the gates and the old cell; the gates for the backward pass, the cell, the state.
  add_cells(all, 2 * all.gates + 1, all.gates + 2, works);
  add_dropout(all, 1, 1.25, works); // the mask has a byte for each number
  return works;
}

Works recurrent_backward(const RecurrentLayers& all, bool by_weights) {
  Works works;
  const double columns = all.gates * all.hidden;
  const double samples = all.rows / std::max(all.steps, 1.0);
  add_dropout(all, 1.25, 1, works);
  // The gates, both cells, and the gradients of cell and state; those of the gates and the cell.
  add_cells(all, all.gates + 4, all.gates + 1, works);
  for_each_diagonal(all, [&](double width, double count) {
    add_products(all, samples, all.state() * width, columns, count, count * width, works);
    if (all.projected > 0) {
      add_products(all, samples, all.hidden * width, all.projected, count, count * width, works);
    }
  });
  const double sides = all.directions;
  for (double layer = 0; layer < all.layers; ++layer) {
    const double inputs = all.inputs_of(layer);
    add_products(all, all.rows, inputs, columns * sides, 1, 1, works);
    if (by_weights) {
      add_products(all, columns * sides, inputs, all.rows, 1, 1, works);
      add_products(all, columns, all.state(), all.rows, sides, sides, works);
      if (all.projected > 0) {
        add_products(all, all.projected, all.hidden, all.rows, sides, sides, works);
      }
    }
  }
  return works;
}

} // namespace anyrig::virtual_gpu
