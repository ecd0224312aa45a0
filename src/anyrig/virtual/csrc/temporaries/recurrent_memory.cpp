#include "temporaries/recurrent_memory.h"

#include <algorithm>
#include <cmath>

namespace anyrig::virtual_gpu {
namespace {

constexpr double kHeaderBytes = 256;

double samples_of(const RecurrentLayers& all) {
  return all.rows / std::max(all.steps, 1.0);
}

double count_weights(const RecurrentLayers& all) {
  double weights = 0;
  for (double layer = 0; layer < all.layers; ++layer) {
    weights += all.directions *
        (all.gates * all.hidden * (all.inputs_of(layer) + all.state()) +
         all.projected * all.hidden);
  }
  return weights;
}

} // namespace

// For each hidden unit, step and layer: the gates, and what else the backward pass needs. The
// result of the last layer is the operator's own. Dropout keeps a bit for each number.
int64_t recurrent_reserve_bytes(const RecurrentLayers& all) {
  const double kept = all.gates == 4 ? 6 : all.gates == 3 ? 7 : 2;
  const double units = all.rows * all.directions * all.hidden;
  const double projected = all.rows * all.directions * all.projected;
  const double numbers =
      units * (kept * all.layers - (all.projected > 0 ? 0 : 1)) + 3 * all.layers * projected;
  const double masks =
      all.drops_out ? all.rows * all.directions * all.state() * (all.layers - 1) / 8 : 0;
  return static_cast<int64_t>(kHeaderBytes + numbers * all.element_bytes + masks);
}

// A copy of the weights, the gates of a layer with its input, some states, and 8 MiB for each layer.
int64_t recurrent_workspace_bytes(const RecurrentLayers& all) {
  constexpr double kLayerBytes = 8.0 * 1024 * 1024;
  constexpr double kAlignment = 32, kSampleBytes = 8;
  const double sides = all.layers * all.directions;
  const double units = all.rows * all.hidden;
  const double steps = all.directions > 1 ? 15 * units : 5 * units + all.rows * all.inputs;
  const double states = samples_of(all) * all.hidden * (all.gates == 4 ? 10 : 5) * sides;
  const double header = std::ceil((kHeaderBytes + kSampleBytes * samples_of(all)) / kAlignment);
  return static_cast<int64_t>(
      kLayerBytes * sides + all.element_bytes * (count_weights(all) + steps + states) +
      header * kAlignment);
}

} // namespace anyrig::virtual_gpu
