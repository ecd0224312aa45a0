// uniform_, normal_, random_ and the other distributions, with the numbers of a GPU for the same
// seed.
//
// PyTorch's own templates check the arguments and prepare the iterator, as for CUDA. The numbers of
// CUDA's kernel are drawn here (launch_geometry.h, curand_values.h, random_transforms.h). In
// ShapeOnly nothing is written, but the generator advances by the same amount.
//
// Longer than 400 lines: each distribution has one kernel, and all share the same templates, whose
// headers take longer to compile than the kernels.

#include "operators/kernels.h"

#include "dispatch/shape_only.h"
#include "hazards/write_watch.h"
#include "memory/known_values.h"
#include "random/curand_values.h"
#include "random/generator.h"
#include "random/random_source.h"
#include "random/random_transforms.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/DistributionsHelper.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

namespace anyrig::virtual_gpu {
namespace {

namespace templates = at::native::templates;
using Iterator = at::TensorIteratorBase;
using OptionalGenerator = std::optional<at::Generator>;

// The addresses of an iterator's elements. The kind of strides is checked at run time for each
// element, so that the many kernels below are compiled once.
struct ElementAddresses {
  explicit ElementAddresses(const Iterator& iter)
      : data(static_cast<char*>(iter.data_ptr(0))),
        is_strided(iter.ndim() <= 1),
        stride(iter.ndim() == 1 ? iter.strides(0)[0] : 0),
        shape(iter.shape()),
        byte_strides(iter.strides(0)) {}

  char* of(uint64_t element) const {
    return data + (is_strided ? static_cast<int64_t>(element) * stride : offset_of(element));
  }

  // In the iterator's order: its first dimension is the innermost.
  int64_t offset_of(uint64_t element) const {
    auto rest = static_cast<int64_t>(element);
    int64_t offset = 0;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      offset += rest % shape[dim] * byte_strides[dim];
      rest /= shape[dim];
    }
    return offset;
  }

  char* data;
  bool is_strided; // one stride, or one element
  int64_t stride; // in bytes
  at::IntArrayRef shape;
  at::IntArrayRef byte_strides;
};

// Runs the threads of a launch in ranges on PyTorch's intra-op threads.
template <class Draw, class Store>
void run_in_parallel(const Launch& launch, PhiloxPosition start, Draw draw, Store store) {
  constexpr uint64_t kNumbersPerRange = 32768; // large enough to be worth a thread
  const uint64_t threads = std::min(launch.threads, launch.elements);
  const uint64_t grain = std::max<uint64_t>(1, kNumbersPerRange * threads / launch.elements);
  at::parallel_for(
      0, static_cast<int64_t>(threads), static_cast<int64_t>(grain),
      [&](int64_t begin, int64_t end) {
        run_threads(
            launch, start, static_cast<uint64_t>(begin), static_cast<uint64_t>(end), draw, store);
      });
}

// distribution_nullary_kernel of aten/src/ATen/native/cuda/DistributionTemplates.h.
template <class T, class Draw, class Transform>
void fill(Iterator& iter, const OptionalGenerator& generator, Draw draw, Transform transform) {
  const auto count = static_cast<uint64_t>(iter.numel());
  if (count == 0 || is_fake(iter.tensor_base(0))) {
    return;
  }
  check_drawn_on_gpu(iter.device(0));
  if (C10_UNLIKELY(watches_writes())) {
    note_write(iter.tensor_base(0));
  }
  const auto device = iter.device(0).index();
  const auto per_draw = draw(PhiloxWords{}).size();
  const auto launch = plan_launch(count, per_draw, multiprocessors(device));
  const auto start = take_numbers(generator, device, launch.increment);
  if (!iter.can_use_32bit_indexing()) {
    for (auto& part : iter.with_32bit_indexing()) {
      fill<T>(part, generator, draw, transform);
    }
    return;
  }
  charge_kernel(device, static_cast<int64_t>(count * sizeof(T)));
  if (shape_only()) {
    const bool draws_integers = at::isIntegralType(iter.dtype(), /*includeBool=*/true);
    forget_values(
        iter.tensor_base(0), draws_integers ? WhyUnknown::DrawnIntegers : WhyUnknown::DrawnNumbers);
    return;
  }
  const ElementAddresses addresses(iter);
  run_in_parallel(launch, start, draw, [=](uint64_t element, auto value) {
    *reinterpret_cast<T*>(addresses.of(element)) = transform(value);
  });
}

template <class T, class Transform>
void fill_uniform(Iterator& iter, const OptionalGenerator& generator, Transform transform) {
  if constexpr (std::is_same_v<T, double>) {
    fill<T>(iter, generator, draw_uniform2, transform);
  } else {
    fill<T>(iter, generator, draw_uniform4, transform);
  }
}

template <class T, class Transform>
void fill_normal(Iterator& iter, const OptionalGenerator& generator, Transform transform) {
  if constexpr (std::is_same_v<T, double>) {
    fill<T>(iter, generator, draw_normal2, transform);
  } else {
    fill<T>(iter, generator, draw_normal4, transform);
  }
}

// Raises NotImplementedError, with the message of CUDA's kernel `name`, if the dtype is
// unsupported.
void check_type(const Iterator& iter, const char* name, bool is_supported) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_supported, '"', name, "\" not implemented for '", toString(iter.dtype()), "'");
}

