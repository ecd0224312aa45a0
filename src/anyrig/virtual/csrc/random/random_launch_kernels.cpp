// Dropout, bernoulli_ with a tensor of probabilities, randperm and multinomial, which have their
// own launches (random_launches.h) or consist of other operators.

#include "operators/kernels.h"

#include "dispatch/device_assert.h"
#include "dispatch/shape_only.h"
#include "dispatch/twin.h"
#include "hazards/write_watch.h"
#include "memory/known_values.h"
#include "memory/lazy_clones.h"
#include "random/generator.h"
#include "random/random_launches.h"
#include "random/random_source.h"
#include "temporaries/cub.h"

#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

namespace anyrig::virtual_gpu {
namespace {

using OptionalGenerator = std::optional<at::Generator>;

// ---- native_dropout, aten/src/ATen/native/cuda/Dropout.cu

// Returns the elements in the kernel's order: memory order for a dense tensor, otherwise index
// order.
at::Tensor in_kernel_order(const at::Tensor& twin) {
  return twin.is_non_overlapping_and_dense() ? twin.as_strided({twin.numel()}, {1})
                                             : twin.contiguous();
}

template <class T>
void drop_out(
    const at::Tensor& source,
    const at::Tensor& result,
    const at::Tensor& mask,
    const Launch& launch,
    PhiloxPosition start,
    int64_t vector_size,
    double keep_probability) {
  using C = at::opmath_type<T>;
  const auto probability = static_cast<C>(keep_probability);
  const auto scale = static_cast<C>(1.0 / probability);
  const T* from = source.const_data_ptr<T>();
  T* to = result.mutable_data_ptr<T>();
  bool* kept_at = mask.mutable_data_ptr<bool>();
  run_dropout(launch, start, vector_size, probability, [=](uint64_t element, bool kept) {
    to[element] = static_cast<T>(static_cast<C>(from[element]) * static_cast<C>(kept) * scale);
    kept_at[element] = kept;
  });
}

std::tuple<at::Tensor, at::Tensor> native_dropout(
    const at::Tensor& self,
    double p,
    std::optional<bool> train) {
  const auto mask_options = self.options().dtype(at::kBool);
  if (!train.value_or(true)) {
    return {self.clone(), at::ones_like(self, mask_options)};
  }
  if (p == 1) {
    return {at::zeros_like(self), at::zeros_like(self, mask_options)};
  }
  auto mask = at::empty_like(self, mask_options);
  if (self.numel() == 0) {
    return {self.clone(), mask};
  }
  auto result = at::empty_like(self);
  if (is_fake(self)) {
    return {result, mask};
  }
  const auto device = self.device().index();
  const auto launch = plan_dropout(static_cast<uint64_t>(self.numel()), multiprocessors(device));
  const auto start = take_numbers(std::nullopt, device, launch.increment);
  charge_kernel(device, static_cast<int64_t>(2 * self.nbytes() + mask.nbytes()));
  if (shape_only()) {
    forget_values(result, WhyUnknown::DrawnNumbers);
    forget_values(mask, WhyUnknown::DrawnNumbers);
    return {result, mask};
  }
  const auto vector_size = dropout_vector_size(
      self.numel(), self.element_size(),
      // the address modulo 512 on a GPU, which aligns memory to at least 512 bytes
      static_cast<uint64_t>(self.storage_offset()) * self.element_size(),
      self.is_non_overlapping_and_dense());
  const auto result_twin = twin_of(result);
  const auto mask_twin = twin_of(mask);
  const auto counted_result = in_kernel_order(result_twin);
  const auto counted_mask = in_kernel_order(mask_twin);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, self.scalar_type(), "fused_dropout", [&] {
        drop_out<scalar_t>(
            in_kernel_order(twin_of(self)), counted_result, counted_mask, launch, start,
            vector_size, 1. - p);
      });
  return {result, mask};
}

// ---- bernoulli_ with a tensor

template <class T, class Probability>
void write_bernoulli(
    const at::Tensor& result,
    const at::Tensor& probabilities,
    PhiloxPosition start) {
  T* to = result.mutable_data_ptr<T>();
  const Probability* probability = probabilities.const_data_ptr<Probability>();
  const auto count = static_cast<uint64_t>(result.numel());
  run_bernoulli(count, start, [=](uint64_t element, float value) {
    to[element] = static_cast<T>(value <= probability[element]);
  });
}

// The kernel visits both tensors in memory order if their layouts match, otherwise in index order.
// For a contiguous result the two orders are the same.
at::Tensor& bernoulli_of_tensor(
    at::Tensor& self,
    const at::Tensor& p,
    OptionalGenerator generator) {
  if (self.numel() == 0 || is_fake(self)) {
    return self;
  }
  at::assert_no_internal_overlap(self);
  check_drawn_on_gpu(self.device());
  if (C10_UNLIKELY(watches_writes())) {
    note_write(self);
  }
  const auto device = self.device().index();
  const auto start = take_numbers(generator, device, kBernoulliIncrement);
  TORCH_CHECK(
      at::isFloatingType(p.scalar_type()),
      "expected probabilities tensor to have floating type, got ", p.scalar_type());
  const auto probability_type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto on_device = p.to(self.options().dtype(probability_type));
  const auto probabilities = at::expand_inplace(self, on_device);
  charge_kernel(device, static_cast<int64_t>(2 * self.nbytes()));
  if (shape_only()) {
    forget_values(self, WhyUnknown::DrawnIntegers);
    return self;
  }
  give_own_memory(self);
  const auto twin = twin_of(self);
  const auto result = twin.contiguous();
  const auto probabilities_twin = twin_of(*probabilities).contiguous();
  if (!at::logical_and(probabilities_twin >= 0, probabilities_twin <= 1).all().item<bool>()) {
    raise_device_assert("a probability is not between 0 and 1", "aten::bernoulli_", self.device());
  }
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, self.scalar_type(), "bernoulli_tensor_cuda_self_", [&] {
        if constexpr (std::is_same_v<scalar_t, double>) {
          write_bernoulli<double, double>(result, probabilities_twin, start);
        } else {
          write_bernoulli<scalar_t, float>(result, probabilities_twin, start);
        }
      });
  if (!result.is_same(twin)) {
    twin.copy_(result);
  }
  return self;
}

