#include "time/fused_nodes.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// A span is needed until its nodes have run, which is soon.
constexpr size_t kMostSpans = 16;

struct FusedSpan {
  int backward;
  NodeSpan nodes;
};

thread_local std::vector<FusedSpan> fused_spans;
thread_local bool has_fused_spans = false; // read in every call, and cheaper to reach

} // namespace

NodeSpan NodeSpan::begin() {
  const uint64_t next = at::sequence_number::peek();
  return {at::RecordFunction::currentThreadId(), next, next};
}

void NodeSpan::finish() {
  end = at::sequence_number::peek();
}

void fuse_nodes(const NodeSpan& span) {
  has_fused_spans = true;
  if (fused_spans.size() == kMostSpans) {
    fused_spans.erase(fused_spans.begin());
  }
  fused_spans.push_back({torch::autograd::get_current_graph_task_id(), span});
}

bool runs_fused_node() {
  if (C10_LIKELY(!has_fused_spans)) {
    return false;
  }
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) {
    return false;
  }
  const int backward = torch::autograd::get_current_graph_task_id();
  const uint64_t number = node->sequence_nr();
  return std::any_of(fused_spans.begin(), fused_spans.end(), [&](const FusedSpan& span) {
    return span.backward == backward && span.nodes.thread == node->thread_id() &&
        span.nodes.first <= number && number < span.nodes.end;
  });
}

} // namespace anyrig::virtual_gpu
