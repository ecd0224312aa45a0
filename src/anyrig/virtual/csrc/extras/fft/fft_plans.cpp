#include "extras/fft/fft_plans.h"

#include "device/device.h"
#include "device/hooks.h"

#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

using at::DimVector;
using at::IntArrayRef;

enum class Transform : int64_t { kOfComplex, kToComplex, kToReal };

// The key of a plan: transform, dtype, sizes and strides.
using Plan = std::vector<int64_t>;

// The LRU cache of one device's plans: CuFFTParamsLRUCache of
// aten/src/ATen/native/cuda/CuFFTPlanCache.h.
class Plans {
 public:
  void use(Plan plan) {
    if (most_ == 0) {
      return;
    }
    const auto found = places_.find(plan);
    if (found != places_.end()) {
      by_use_.splice(by_use_.begin(), by_use_, found->second);
      return;
    }
    drop_down_to(most_ - 1);
    by_use_.push_front(plan);
    places_.emplace(std::move(plan), by_use_.begin());
  }
  int64_t count() const { return static_cast<int64_t>(places_.size()); }
  int64_t most() const { return most_; }
  void set_most(int64_t count) {
    TORCH_CHECK(count >= 0, "cuFFT plan cache size must be non-negative, but got ", count);
    most_ = count;
    drop_down_to(count);
  }
  void clear() { drop_down_to(0); }

 private:
  void drop_down_to(int64_t count) {
    while (this->count() > count) {
      places_.erase(by_use_.back());
      by_use_.pop_back();
    }
  }

  std::list<Plan> by_use_;
  std::map<Plan, std::list<Plan>::iterator> places_;
  int64_t most_ = 4096;
};

std::mutex plans_mutex;

// Requires plans_mutex. Never freed, since threads may still compute while the process ends.
Plans& plans_of(c10::DeviceIndex device) {
  static auto* all = new std::map<c10::DeviceIndex, Plans>();
  return (*all)[device];
}

// PyTorch writes the two numbers, which are of 8 bits, as characters.
Plans& checked_plans(c10::DeviceIndex device, const char* function) {
  const auto count = static_cast<c10::DeviceIndex>(device_count());
  TORCH_CHECK(
      0 <= device && device < count, function, ": expected 0 <= device_index < ", count,
      "], but got device_index=", device);
  return plans_of(device);
}

DimVector strides_in_order(IntArrayRef sizes) {
  DimVector strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

// The shape of an intermediate result of one call.
struct Signal {
  DimVector sizes;
  DimVector strides;
};

void sort_by_stride(DimVector& dims, const Signal& signal) {
  std::sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) {
    return signal.strides[a] > signal.strides[b];
  });
}

// Records one cuFFT call and returns the layout of its result: _exec_fft of
// aten/src/ATen/native/cuda/SpectralOps.cpp.
Signal transform(
    Plans& plans,
    Transform kind,
    at::ScalarType dtype,
    const Signal& self,
    IntArrayRef out_sizes,
    IntArrayRef dims) {
  DimVector order;
  for (int64_t dim = 0; dim < static_cast<int64_t>(self.sizes.size()); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) {
      order.push_back(dim);
    }
  }
  sort_by_stride(order, self);
  const size_t batch_dims = order.size();
  order.append(dims.begin(), dims.end());

  DimVector sizes, strides, batched{1}, batched_out{1};
  for (size_t i = 0; i < order.size(); ++i) {
    sizes.push_back(self.sizes[order[i]]);
    strides.push_back(self.strides[order[i]]);
    if (i < batch_dims) {
      batched[0] *= sizes[i];
    } else {
      batched.push_back(sizes[i]);
      batched_out.push_back(out_sizes[order[i]]);
    }
  }
  batched_out[0] = batched[0];
  const auto in_strides =
      at::detail::computeStride(sizes, strides, batched).value_or(strides_in_order(batched));
  const auto out_strides = strides_in_order(batched_out);

  Plan plan{static_cast<int64_t>(kind), static_cast<int64_t>(dtype)};
  for (size_t i = 0; i < batched.size(); ++i) {
    plan.insert(plan.end(), {std::max(batched[i], batched_out[i]), in_strides[i], out_strides[i]});
  }
  plans.use(std::move(plan));

  Signal out{DimVector(out_sizes), DimVector(order.size())};
  int64_t batch = 1;
  for (size_t i = order.size(); i-- > 0;) {
    if (i >= batch_dims) {
      out.strides[order[i]] = out_strides[1 + i - batch_dims];
    } else {
      out.strides[order[i]] = batch * out_strides[0];
      batch *= out_sizes[order[i]];
    }
  }
  return out;
}

