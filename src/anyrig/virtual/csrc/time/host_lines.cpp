#include "time/host_lines.h"

#include "time/giving_way.h"
#include "time/python_code.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

constexpr int kNoBackward = -1;

struct BackwardLine {
  HostLine line;
  int backward = kNoBackward; // the last backward pass that this thread worked for
};

thread_local BackwardLine backward_line;

} // namespace

bool HostLines::in_backward() {
  return torch::autograd::get_current_graph_task_id() != kNoBackward;
}

HostLine& HostLines::current() {
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward == kNoBackward) {
    shared_.moment = std::max(shared_.moment, latest_in_backward_);
    return shared_;
  }
  auto& mine = backward_line;
  if (mine.backward != backward) {
    mine.backward = backward;
    mine.line.moment = std::max(mine.line.moment, shared_.moment);
    lock_in_backward_.forget_before(shared_.moment);
    note_backward_thread();
  }
  return mine.line;
}

void HostLines::note_backward_thread() {
  auto& threads = backward_threads_;
  const pid_t self = kernel_thread_id();
  if (std::find(threads.begin(), threads.end(), self) == threads.end()) {
    threads.erase(std::remove_if(threads.begin(), threads.end(), has_ended), threads.end());
    threads.push_back(self);
  }
}

void HostLines::wait_until(double moment) {
  work_after(moment, 0);
}

double HostLines::work_after(double moment, double seconds) {
  HostLine& line = current();
  double begin = std::max(line.moment, moment);
  if (seconds > 0 && &line != &shared_ && is_called_by_python()) {
    begin = lock_in_backward_.first_free(begin, seconds);
    lock_in_backward_.occupy(begin, begin + seconds);
  }
  line.moment = begin + seconds;
  note_launch_time(line);
  return line.moment;
}

void HostLines::note_launch_time(const HostLine& line) {
  if (&line != &shared_) {
    latest_in_backward_ = std::max(latest_in_backward_, line.moment);
  }
}

} // namespace anyrig::virtual_gpu
