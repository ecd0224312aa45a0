#include "dispatch/operator_record.h"

#include <c10/util/Exception.h>

#include <memory>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// Constructed on first use, since the constants of other files add to it in no particular order,
// and never freed, since plans point into it.
class RecordTable {
 public:
  static RecordTable& get() {
    static auto* table = new RecordTable();
    return *table;
  }

  void add(OperatorRecords records) {
    for (auto& [names, record] : records) {
      const auto shared = std::make_shared<const OperatorRecord>(std::move(record));
      for (auto& name : names) {
        if (!records_.emplace(name, shared).second) {
          twice_ += twice_.empty() ? name : ", " + name;
        }
      }
    }
  }

  const OperatorRecord* find(const std::string& name) const {
    const auto found = records_.find(name);
    return found == records_.end() ? nullptr : found->second.get();
  }

  void check() const {
    TORCH_CHECK(
        twice_.empty(), "these operators have two records, and each needs a single one: ", twice_);
  }

 private:
  std::unordered_map<std::string, std::shared_ptr<const OperatorRecord>> records_;
  std::string twice_; // the names that were added twice
};

} // namespace

DeclaredRecords::DeclaredRecords(OperatorRecords records) {
  // A constructor of a constant must not raise, so `record_of` reports names that occur twice.
  RecordTable::get().add(std::move(records));
}

void add_records(OperatorRecords records) {
  RecordTable::get().add(std::move(records));
  RecordTable::get().check();
}

const OperatorRecord& record_of(const std::string& name, const std::string& overload) {
  static const OperatorRecord nothing;
  const auto& table = RecordTable::get();
  table.check();
  const OperatorRecord* record = overload.empty() ? nullptr : table.find(name + "." + overload);
  record = record == nullptr ? table.find(name) : record;
  return record == nullptr ? nothing : *record;
}

} // namespace anyrig::virtual_gpu
