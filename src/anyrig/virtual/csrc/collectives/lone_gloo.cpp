#ifdef USE_C10D_GLOO

#include "collectives/lone_gloo.h"

#include "collectives/lone_rank.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/pow.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

using Tensors = std::vector<at::Tensor>;
using Op = c10d::ReduceOp::RedOpType;

// The work of a call that was answered at once.
class AnsweredWork final : public c10d::Work {
 public:
  AnsweredWork(int rank, c10d::OpType op, Tensors outputs, uint64_t sequence)
      : Work(rank, op), outputs_(std::move(outputs)), sequence_(sequence) {
    finish();
  }

  Tensors result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return sequence_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }

 private:
  Tensors outputs_;
  uint64_t sequence_;
};

void check_on_host(const char* name, const Tensors& tensors) {
  for (const auto& tensor : tensors) {
    TORCH_CHECK_VALUE(
        tensor.device().is_cpu() && tensor.layout() == at::kStrided, name, " over gloo has a ",
        tensor.layout(), " tensor on ", tensor.device(),
        ", and a rehearsal of rank 0 alone (--ranks) answers gloo's calls for dense tensors of the "
        "CPU; use NCCL for CUDA tensors");
  }
}

void check_root_is_this_rank(const char* name, int64_t root, const Membership& group) {
  TORCH_CHECK_WITH(
      DistBackendError, root == group.rank, name, " from rank ", root,
      " of this group: this rehearsal runs rank 0 alone (--ranks), and "
      "only rank ",
      root, " has the values. Let rank 0 send them, or ", kLoneRankRemedy);
}

// Copies what this rank sends to each rank into `outputs`: what it receives from each.
void fill(const char* name, const Tensors& outputs, const at::Tensor& mine) {
  for (const auto& output : outputs) {
    TORCH_CHECK_WITH(
        DistBackendError, output.numel() == mine.numel(), name, " has parts of ", mine.numel(),
        " and of ", output.numel(),
        " elements: this "
        "rehearsal runs rank 0 alone (--ranks), for which the parts of all ranks must be equal. "
        "Make them equal, or ",
        kLoneRankRemedy);
    if (output.data_ptr() != mine.data_ptr()) {
      output.copy_(mine.view_as(output));
    }
  }
}

void check_equal_splits(const std::vector<int64_t>& splits) {
  TORCH_CHECK_WITH(
      DistBackendError,
      std::adjacent_find(splits.begin(), splits.end(), std::not_equal_to<>()) == splits.end(),
      "all_to_all_single has splits of different sizes: this rehearsal runs rank 0 alone "
      "(--ranks), for which the parts of all ranks must be equal. Make them equal, or ",
      kLoneRankRemedy);
}

Tensors parts_of(const at::Tensor& whole, int size) {
  TORCH_CHECK_VALUE(
      whole.numel() % size == 0, "a tensor of ", whole.numel(), " elements has no ", size,
      " equal parts");
  const auto row = whole.view({size, -1});
  return row.unbind(0);
}

// Replaces `tensor` by the reduction of as many equal tensors as there are ranks.
void reduce_alike(at::Tensor& tensor, Op op, int size) {
  switch (op) {
    case Op::SUM:
      if (tensor.scalar_type() != at::kBool) {
        tensor.mul_(size);
      }
      return;
    case Op::PRODUCT:
      tensor.copy_(at::pow(tensor, size));
      return;
    case Op::BXOR:
      if (size % 2 == 0) {
        tensor.zero_();
      }
      return;
    case Op::MIN:
    case Op::MAX:
    case Op::BAND:
    case Op::BOR:
      return;
    default:
      C10_THROW_ERROR(ValueError, "gloo supports neither ReduceOp.AVG nor PREMUL_SUM");
  }
}

} // namespace

Membership LoneGloo::membership() const {
  return {rank_, size_, options_->group_name, options_->global_ranks_in_group};
}

c10::intrusive_ptr<c10d::Work> LoneGloo::done(c10d::OpType op, Tensors outputs) {
  return c10::make_intrusive<AnsweredWork>(rank_, op, std::move(outputs), ++sequence_);
}

c10::intrusive_ptr<c10d::Backend> LoneGloo::split(
    const c10::intrusive_ptr<c10d::Store>& /*store*/,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  const auto position = std::find(ranks.begin(), ranks.end(), rank_);
  if (position == ranks.end()) {
    return nullptr;
  }
  auto part = c10::make_intrusive<LoneGloo>(
      static_cast<int>(position - ranks.begin()), static_cast<int>(ranks.size()), options->timeout);
  part->options_->group_name = options->group_name;
  part->options_->global_ranks_in_group = options->global_ranks_in_group;
  return part;
}

