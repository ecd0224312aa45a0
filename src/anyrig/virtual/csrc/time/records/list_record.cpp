// Records of operators on lists of tensors: `_foreach_*` and the fused optimizers. Their kernels
// take the tensors in chunks, and one launch takes a limited number of tensors and of chunks:
// aten/src/ATen/native/cuda/MultiTensorApply.cuh.
#include "time/records/list_record.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kChunkElements = 65536;
constexpr int64_t kChunksPerLaunch = 320;
// By the number of lists, from one on.
constexpr std::array<int64_t, 5> kTensorsPerLaunch = {110, 64, 48, 36, 30};

// Returns the launches for lists of tensors of these sizes, `lists` of them.
double count_launches(Arguments tensors, size_t lists) {
  const int64_t limit =
      kTensorsPerLaunch[std::clamp<size_t>(lists, 1, kTensorsPerLaunch.size()) - 1];
  int64_t launches = 0, in_launch = 0, chunks_in_launch = 0;
  for (const auto& tensor : tensors) {
    int64_t chunks = (tensor.toTensor().numel() + kChunkElements - 1) / kChunkElements;
    if (chunks == 0) {
      continue;
    }
    ++in_launch;
    chunks_in_launch += chunks;
    launches += chunks_in_launch / kChunksPerLaunch;
    chunks_in_launch %= kChunksPerLaunch;
    if (chunks_in_launch == 0) {
      in_launch = 0;
    } else if (in_launch == limit) {
      ++launches;
      in_launch = chunks_in_launch = 0;
    }
  }
  return static_cast<double>(launches + (chunks_in_launch > 0 ? 1 : 0));
}

void describe_list(const WorkRules&, Arguments arguments, Description& description) {
  Work& work = description.works.emplace_back();
  work.memory.access = Access::List;
  size_t lists = 0;
  for (const auto& argument : arguments) {
    lists += argument.isTensorList() ? 1 : 0;
  }
  for (const auto& argument : arguments) {
    if (argument.isTensorList()) {
      work.kernels = std::max(1.0, count_launches(argument.toListRef(), lists));
      return;
    }
  }
}

} // namespace

Describe find_list(const std::string& name) {
  const std::string_view text = name;
  for (const std::string_view beginning :
       {"_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach_"}) {
    if (text.substr(0, beginning.size()) == beginning) {
      return describe_list;
    }
  }
  return nullptr;
}

} // namespace anyrig::virtual_gpu
