#include "collectives/bindings.h"

#ifdef USE_C10D_GLOO

#include "collectives/ddp_timer.h"
#include "collectives/flight_recorder.h"
#include "collectives/gloo.h"
#include "collectives/live_groups.h"
#include "collectives/lone_gloo.h"
#include "collectives/nccl2_group.h"
#include "collectives/process_group.h"

#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

namespace anyrig::virtual_gpu {
namespace {

using GroupOptions = NcclGroup::Options;
using Milliseconds = std::chrono::milliseconds;

// Sets the Python function that connects the ranks. Threads may call it with or without the GIL.
void set_connect(py::function connect) {
  // Never freed: groups may be made until the interpreter ends.
  auto* stored = new py::function(std::move(connect));
  NcclGroup::set_connect(
      [stored](
          const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout) {
        py::gil_scoped_acquire gil;
        return (*stored)(store, rank, size, timeout).cast<NcclGroup::Connections>();
      });
}

// ncclConfig_t. Its fields have no effect: a virtual communicator has nothing to configure.
void bind_config(py::handle group) {
  py::class_<NcclConfig>(group, "NCCLConfig")
      .def(py::init<>())
      .def_readwrite("blocking", &NcclConfig::blocking)
      .def_readwrite("cga_cluster_size", &NcclConfig::cga_cluster_size)
      .def_readwrite("min_ctas", &NcclConfig::min_ctas)
      .def_readwrite("max_ctas", &NcclConfig::max_ctas)
      .def_readwrite("split_share", &NcclConfig::split_share)
      .def_readwrite("traffic_class", &NcclConfig::traffic_class)
      .def_readwrite("collnet_enable", &NcclConfig::collnet_enable)
      .def_readwrite("cta_policy", &NcclConfig::cta_policy)
      .def_readwrite("nvls_ctas", &NcclConfig::nvls_ctas)
#if ANYRIG_TORCH_FROM(14)
      .def_readwrite("comm_name", &NcclConfig::comm_name)
      .def_readwrite("max_p2p_peers", &NcclConfig::max_p2p_peers)
#endif
      .def_readwrite("net_name", &NcclConfig::net_name);
  group.attr("NCCL_CTA_POLICY_DEFAULT") = 0x00;
  group.attr("NCCL_CTA_POLICY_EFFICIENCY") = 0x01;
  group.attr("NCCL_CTA_POLICY_ZERO") = 0x02;
}

void bind_options(py::class_<NcclGroup, c10::intrusive_ptr<NcclGroup>>& group, py::handle base) {
  py::class_<GroupOptions, c10::intrusive_ptr<GroupOptions>>(group, "Options", base)
      .def(py::init<bool>(), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &GroupOptions::is_high_priority_stream)
      .def_readwrite("split_from", &GroupOptions::split_from)
      .def_readwrite("split_color", &GroupOptions::split_color)
      .def_readwrite("config", &GroupOptions::config)
#if ANYRIG_TORCH_FROM(15)
      .def_readwrite("lazy_init", &GroupOptions::lazy_init)
#endif
      .def(
          "__copy__",
          [](const GroupOptions& self) { return c10::make_intrusive<GroupOptions>(self); })
      .def("__deepcopy__", [](const GroupOptions& self, const py::dict& /*memo*/) {
        return c10::make_intrusive<GroupOptions>(self);
      });
}

// The methods that ProcessGroupNCCL has, too.
template <class Group, class... Rest>
void bind_shared(py::class_<Group, Rest...>& group) {
  group.def_property_readonly("options", &NcclGroup::options)
      .def_property_readonly("_transport", &NcclGroup::transport)
      .def("get_error", &NcclGroup::getError)
      .def(
          "perform_nocolor_split", [](Group& self, c10::Device /*device*/) { self.count_split(); });
}

template <class Group, class... Rest>
void bind_registration(py::class_<Group, Rest...>& group) {
  group.def_property_readonly("mem_allocator", [](const Group&) { return nccl_allocator(); })
      .def(
          "register_mem_pool",
          [](const Group& self, const MemoryPool& pool, bool /*symm*/) {
            self.check_can_register(pool);
          },
          py::arg("pool"), py::arg("symm") = false)
      .def(
          "deregister_mem_pool",
          [](const Group& self, const MemoryPool& pool) { self.check_can_register(pool); },
          py::arg("pool"));
}

#if ANYRIG_TORCH_FROM(14)

// Binds the constructors and methods of ProcessGroupNCCL2 and of ProcessGroupNCCLLazy.
template <class Group>
py::class_<Group, c10::intrusive_ptr<Group>> bind_nccl2(
    py::module_& m,
    const char* name,
    py::handle backend) {
  using StorePointer = c10::intrusive_ptr<c10d::Store>;
  py::class_<Group, c10::intrusive_ptr<Group>> group(m, name, backend);
  const auto make = [](const StorePointer& store, int rank, int size,
                       c10::intrusive_ptr<GroupOptions> options,
                       [[maybe_unused]] std::optional<c10::Device> device) {
    auto made = NcclGroup::make<Group>(store, rank, size, std::move(options));
#if ANYRIG_TORCH_FROM(15)
    made->setBoundDeviceId(device);
#endif
    return made;
  };
  group
      .def(
          py::init(
#if ANYRIG_TORCH_FROM(15)
              make
#else
              [make](
                  const StorePointer& store, int rank, int size,
                  c10::intrusive_ptr<GroupOptions> options) {
                return make(store, rank, size, std::move(options), std::nullopt);
              }
#endif
              ),
          py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options")
#if ANYRIG_TORCH_FROM(15)
                                                                  ,
          py::arg("device_id") = py::none()
#endif
              )
      .def(
          py::init([make](const StorePointer& store, int rank, int size) {
            return make(store, rank, size, c10::make_intrusive<GroupOptions>(), std::nullopt);
          }),
          py::arg("store"), py::arg("rank"), py::arg("size"));
  bind_shared(group);
  return group;
}

void bind_nccl2_groups(py::module_& m, py::handle backend, py::handle options) {
  auto nccl2 = bind_nccl2<Nccl2Group>(m, "ProcessGroupNCCL2", backend);
  nccl2.attr("Options") = options;
  bind_registration(nccl2);
  bind_nccl2<NcclLazyGroup>(m, "ProcessGroupNCCLLazy", backend)
      .def("_num_active_channels", &NcclLazyGroup::count_channels);
}

#endif // ANYRIG_TORCH_FROM(14)

} // namespace

void bind_collectives(py::module_& m) {
  const auto c10d_module = py::module_::import("torch._C._distributed_c10d");
  const auto backend = c10d_module.attr("Backend");
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  using Options = c10::intrusive_ptr<GroupOptions>;
  using StorePointer = c10::intrusive_ptr<c10d::Store>;

  py::class_<NcclGroup, c10::intrusive_ptr<NcclGroup>> group(m, "ProcessGroupNCCL", backend);
  bind_config(group);
  bind_options(group, backend.attr("Options"));
  group
      .def(
          py::init([](const StorePointer& store, int rank, int size, Options options) {
            return NcclGroup::make<NcclGroup>(store, rank, size, std::move(options));
          }),
          py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"))
      .def(
          py::init([](const StorePointer& store, int rank, int size, Milliseconds timeout) {
            auto options = c10::make_intrusive<GroupOptions>();
            options->timeout = timeout;
            return NcclGroup::make<NcclGroup>(store, rank, size, std::move(options));
          }),
          py::arg("store"), py::arg("rank"), py::arg("size"),
          py::arg("timeout") = NcclGroup::kDefaultTimeout)
      .def_property_readonly("uid", &NcclGroup::uid)
      .def_property(
          "bound_device_id", [](const NcclGroup& self) { return self.getBoundDeviceId(); },
          [](NcclGroup& self, std::optional<c10::Device> device) { self.setBoundDeviceId(device); })
      .def("_group_start", [](NcclGroup& /*self*/) {})
      .def("_group_end", [](NcclGroup& /*self*/) {})
      .def("comm_split_count", &NcclGroup::split_count)
      .def("_set_default_timeout", &NcclGroup::setTimeout, py::arg("timeout"))
      .def("_add_ephemeral_timeout", &NcclGroup::addEphemeralTimeout, py::arg("timeout"))
      .def(
          "_verify_work_timeout",
          [](const NcclGroup& /*self*/, const c10d::Work& work, Milliseconds timeout) {
            const auto* own = dynamic_cast<const TransferWork*>(&work);
            return own != nullptr && own->transfers()[0]->call().limit == timeout;
          },
          py::arg("work"), py::arg("timeout"))
      .def("_is_initialized", &NcclGroup::is_connected)
      .def("_start_time_estimate", &NcclGroup::startTimeEstimate)
      .def("_end_time_estimate", &NcclGroup::endTimeEstimate)
      .def("_set_enable_nan_check", &NcclGroup::set_nan_check, py::arg("enable_nan_check"))
      .def("_shutdown", &NcclGroup::shutdown, no_gil)
      .def("abort", &NcclGroup::abort, no_gil);
  bind_shared(group);
  bind_registration(group);
#if ANYRIG_TORCH_FROM(14)
  bind_nccl2_groups(m, backend, group.attr("Options"));
#endif

  // As ProcessGroupGloo, whose constructor waits for all ranks.
  py::class_<LoneGloo, c10::intrusive_ptr<LoneGloo>>(m, "LoneGloo", backend)
      .def(
          py::init([](const StorePointer& /*store*/, int rank, int size, Milliseconds timeout,
                      bool /*enable_reconfigure*/) {
            return c10::make_intrusive<LoneGloo>(rank, size, timeout);
          }),
          py::arg("store"), py::arg("rank"), py::arg("size"),
          py::arg("timeout") = NcclGroup::kDefaultTimeout,
          py::arg("enable_reconfigure") = false) // PyTorch 2.15 passes this
      .def_property_readonly("options", &LoneGloo::options)
      .def("_set_default_timeout", &LoneGloo::setTimeout, py::arg("timeout"));

  m.def("set_connect", &set_connect);
  m.def("install_ddp_timer", &install_ddp_timer);
  m.def("install_gloo_collectives", &install_gloo_collectives);
  bind_flight_recorder(m);
  m.def("close_groups", &close_groups, no_gil);
}

} // namespace anyrig::virtual_gpu

#else

namespace anyrig::virtual_gpu {

void bind_collectives(pybind11::module_& /*m*/) {}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
