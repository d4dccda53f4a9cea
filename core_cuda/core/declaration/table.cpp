#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>

#include "core/declaration/check.h"
#include "core/declaration/names.h"
#include "core/declaration/operator.h"

namespace fusedops {
namespace {

class Table {
 public:
  Table() {
    for (const Operator& op : built_in_operators()) append(&op);
  }

  // Lock-free: operators before `count_` are complete and never move.
  std::span<const Operator* const> ops() const { return {ops_, count_.load(std::memory_order_acquire)}; }

  const Operator* find(std::string_view name) const {
    const std::shared_lock lock(mutex_);
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  Status add(std::span<const Operator* const> ops) {
    const std::unique_lock lock(mutex_);
    if (ops.size() > kMaxOperators - count_.load())
      return Status::error("fusedops: a process can have at most ", std::to_string(kMaxOperators),
                           " operators; make an expression once and pass numbers that vary as inputs, f(x, number)");
    std::unordered_set<std::string> types;  // of the new operators, since graphs show the type only
    for (const Operator* op : ops)
      if (const std::string type = type_name(op->name); types_.contains(type) || !types.insert(type).second)
        return Status::error("fusedops: an operator is already named like ", op->name);
    for (const Operator* op : ops) append(op);
    return {};
  }

 private:
  void append(const Operator* op) {
    const size_t count = count_.load();
    by_name_[op->name] = ops_[count] = op;
    types_.insert(type_name(op->name));
    count_.store(count + 1, std::memory_order_release);
  }

  const Operator* ops_[kMaxOperators];
  std::atomic<size_t> count_ = 0;
  std::unordered_map<std::string_view, const Operator*> by_name_;
  std::unordered_set<std::string> types_;
  mutable std::shared_mutex mutex_;
};

Table& table() {
  static Table* const table = new Table();  // never destroyed: framework threads may outlive static objects
  return *table;
}

}  // namespace

std::span<const Operator* const> operators() { return table().ops(); }

const Operator* find_operator(std::string_view name) { return table().find(name); }

Status add_operators(std::span<const Operator* const> ops) {
  FUSEDOPS_TRY(check_operators(ops));
  return table().add(ops);
}

}  // namespace fusedops
