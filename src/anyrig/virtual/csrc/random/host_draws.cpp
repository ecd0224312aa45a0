// Distributions whose numbers a CPU kernel draws, and how many of the GPU's random numbers they
// consume: the launches of aten/src/ATen/native/cuda/Distributions.cu.

#include "dispatch/operator_record.h"

namespace anyrig::virtual_gpu {
namespace {

const DeclaredRecords kHostDraws({
    {{"poisson"}, {.reserved_numbers = 20, .draws_by_apply2 = true}},
    {{"_standard_gamma", "_sample_dirichlet"}, {.reserved_numbers = 10}},
    {{"binomial"}, {.reserved_numbers = 42}},
});

} // namespace

} // namespace anyrig::virtual_gpu
