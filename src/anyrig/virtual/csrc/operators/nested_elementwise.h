#pragma once

namespace anyrig::virtual_gpu {

// Registers sums and products of a nested tensor and a dense one with one row for each component.
void register_nested_elementwise();

} // namespace anyrig::virtual_gpu