constexpr size_t kMaxDims = 3; // that one plan can transform

// Transforms the remaining dimensions, as many in each plan as possible: _fft_c2c_cufft.
Signal transform_rest(Plans& plans, at::ScalarType dtype, Signal signal, DimVector dims) {
  while (!dims.empty()) {
    sort_by_stride(dims, signal);
    const auto first = dims.size() - std::min(kMaxDims, dims.size());
    signal = transform(
        plans, Transform::kOfComplex, dtype, signal, DimVector(signal.sizes),
        IntArrayRef(dims).slice(first));
    dims.resize(first);
  }
  return signal;
}

// use_optimized_cufft_path
bool is_one_plan(IntArrayRef dims) {
  return dims.size() <= kMaxDims && !(dims.size() >= 2 && dims[0] == 0 && dims[1] == 1);
}

struct Call {
  at::Tensor self;
  DimVector dims;
  Signal signal;
  at::ScalarType dtype; // of its real numbers

  explicit Call(Arguments arguments)
      : self(arguments[0].toTensor()),
        dims(arguments[1].toDimVector()),
        signal{DimVector(self.sizes()), DimVector(self.strides())},
        dtype(c10::toRealValueType(self.scalar_type())) {
    for (int64_t& dim : dims) {
      dim = c10::maybe_wrap_dim(dim, self.dim());
    }
  }
  bool is_planned() const { return self.numel() > 0 && !dims.empty(); }
};

int64_t fft_plans(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(plans_mutex);
  return checked_plans(device, "cufft_get_plan_cache_size").count();
}

int64_t max_fft_plans(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(plans_mutex);
  return checked_plans(device, "cufft_get_plan_cache_max_size").most();
}

void set_max_fft_plans(c10::DeviceIndex device, int64_t count) {
  const std::lock_guard<std::mutex> lock(plans_mutex);
  checked_plans(device, "cufft_set_plan_cache_max_size").set_most(count);
}

void clear_fft_plans(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(plans_mutex);
  checked_plans(device, "cufft_clear_plan_cache").clear();
}

} // namespace

void note_plans_of_complex(Arguments arguments, c10::Device device) {
  const Call call(arguments);
  if (call.is_planned()) {
    const std::lock_guard<std::mutex> lock(plans_mutex);
    transform_rest(plans_of(device.index()), call.dtype, call.signal, call.dims);
  }
}

void note_plans_to_complex(Arguments arguments, c10::Device device) {
  Call call(arguments);
  if (!call.is_planned()) {
    return;
  }
  const int64_t last = call.dims.back();
  if (call.self.storage_offset() % 2 != 0) {
    // A real input at an odd offset is not aligned to complex numbers, so PyTorch copies it with
    // the last transformed dimension innermost.
    const auto moved = call.self.movedim(last, -1);
    auto order = strides_in_order(moved.sizes());
    order.insert(order.begin() + last, 1);
    order.pop_back();
    call.signal.strides = order;
  }
  DimVector half(call.signal.sizes);
  half[last] = half[last] / 2 + 1;
  const bool is_half = arguments[3].toBool();
  const DimVector out = is_half ? half : call.signal.sizes;
  const std::lock_guard<std::mutex> lock(plans_mutex);
  Plans& plans = plans_of(device.index());
  if (is_one_plan(call.dims)) {
    transform(plans, Transform::kToComplex, call.dtype, call.signal, out, call.dims);
    return;
  }
  const auto first =
      transform(plans, Transform::kToComplex, call.dtype, call.signal, half, DimVector{last});
  transform_rest(plans, call.dtype, first, DimVector(call.dims.begin(), call.dims.end() - 1));
}

void note_plans_to_real(Arguments arguments, c10::Device device) {
  Call call(arguments);
  if (!call.is_planned()) {
    return;
  }
  const int64_t last = call.dims.back();
  DimVector out(call.signal.sizes);
  out[last] = arguments[3].toInt();
  const std::lock_guard<std::mutex> lock(plans_mutex);
  Plans& plans = plans_of(device.index());
  auto signal = call.signal;
  auto dims = call.dims;
  if (dims.size() == 1 || is_one_plan(dims)) {
    // cuFFT may overwrite its input, so PyTorch passes a copy.
    signal.strides = strides_in_order(signal.sizes);
  } else {
    signal = transform_rest(plans, call.dtype, signal, DimVector(dims.begin(), dims.end() - 1));
    dims = {last};
  }
  transform(plans, Transform::kToReal, call.dtype, signal, out, dims);
}

void install_fft_plans() {
  set_fft_plan_cache({fft_plans, max_fft_plans, set_max_fft_plans, clear_fft_plans});
}

} // namespace anyrig::virtual_gpu