c10::intrusive_ptr<c10d::Work> LoneGloo::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& options) {
  check_on_host("broadcast", tensors);
  check_root_is_this_rank("broadcast", options.rootRank, membership());
  return done(c10d::OpType::BROADCAST, tensors);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  check_on_host("all_reduce", tensors);
  for (auto& tensor : tensors) {
    reduce_alike(tensor, options.reduceOp, size_);
  }
  return done(c10d::OpType::ALLREDUCE, tensors);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& options) {
  check_on_host("reduce", tensors);
  if (options.rootRank == rank_) {
    reduce_alike(tensors.at(0), options.reduceOp, size_);
  }
  return done(c10d::OpType::REDUCE, tensors);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::allgather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& /*options*/) {
  check_on_host("all_gather", inputs);
  check_on_host("all_gather", outputs.at(0));
  fill("all_gather", outputs[0], inputs.at(0).contiguous());
  return done(c10d::OpType::ALLGATHER, outputs[0]);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& /*options*/) {
  check_on_host("all_gather_into_tensor", {output, input});
  fill("all_gather_into_tensor", parts_of(output, size_), input.contiguous());
  return done(c10d::OpType::_ALLGATHER_BASE, {output});
}

c10::intrusive_ptr<c10d::Work> LoneGloo::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    _allgather_base(outputs.at(i), inputs[i], options);
  }
  return done(c10d::OpType::COALESCED, outputs);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& options) {
  check_on_host("reduce_scatter", outputs);
  check_on_host("reduce_scatter", inputs.at(0));
  for (const auto& input : inputs[0]) {
    TORCH_CHECK_WITH(
        DistBackendError, input.numel() == outputs.at(0).numel(),
        "reduce_scatter has parts of different sizes: this rehearsal runs rank 0 alone (--ranks). "
        "Make them equal, or ",
        kLoneRankRemedy);
  }
  outputs[0].copy_(inputs[0].at(rank_));
  reduce_alike(outputs[0], options.reduceOp, size_);
  return done(c10d::OpType::REDUCE_SCATTER, outputs);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  check_on_host("reduce_scatter_tensor", {output, input});
  output.copy_(parts_of(input.contiguous(), size_)[rank_].view_as(output));
  reduce_alike(output, options.reduceOp, size_);
  return done(c10d::OpType::_REDUCE_SCATTER_BASE, {output});
}

c10::intrusive_ptr<c10d::Work> LoneGloo::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& /*options*/) {
  check_on_host("all_to_all_single", {output, input});
  check_equal_splits(output_splits);
  check_equal_splits(input_splits);
  fill("all_to_all_single", parts_of(output, size_), parts_of(input.contiguous(), size_)[rank_]);
  return done(c10d::OpType::ALLTOALL_BASE, {output});
}

c10::intrusive_ptr<c10d::Work> LoneGloo::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& /*options*/) {
  check_on_host("all_to_all", outputs);
  check_on_host("all_to_all", inputs);
  fill("all_to_all", outputs, inputs.at(rank_).contiguous());
  return done(c10d::OpType::ALLTOALL, outputs);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::gather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& options) {
  check_on_host("gather", inputs);
  if (options.rootRank != rank_) {
    return done(c10d::OpType::GATHER);
  }
  check_on_host("gather", outputs.at(0));
  fill("gather", outputs[0], inputs.at(0).contiguous());
  return done(c10d::OpType::GATHER, outputs[0]);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ScatterOptions& options) {
  check_on_host("scatter", outputs);
  check_root_is_this_rank("scatter", options.rootRank, membership());
  check_on_host("scatter", inputs.at(0));
  outputs.at(0).copy_(inputs[0].at(rank_));
  return done(c10d::OpType::SCATTER, outputs);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::barrier(const c10d::BarrierOptions& /*options*/) {
  return done(c10d::OpType::BARRIER);
}

c10::intrusive_ptr<c10d::Work> LoneGloo::send(Tensors& /*tensors*/, int peer, int /*tag*/) {
  C10_THROW_ERROR(DistBackendError, why_no_message(membership(), "send", peer));
}

c10::intrusive_ptr<c10d::Work> LoneGloo::recv(Tensors& /*tensors*/, int peer, int /*tag*/) {
  C10_THROW_ERROR(DistBackendError, why_no_message(membership(), "recv", peer));
}

c10::intrusive_ptr<c10d::Work> LoneGloo::recvAnysource(Tensors& /*tensors*/, int /*tag*/) {
  C10_THROW_ERROR(
      DistBackendError,
      c10::str(
          "recv from any rank: this rehearsal runs rank 0 alone (--ranks), so no message comes; ",
          kLoneRankRemedy));
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
