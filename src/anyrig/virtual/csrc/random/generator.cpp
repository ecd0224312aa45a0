#include "random/generator.h"

#include "graphs/cuda_graph.h"
#include "time/streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <cstring>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// aten/src/ATen/cuda/CUDAGeneratorImpl.cpp: the seed, then the offset, 8 bytes each.
constexpr int64_t kSeedBytes = sizeof(uint64_t);
constexpr int64_t kStateBytes = kSeedBytes + sizeof(int64_t);

// One Philox call gives four numbers, and offsets are multiples of four.
constexpr uint64_t kNumbersPerCall = 4;

// The last step of SplitMix64 (Steele, Lea, Flood 2014): maps similar inputs to unrelated outputs.
uint64_t scramble(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

} // namespace

VirtualGenerator::VirtualGenerator(c10::DeviceIndex device, c10::intrusive_ptr<PhiloxState> state)
    : c10::GeneratorImpl(
          c10::Device(kDeviceType, device),
          c10::DispatchKeySet(c10::DispatchKey::CUDA)),
      state_(std::move(state)) {}

void VirtualGenerator::set_current_seed(uint64_t seed) {
  if (is_captured()) {
    TORCH_CHECK(
        state_->seed == seed,
        "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed "
        "is the same as the original seed.");
    return;
  }
  state_->seed = seed;
  state_->offset = 0;
}

uint64_t VirtualGenerator::current_seed() const {
  return state_->seed;
}

uint64_t VirtualGenerator::seed() {
  check_not_captured("Cannot call CUDAGeneratorImpl::seed");
  set_current_seed(c10::detail::getNonDeterministicRandom(/*is_cuda=*/true));
  return current_seed();
}

void VirtualGenerator::set_offset(uint64_t offset) {
  check_not_captured("Cannot call CUDAGeneratorImpl::set_offset");
  TORCH_CHECK(offset % kNumbersPerCall == 0, "offset must be a multiple of 4");
  state_->offset = offset;
}

uint64_t VirtualGenerator::get_offset() const {
  check_not_captured("Cannot call CUDAGeneratorImpl::get_offset");
  return state_->offset;
}

void VirtualGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  const auto bytes = state.numel();
  // PyTorch before 1.5 saved states without an offset.
  TORCH_CHECK(bytes == kStateBytes || bytes == kSeedBytes, "RNG state is wrong size");
  const auto* data = static_cast<const uint8_t*>(state.data());
  uint64_t seed = 0;
  std::memcpy(&seed, data, kSeedBytes);
  uint64_t offset = 0;
  if (bytes == kStateBytes) {
    std::memcpy(&offset, data + kSeedBytes, sizeof(offset));
  }
  set_current_seed(seed);
  set_offset(offset);
}

c10::intrusive_ptr<c10::TensorImpl> VirtualGenerator::get_state() const {
  auto state = at::detail::empty_cpu({kStateBytes}, at::TensorOptions().dtype(at::kByte));
  auto* data = static_cast<uint8_t*>(state.mutable_data_ptr());
  std::memcpy(data, &state_->seed, kSeedBytes);
  std::memcpy(data + kSeedBytes, &state_->offset, sizeof(state_->offset));
  return state.getIntrusivePtr();
}

void VirtualGenerator::graphsafe_set_state(
    const c10::intrusive_ptr<c10::GeneratorImpl>& generator) {
  auto* other = dynamic_cast<VirtualGenerator*>(generator.get());
  TORCH_CHECK(other != nullptr, "Provided pointer must be CUDAGeneratorImpl type");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> VirtualGenerator::graphsafe_get_state() const {
  return c10::make_intrusive<VirtualGenerator>(device().index(), state_);
}

std::pair<uint64_t, uint64_t> VirtualGenerator::take(uint64_t per_thread) {
  const uint64_t increment = (per_thread + kNumbersPerCall - 1) / kNumbersPerCall * kNumbersPerCall;
  if (C10_UNLIKELY(is_captured())) {
    CudaGraph& graph = *CudaGraph::of_capture(capture_of(current_stream(device().index())));
    const uint64_t offset = graph.take_numbers(state_, increment);
    record_draw({c10::intrusive_ptr<VirtualGenerator>::reclaim_copy(this), state_, offset});
    return {state_->seed, offset};
  }
  const uint64_t offset = state_->offset;
  state_->offset += increment;
  return {state_->seed, offset};
}

c10::intrusive_ptr<PhiloxState> VirtualGenerator::exchange_state(
    c10::intrusive_ptr<PhiloxState> state) {
  return std::exchange(state_, std::move(state));
}

bool VirtualGenerator::is_captured() const {
  return is_capture_underway() && capture_of(current_stream(device().index())) != kNoCapture;
}

void VirtualGenerator::check_not_captured(const char* attempt) const {
  TORCH_CHECK(
      !is_captured(), attempt,
      " during CUDA graph capture. If you need this call to be captured, please file an "
      "issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive");
}

at::Generator VirtualGenerator::take_host_generator(uint64_t per_thread) {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto [seed, offset] = take(per_thread);
  return at::make_generator<at::CPUGeneratorImpl>(scramble(seed ^ scramble(offset)));
}

VirtualGenerator* VirtualGenerator::clone_impl() const {
  auto state = c10::make_intrusive<PhiloxState>();
  state->seed = state_->seed;
  state->offset = state_->offset;
  return new VirtualGenerator(device().index(), std::move(state));
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* generators = [] { // never freed: threads may draw while the process ends
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < device_count(); ++i) {
      made->push_back(at::make_generator<VirtualGenerator>(static_cast<c10::DeviceIndex>(i)));
      made->back().seed();
    }
    return made;
  }();
  const int64_t index = device < 0 ? current_device() : device;
  check_device_index(index);
  return (*generators)[index];
}

at::Generator new_generator(c10::DeviceIndex device) {
  const int64_t index = device < 0 ? current_device() : device;
  check_device_index(index);
  return at::make_generator<VirtualGenerator>(static_cast<c10::DeviceIndex>(index));
}

VirtualGenerator& generator_of(const std::optional<at::Generator>& given, c10::DeviceIndex device) {
  if (!given.has_value() || !given->defined()) {
    return *default_generator(device).get<VirtualGenerator>();
  }
  TORCH_CHECK(
      given->device().type() == kDeviceType,
      "Expected a 'cuda' device type for generator but found '", given->device().type(), "'");
  return *given->get<VirtualGenerator>();
}

} // namespace anyrig::virtual_gpu