// Calls `run` with a zero of the elements' type.
template <class Run>
void for_floating(const Iterator& iter, const char* name, Run run) {
  check_type(iter, name, at::isFloatingType(iter.dtype()));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, iter.dtype(), "random", [&] { run(scalar_t{}); });
}

template <class Run>
void for_numbers(const Iterator& iter, const char* name, Run run) {
  check_type(iter, name, !at::isComplexType(iter.dtype()));
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, iter.dtype(), "random", [&] { run(scalar_t{}); });
}

// The type in which T is computed: float for half precision, and for integers made from a uniform
// number.
template <class T>
using Math = at::opmath_type<T>;
template <class T>
using Discrete = typename at::DiscreteDistributionType<T>::type;

// PyTorch's templates take each distribution as a class template over the generator.

template <class>
struct Uniform {
  void operator()(Iterator& iter, double from, double to, const OptionalGenerator& generator) {
    for_floating(iter, "uniform_kernel_cuda", [&](auto zero) {
      using T = decltype(zero);
      fill_uniform<T>(iter, generator, ToUniform<T, Math<T>>(from, to));
    });
  }
};

template <class>
struct Normal {
  void operator()(
      const at::TensorBase& self,
      double mean,
      double std,
      const OptionalGenerator& generator) {
    auto iter = at::TensorIterator::borrowing_nullary_op(self);
    for_floating(iter, "normal_kernel_cuda", [&](auto zero) {
      using T = decltype(zero);
      using C = Math<T>;
      fill_normal<T>(iter, generator, ToNormal<T, C>{static_cast<C>(mean), static_cast<C>(std)});
    });
  }
};

template <class>
struct LogNormal {
  void operator()(Iterator& iter, double mean, double std, const OptionalGenerator& generator) {
    for_floating(iter, "log_normal_cuda", [&](auto zero) {
      using T = decltype(zero);
      using C = Math<T>;
      fill_normal<T>(iter, generator, ToLogNormal<T, C>{static_cast<C>(mean), static_cast<C>(std)});
    });
  }
};

template <class>
struct Exponential {
  void operator()(Iterator& iter, double rate, const OptionalGenerator& generator) {
    TORCH_CHECK(
        at::isFloatingType(iter.dtype()),
        "Exponential distribution is a continuous probability distribution. dtype must be a "
        "floating point but you specified ",
        iter.dtype());
    for_floating(iter, "exponential_cuda", [&](auto zero) {
      using T = decltype(zero);
      using C = Math<T>;
      fill_uniform<T>(iter, generator, ToExponential<T, C>{static_cast<C>(rate)});
    });
  }
};

template <class>
struct Cauchy {
  void operator()(Iterator& iter, double median, double sigma, const OptionalGenerator& generator) {
    for_floating(iter, "cauchy_cuda", [&](auto zero) {
      using T = decltype(zero);
      using C = Math<T>;
      fill_uniform<T>(
          iter, generator, ToCauchy<T, C>{static_cast<C>(median), static_cast<C>(sigma)});
    });
  }
};

