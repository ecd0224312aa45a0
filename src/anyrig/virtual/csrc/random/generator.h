// The random number generator of a virtual device: a Philox seed and an offset, as on CUDA.
#pragma once

#include "device/device.h"

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace anyrig::virtual_gpu {

// The state that generators share after `graphsafe_get_state`.
struct PhiloxState : c10::intrusive_ptr_target {
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0; // in 32-bit numbers drawn; a multiple of four
};

class VirtualGenerator final : public c10::GeneratorImpl {
 public:
  explicit VirtualGenerator(
      c10::DeviceIndex device,
      c10::intrusive_ptr<PhiloxState> state = c10::make_intrusive<PhiloxState>());

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& generator) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  const c10::intrusive_ptr<PhiloxState>& state() const { return state_; }
  // Sets the state to draw from and returns the previous one.
  c10::intrusive_ptr<PhiloxState> exchange_state(c10::intrusive_ptr<PhiloxState> state);

  static c10::DeviceType device_type() { return kDeviceType; }

  // Reserves the numbers of one launch in which each thread draws `per_thread`: returns (seed,
  // offset) at the start of the launch and advances the offset. The caller holds `mutex_`.
  std::pair<uint64_t, uint64_t> take(uint64_t per_thread);

  // Returns a CPU generator for kernels whose launch is not modelled, in which each thread reserves
  // `per_thread` numbers. It depends only on the seed and the offset, so that restoring the state
  // repeats its numbers.
  at::Generator take_host_generator(uint64_t per_thread = 4);

 private:
  VirtualGenerator* clone_impl() const override;
  // Returns whether the device's current stream is captured into a CUDA graph.
  bool is_captured() const;
  void check_not_captured(const char* attempt) const;

  c10::intrusive_ptr<PhiloxState> state_;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

// Returns the generator to draw from: `given`, or the default generator of `device`. Raises
// RuntimeError if `given` is not a generator of a virtual device.
VirtualGenerator& generator_of(const std::optional<at::Generator>& given, c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
