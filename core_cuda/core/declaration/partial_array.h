#pragma once

#include <cassert>
#include <cstddef>
#include <memory>

namespace fusedops {

// An array of which only the first `size` items exist. A call declares room for the largest operator, and constructing
// and destroying all of it takes longer than a small kernel.
template <class Item, size_t kCapacity>
class PartialArray {
 public:
  explicit PartialArray(size_t size) : size_(size) {
    for (size_t i = 0; i < size; ++i) new (items_ + i) Item();
  }
  ~PartialArray() { std::destroy_n(items_, size_); }
  PartialArray(const PartialArray&) = delete;
  PartialArray& operator=(const PartialArray&) = delete;

  Item& operator[](size_t i) {
    assert(i < size_);
    return items_[i];
  }
  const Item& operator[](size_t i) const {
    assert(i < size_);
    return items_[i];
  }

  Item* data() { return items_; }
  const Item* data() const { return items_; }
  const Item* begin() const { return items_; }
  const Item* end() const { return items_ + size_; }

 private:
  const size_t size_;
  union {
    Item items_[kCapacity];
  };
};

}  // namespace fusedops