at::Tensor& bernoulli_out(const at::Tensor& p, OptionalGenerator generator, at::Tensor& result) {
  result.resize_(p.sizes());
  return bernoulli_of_tensor(result, p, std::move(generator));
}

// ---- randperm, aten/src/ATen/native/cuda/Randperm.cu

template <class Key>
at::Tensor permute(const at::Tensor& keys, int bits, PhiloxPosition start) {
  const Key* first = keys.const_data_ptr<Key>();
  auto order = permutation_of(std::vector<Key>(first, first + keys.numel()), bits, start);
  return at::from_blob(order.data(), {keys.numel()}, at::kLong).clone();
}

at::Tensor& randperm(int64_t n, OptionalGenerator generator, at::Tensor& result) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  at::native::check_supported_max_int_with_precision(n, result);
  result.resize_({n});
  if (n == 0 || is_fake(result)) {
    return result;
  }
  check_drawn_on_gpu(result.device());
  // Allocated on the device, so that the bytes are counted.
  const auto range = at::arange(n, result.options());
  const int bits = randperm_key_bits(n);
  const bool is_short = bits <= 32;
  const auto keys = at::empty({n}, result.options().dtype(is_short ? at::kInt : at::kLong));
  if (is_short) {
    keys.random_(std::numeric_limits<int>::min(), std::numeric_limits<int>::max(), generator);
  } else {
    keys.random_(
        std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), generator);
  }
  const auto sorted_keys = at::empty_like(keys);
  const auto device = result.device().index();
  const auto key_bytes = static_cast<int64_t>(keys.element_size());
  const auto value_bytes = static_cast<int64_t>(range.element_size());
  adopt(
      {}, radix_sort_bytes(CubGpu::of(device), {n, key_bytes, value_bytes, bits}),
      device); // freed at once
  const auto start = take_numbers(generator, device, static_cast<uint64_t>(n));
  charge_kernel(device, static_cast<int64_t>(2 * (keys.nbytes() + range.nbytes())));
  if (!shape_only()) {
    const auto keys_twin = twin_of(keys);
    twin_of(result).copy_(
        is_short ? permute<int32_t>(keys_twin, bits, start)
                 : permute<int64_t>(keys_twin, bits, start));
  } else {
    forget_values(result, WhyUnknown::DrawnIntegers);
  }
  return result;
}

