// Records of recurrent layers, as cuDNN computes them: Appleyard, Kocisky and Blunsom, "Optimizing
// Performance of Recurrent Neural Networks on GPUs", 2016.
//
//   input products    one a layer, over all steps
//   cells             a product and an element-wise kernel; those on a diagonal run side by side
//
//     layer 2     3   4   5           the numbers of the diagonals
//     layer 1     2   3   4
//     layer 0     1   2   3
//                 step 0  1  2
//
// The two directions of a layer run side by side, but both must end before the next layer begins.
// The backward pass walks the diagonals back. The gradient of each weight is one matrix product
// over all steps.
#pragma once

#include "time/records/operator_work.h"

#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

struct RecurrentLayers {
  double steps = 0;
  double rows = 0; // of all steps together: samples of unequal lengths end at different steps
  double layers = 1;
  double directions = 1;
  double gates = 1; // 4 of an LSTM, 3 of a GRU, 1 of an RNN
  double inputs = 0; // numbers that the first layer reads in a row
  double hidden = 0;
  double projected = 0; // numbers in a row of the hidden state, if an LSTM projects it
  bool drops_out = false; // between the layers
  Precision precision = Precision::Float32;
  double element_bytes = 4;

  double state() const { return projected > 0 ? projected : hidden; }
  double inputs_of(double layer) const { return layer == 0 ? inputs : directions * state(); }
};

// Returns the precision of cuDNN's recurrent layers for `dtype`, given the program's TF32 setting.
Precision precision_of_recurrent(at::ScalarType dtype);

Works recurrent_forward(const RecurrentLayers& all);
// `by_weights`: whether any weight needs a gradient. cuDNN always computes those of the input and
// of the states.
Works recurrent_backward(const RecurrentLayers& all, bool by_weights);

} // namespace anyrig::virtual_gpu