template <class>
struct Geometric {
  void operator()(Iterator& iter, double p, const OptionalGenerator& generator) {
    check_type(iter, "geometric_cuda", iter.dtype() != at::kBool);
    for_numbers(iter, "geometric_cuda", [&](auto zero) {
      using T = decltype(zero);
      fill_uniform<T>(iter, generator, ToGeometric<T, Discrete<T>>(p));
    });
  }
};

template <class>
struct Bernoulli {
  void operator()(const at::TensorBase& self, double p, const OptionalGenerator& generator) {
    auto iter = at::TensorIterator::borrowing_nullary_op(self);
    for_numbers(iter, "bernoulli_scalar_cuda_", [&](auto zero) {
      using T = decltype(zero);
      fill_uniform<T>(iter, generator, ToBernoulli<T, Discrete<T>>(p));
    });
  }
};

template <class>
struct RandomInRange {
  void operator()(
      Iterator& iter,
      uint64_t range,
      int64_t base,
      const OptionalGenerator& generator) {
    const auto run = [&](auto zero) {
      using T = decltype(zero);
      if (range >= kSmallestRangeOf64Bits) {
        fill<T>(iter, generator, draw_words2, ToIntegerInRange<T, uint64_t>{range, base});
      } else {
        fill<T>(iter, generator, draw_words4, ToIntegerInRange<T, uint32_t>{range, base});
      }
    };
    AT_DISPATCH_V2(
        iter.dtype(), "random_from_to_kernel_cuda", AT_WRAP([&] { run(scalar_t{}); }),
        AT_EXPAND(AT_ALL_TYPES), at::kBool, at::kHalf, at::kBFloat16,
        AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  }

  // random_ from the lowest 64-bit integer to the highest.
  void operator()(Iterator& iter, const OptionalGenerator& generator) {
    for_numbers(iter, "random_full_64_bits_range_kernel_cuda", [&](auto zero) {
      using T = decltype(zero);
      constexpr bool is_supported = std::is_same_v<T, int64_t> || std::is_floating_point_v<T> ||
          std::is_same_v<T, at::BFloat16>;
      TORCH_CHECK(
          is_supported,
          "random_full_64_bits_range_kernel_cuda handles only int64, double, float and bfloat16");
      fill<T>(iter, generator, draw_words2, ToFullRange<T>{});
    });
  }
};

template <class>
struct Random {
  void operator()(Iterator& iter, const OptionalGenerator& generator) {
    for_numbers(iter, "random_kernel_cuda", [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_same_v<T, double> || std::is_same_v<T, int64_t>) {
        fill<T>(iter, generator, draw_words2, ToAnyInteger<T, uint64_t>{});
      } else {
        fill<T>(iter, generator, draw_words4, ToAnyInteger<T, uint32_t>{});
      }
    });
  }
};

at::Tensor& uniform_(at::Tensor& self, double from, double to, OptionalGenerator generator) {
  return templates::uniform_impl_<Uniform, VirtualGenerator>(self, from, to, generator);
}

at::Tensor& normal_(at::Tensor& self, double mean, double std, OptionalGenerator generator) {
  return templates::normal_impl_<Normal, VirtualGenerator>(self, mean, std, generator);
}

at::Tensor& log_normal_(at::Tensor& self, double mean, double std, OptionalGenerator generator) {
  return templates::log_normal_impl_<LogNormal, VirtualGenerator>(self, mean, std, generator);
}

at::Tensor& exponential_(at::Tensor& self, double rate, OptionalGenerator generator) {
  return templates::exponential_impl_<Exponential, VirtualGenerator>(self, rate, generator);
}

at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, OptionalGenerator generator) {
  return templates::cauchy_impl_<Cauchy, VirtualGenerator>(self, median, sigma, generator);
}

at::Tensor& geometric_(at::Tensor& self, double p, OptionalGenerator generator) {
  return templates::geometric_impl_<Geometric, VirtualGenerator>(self, p, generator);
}

