#include "rig.h"

#include "named_uuid.h"

#include <string_view>

namespace anyrig::nvml {
namespace {

/// The parts of a text, which `between` separates. One that is missing is empty, or 0.
class Parts {
 public:
  Parts(std::string_view text, char between) : rest_(text), between_(between) {}

  bool empty() const { return rest_.empty(); }

  std::string text() {
    const std::size_t end = rest_.find(between_);
    const std::string part(rest_.substr(0, end));
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    return part;
  }

  unsigned long long number() {
    const std::string part = text();
    return part.empty() ? 0 : std::stoull(part);
  }

 private:
  std::string_view rest_;
  const char between_;
};

struct Group {
  std::size_t count;
  Gpu gpu;
};

/// Neighbouring nodes that are alike.
struct Nodes {
  std::size_t count;
  std::vector<Group> groups;

  std::size_t gpus_of_one() const {
    std::size_t gpus = 0;
    for (const Group& group : groups) gpus += group.count;
    return gpus;
  }
};

Group read_group(Parts& line) {
  Group group{line.number(), {}};
  Gpu& gpu = group.gpu;
  gpu.name = line.text();
  gpu.memory_bytes = line.number();
  gpu.capability_major = static_cast<int>(line.number());
  gpu.capability_minor = static_cast<int>(line.number());
  gpu.multiprocessors = static_cast<unsigned>(line.number());
  gpu.architecture = static_cast<unsigned>(line.number());
  gpu.limit_milliwatts = static_cast<unsigned>(line.number());
  gpu.nvlinks = static_cast<unsigned>(line.number());
  gpu.nvlink_version = static_cast<unsigned>(line.number());
  gpu.nvlink_megabytes_per_second = static_cast<unsigned>(line.number());
  gpu.pcie_generation = static_cast<unsigned>(line.number());
  return group;
}

/// The node that `word` names of `count`, as nodes.py in anyrig reads it; `count` if it names none.
std::size_t node_of_process(const char* word, std::size_t count) {
  // A rig of one node is the machine of every process, whatever launched it.
  if (count == 1 || word == nullptr) return 0;
  const std::string digits = word;
  const bool is_number = !digits.empty() && digits.size() < 6 &&
      digits.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? std::stoul(digits) : count;
}

}  // namespace

bool read_rig(const std::string& text, const char* node_word, Rig& rig) {
  rig = Rig{};
  std::string uuid_space;
  std::vector<Nodes> all;
  for (Parts lines(text, '\n'); !lines.empty();) {
    const std::string words = lines.text();
    Parts line(words, '\t');
    const std::string key = line.text();
    if (key == "ledger") {
      rig.ledger = line.text();
    } else if (key == "driver") {
      rig.driver_version = line.text();
      rig.cuda_version = static_cast<int>(line.number());
    } else if (key == "idle") {
      rig.idle_percent = static_cast<unsigned>(line.number());
      rig.idle_celsius = static_cast<unsigned>(line.number());
      rig.idle_milliwatts = static_cast<unsigned>(line.number());
      rig.clock_mhz = static_cast<unsigned>(line.number());
    } else if (key == "uuids") {
      uuid_space = line.text();
    } else if (key == "nodes") {
      all.push_back({line.number(), {}});
    } else if (key == "gpus" && !all.empty()) {
      all.back().groups.push_back(read_group(line));
    }
  }
  std::size_t node_count = 0;
  for (const Nodes& nodes : all) node_count += nodes.count;
  const std::size_t node = node_of_process(node_word, node_count);
  const Nodes* own = nullptr;
  std::size_t first_position = 0, nodes_before = 0;
  for (const Nodes& nodes : all) {
    const std::size_t gpus = nodes.gpus_of_one();
    if (own == nullptr && node < nodes_before + nodes.count) {
      own = &nodes;
      first_position = rig.gpus_in_all + (node - nodes_before) * gpus;
    }
    nodes_before += nodes.count;
    rig.gpus_in_all += nodes.count * gpus;
  }
  if (own == nullptr) return false;
  for (const Group& group : own->groups) {
    for (std::size_t i = 0; i < group.count; ++i) {
      Gpu gpu = group.gpu;
      gpu.index = static_cast<unsigned>(rig.gpus.size());
      gpu.position = first_position + gpu.index;
      gpu.uuid = "GPU-" + named_uuid(uuid_space, std::to_string(gpu.position) + ":" + gpu.name);
      rig.gpus.push_back(std::move(gpu));
    }
  }
  return true;
}

}  // namespace anyrig::nvml