// ---- multinomial

// For one draw, or without replacement, PyTorch divides the probabilities by exponential numbers
// and takes the largest quotients. Draws with replacement have their own kernel, which is not
// modelled.
bool draws_by_exponentials(int64_t draws, bool replacement) {
  return draws == 1 || !replacement;
}

// Performs the steps of at::native::multinomial_out without its checks of the probabilities, whose
// values are missing in ShapeOnly.
void draw_by_exponentials(
    const at::Tensor& self,
    int64_t draws,
    OptionalGenerator generator,
    at::Tensor& result) {
#if ANYRIG_TORCH_FROM(12)
  const auto [least, most] = at::aminmax(self);
  [[maybe_unused]] const auto is_valid = (most < INFINITY) & (least >= 0);
#else
  [[maybe_unused]] const auto is_valid = (self.max() < INFINITY) & (self.min() >= 0);
#endif
  [[maybe_unused]] const auto is_zero =
      self.dim() == 1 ? self.sum() == 0 : (self.sum(1) == 0).any();
  auto quotients = at::empty_like(self).exponential_(1, std::move(generator));
  at::div_out(quotients, self, quotients);
  if (draws == 1) {
    at::argmax_out(result, quotients, /*dim=*/-1, /*keepdim=*/true);
  } else {
    auto values = at::empty(result.sizes(), self.options());
    at::topk_out(values, result, quotients, draws);
  }
}

at::Tensor& multinomial_out(
    const at::Tensor& self,
    int64_t draws,
    bool replacement,
    OptionalGenerator generator,
    at::Tensor& result) {
  std::optional<c10::Device> common;
  constexpr auto kWrapper = "wrapper_CUDA_out_multinomial_out";
  c10::impl::check_and_update_common_device(common, result, kWrapper, "out");
  c10::impl::check_and_update_common_device(common, self, kWrapper, "self");
  if (!is_fake(self)) {
    check_drawn_on_gpu(self.device());
  }
  const bool by_exponentials = draws_by_exponentials(draws, replacement);
  if (by_exponentials && !shape_only() && !is_fake(self)) {
    return at::native::multinomial_out(self, draws, replacement, std::move(generator), result);
  }
  auto shape = self.sizes().vec();
  TORCH_CHECK(!shape.empty() && shape.size() <= 2, "prob_dist must be 1 or 2 dim");
  shape.back() = draws;
  at::native::resize_output(result, shape);
  if (is_fake(self)) {
    return result;
  }
  if (by_exponentials) {
    draw_by_exponentials(self, draws, std::move(generator), result);
    return result;
  }
  auto host = generator_of(generator, self.device().index()).take_host_generator();
  const auto drawn = [&] {
    try {
      return at::multinomial(twin_of(self), draws, replacement, std::move(host));
    } catch (const c10::Error& error) {
      raise_if_device_assert(error, "aten::multinomial", self.device());
      throw;
    }
  }();
  charge_kernel(self.device().index(), static_cast<int64_t>(self.nbytes() + result.nbytes()));
  if (!shape_only()) {
    twin_of(result).copy_(drawn);
  } else {
    forget_values(result, WhyUnknown::DrawnIntegers);
  }
  return result;
}

at::Tensor multinomial(
    const at::Tensor& self,
    int64_t draws,
    bool replacement,
    OptionalGenerator generator) {
  auto result = at::empty({0}, self.options().dtype(at::kLong));
  return multinomial_out(self, draws, replacement, std::move(generator), result);
}

} // namespace

void register_random_launch_kernels(torch::Library& library, Names& names) {
  const auto add = [&](const char* name, auto kernel) {
    register_kernel(library, names, name, kernel);
  };
  add("native_dropout", native_dropout);
  add("bernoulli_.Tensor", bernoulli_of_tensor);
  add("bernoulli.out", bernoulli_out);
  add("randperm.generator_out", randperm);
  add("multinomial", multinomial);
  add("multinomial.out", multinomial_out);
}

} // namespace anyrig::virtual_gpu