at::Tensor& bernoulli_scalar(at::Tensor& self, double p, OptionalGenerator generator) {
  return templates::bernoulli_impl_<Bernoulli, VirtualGenerator>(self, p, generator);
}

at::Tensor& random_from_to(
    at::Tensor& self,
    int64_t from,
    std::optional<int64_t> to,
    OptionalGenerator generator) {
  return templates::random_from_to_impl<RandomInRange, VirtualGenerator>(self, from, to, generator);
}

at::Tensor& random_to(at::Tensor& self, int64_t to, OptionalGenerator generator) {
  return random_from_to(self, 0, to, std::move(generator));
}

at::Tensor& random_(at::Tensor& self, OptionalGenerator generator) {
  return templates::random_impl<Random, VirtualGenerator>(self, generator);
}

// ---- normal with tensors

// PyTorch's template reads `std` to reject negative values. ShapeOnly has no values, but takes the
// same steps and so allocates the same bytes.
void read_bounds(const at::Tensor& std) {
  if (std.numel() > 0) {
    std.min().ge(0);
  }
}

at::Tensor& normal_tensor_float_out(
    const at::Tensor& mean,
    double std,
    OptionalGenerator generator,
    at::Tensor& result) {
  return templates::normal_out_impl<Normal, VirtualGenerator>(result, mean, std, generator);
}

at::Tensor& normal_float_tensor_out(
    double mean,
    const at::Tensor& std,
    OptionalGenerator generator,
    at::Tensor& result) {
  if (!shape_only()) {
    return templates::normal_out_impl<Normal, VirtualGenerator>(result, mean, std, generator);
  }
  read_bounds(std);
  const auto mean_tensor = at::full({}, mean, result.options());
  at::native::resize_output(result, std.sizes());
  return normal_(result, 0, 1, std::move(generator)).mul_(std).add_(mean_tensor);
}

at::Tensor& normal_tensor_tensor_out(
    const at::Tensor& mean,
    const at::Tensor& std,
    OptionalGenerator generator,
    at::Tensor& result) {
  if (!shape_only()) {
    return templates::normal_out_impl<Normal, VirtualGenerator>(result, mean, std, generator);
  }
  read_bounds(std);
  at::native::resize_output(result, at::infer_size(mean.sizes(), std.sizes()));
  return normal_(result, 0, 1, std::move(generator)).mul_(std).add_(mean);
}

at::Tensor normal_tensor_float(const at::Tensor& mean, double std, OptionalGenerator generator) {
  auto result = at::empty_like(mean, at::MemoryFormat::Contiguous);
  return normal_tensor_float_out(mean, std, std::move(generator), result);
}

at::Tensor normal_float_tensor(double mean, const at::Tensor& std, OptionalGenerator generator) {
  auto result = at::empty_like(std, at::MemoryFormat::Contiguous);
  return normal_float_tensor_out(mean, std, std::move(generator), result);
}

at::Tensor normal_tensor_tensor(
    const at::Tensor& mean,
    const at::Tensor& std,
    OptionalGenerator generator) {
  auto result = at::empty(at::infer_size(mean.sizes(), std.sizes()), mean.options());
  return normal_tensor_tensor_out(mean, std, std::move(generator), result);
}

} // namespace

void register_random_kernels(torch::Library& library, Names& names) {
  const auto add = [&](const char* name, auto kernel) {
    register_kernel(library, names, name, kernel);
  };
  add("uniform_", uniform_);
  add("normal_", normal_);
  add("log_normal_", log_normal_);
  add("exponential_", exponential_);
  add("cauchy_", cauchy_);
  add("geometric_", geometric_);
  add("bernoulli_.float", bernoulli_scalar);
  add("random_.from", random_from_to);
  add("random_.to", random_to);
  add("random_", random_);
  add("normal.Tensor_float", normal_tensor_float);
  add("normal.Tensor_float_out", normal_tensor_float_out);
  add("normal.float_Tensor", normal_float_tensor);
  add("normal.float_Tensor_out", normal_float_tensor_out);
  add("normal.Tensor_Tensor", normal_tensor_tensor);
  add("normal.Tensor_Tensor_out", normal_tensor_tensor_out);
}

} // namespace anyrig::virtual_gpu
