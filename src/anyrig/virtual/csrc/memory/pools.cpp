#include "memory/pools.h"

#include "device/device.h"
#include "memory/memory.h"
#include "memory/stacks.h"
#include "time/streams.h"

#include <pybind11/stl.h>

#include <atomic>
#include <thread>

namespace anyrig::virtual_gpu {
namespace {

PrivatePools::Takes this_thread() {
  return [thread = std::this_thread::get_id()](StreamKey /*stream*/) {
    return std::this_thread::get_id() == thread;
  };
}

PrivatePools::Takes this_stream(c10::DeviceIndex device) {
  return [wanted = current_stream(device).id()](StreamKey stream) { return stream == wanted; };
}

void begin_pool(c10::DeviceIndex device, PoolId id, PrivatePools::Takes takes) {
  caching_allocator(device).with_pools(
      [&](PrivatePools& pools) { pools.begin_route(id, std::move(takes)); });
}

void end_pool(c10::DeviceIndex device, PoolId id) {
  caching_allocator(device).with_pools([&](PrivatePools& pools) { pools.end_route(id); });
}

void release_pool(c10::DeviceIndex device, PoolId id) {
  caching_allocator(device).with_pools([&](PrivatePools& pools) { pools.release(id); });
}

} // namespace

PoolId new_pool_id(bool is_user_created) {
  // aten/src/ATen/cuda/MemPool.cpp: two counters, of which one half of the name is zero.
  static std::atomic<uint64_t> next_of_user{1};
  static std::atomic<uint64_t> next_of_graph{1};
  return is_user_created ? PoolId{0, next_of_user++} : PoolId{next_of_graph++, 0};
}

MemoryPool::MemoryPool(bool is_user_created, bool serves_when_full, bool never_splits)
    : id_(new_pool_id(is_user_created)),
      device_(static_cast<c10::DeviceIndex>(current_device())) {
  caching_allocator(device_).with_pools([&](PrivatePools& pools) {
    PrivatePool& pool = pools.use(id_);
    pool.serves_when_full = serves_when_full;
    pool.small.never_splits = pool.large.never_splits = never_splits;
  });
}

MemoryPool::~MemoryPool() {
  release_pool(device_, id_);
  caching_allocator(device_).empty_cache(id_, stack_for(RecordStacks::kAll));
}

int MemoryPool::users() const {
  int users = 0;
  caching_allocator(device_).with_pools(
      [&](const PrivatePools& pools) { users = pools.at(id_).users; });
  return users;
}

void bind_memory_pools(py::module& module) {
  py::class_<MemoryPool>(module, "MemoryPool")
      .def(
          py::init([](const py::object& allocator,
                      bool is_user_created,
                      bool use_on_oom,
                      bool no_split) {
            TORCH_CHECK(
                allocator.is_none(),
                "CUDA error: a memory pool with an allocator of the program's own is not there on "
                "a virtual GPU: it would need a card's memory");
            return std::make_unique<MemoryPool>(is_user_created, use_on_oom, no_split);
          }),
          py::arg("allocator") = py::none(),
          py::arg("is_user_created") = true,
          py::arg("use_on_oom") = false,
          py::arg("no_split") = false)
      .def_property_readonly("id", &MemoryPool::id)
      .def_property_readonly("device", &MemoryPool::device)
      .def_property_readonly("allocator", [](const MemoryPool& /*pool*/) { return py::none(); })
      .def("use_count", &MemoryPool::users);

  module.def("new_pool_id", &new_pool_id);
  module.def("begin_pool_of_thread", [](c10::DeviceIndex device, PoolId id) {
    begin_pool(device, id, this_thread());
  });
  module.def("begin_pool_of_stream", [](c10::DeviceIndex device, PoolId id) {
    begin_pool(device, id, this_stream(device));
  });
  module.def("begin_pool", [](c10::DeviceIndex device, PoolId id) {
    begin_pool(device, id, [](StreamKey /*stream*/) { return true; });
  });
  module.def("end_pool", &end_pool);
  module.def("release_pool", &release_pool);
}

} // namespace anyrig::virtual_gpu
