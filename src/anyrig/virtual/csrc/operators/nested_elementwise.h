#pragma once

namespace anyrig::virtual_gpu {

// Sums and products of a nested tensor and dense rows.
void register_nested_elementwise();

} // namespace anyrig::virtual_gpu
