#include "random/random_source.h"

#include "device/device.h"
#include "random/generator.h"
#include "time/clock.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <limits>
#include <mutex>

namespace anyrig::virtual_gpu {
namespace {

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
uint32_t threads_per_multiprocessor(int major, int minor) {
  if (major == 7 && minor == 5) {
    return 1024;
  }
  const bool is_ampere_or_ada_graphics = major == 8 && minor > 0;
  const bool is_blackwell_graphics = major >= 11;
  return is_ampere_or_ada_graphics || is_blackwell_graphics ? 1536 : 2048;
}

} // namespace

Multiprocessors multiprocessors(c10::DeviceIndex device) {
  const DeviceFacts& facts = devices()[device];
  const auto threads = threads_per_multiprocessor(facts.capability_major, facts.capability_minor);
  if (facts.multiprocessors == 0) {
    return {std::numeric_limits<uint32_t>::max(), threads};
  }
  return {static_cast<uint32_t>(facts.multiprocessors), threads};
}

// The message is that of check_generator in aten/src/ATen/core/Generator.h.
void check_drawn_on_gpu(c10::Device device) {
  TORCH_CHECK(
      device.type() == kDeviceType, "Expected a '", device.type(),
      "' device type for generator but found 'cuda'");
}

PhiloxPosition take_numbers(
    const std::optional<at::Generator>& generator,
    c10::DeviceIndex device,
    uint64_t increment) {
  VirtualGenerator& source = generator_of(generator, device);
  std::lock_guard<std::mutex> guard(source.mutex_);
  const auto [seed, offset] = source.take(increment);
  return {seed, offset};
}

void charge_kernel(c10::DeviceIndex device, int64_t bytes) {
  auto& clock = Clock::get();
  if (clock.charges() && bytes > 0) {
    const RunningOperator running("random numbers");
    clock.run(current_stream(device), memory_work(0, static_cast<double>(bytes), Access::Random));
  }
}

bool is_fake(const at::TensorBase& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Meta);
}

} // namespace anyrig::virtual_gpu
