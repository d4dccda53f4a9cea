// A boolean mask that is broadcast to a tensor, row by row.
#pragma once

#include <cstdint>

#include "core/common/numeric.h"
#include "core/declaration/rule.h"
#include "core/declaration/view.h"

namespace fusedops {

inline Status check_mask_dtype(const Rule& rule, int mask) {
  const DType got = rule.inputs[mask].dtype;
  if (got == DType::boolean) return {};
  return rule.must(mask, "be bool", std::string(name_of(got)) + ": True marks what is visible");
}

class BroadcastMask {
 public:
  BroadcastMask() = default;
  BroadcastMask(const View& mask, const View& x);  // contiguous, of no higher rank; each dimension is x's or 1

  // First element for a row of x. Dimensions are collapsed if possible, so that a typical mask has two or three.
  FUSEDOPS_HD const uint8_t* row(int64_t index) const {
    int64_t offset = 0;
    for (int i = 0; i + 1 < dimensions_; ++i) {
      offset += index % sizes_[i] * strides_[i];
      index /= sizes_[i];
    }
    return data_ + offset + (dimensions_ > 0 ? index * strides_[dimensions_ - 1] : 0);
  }

  // True if a row has an element per column, false if it has one for all.
  FUSEDOPS_HD bool has_columns() const { return has_columns_; }

  int64_t elements() const { return elements_; }

 private:
  const uint8_t* data_ = nullptr;
  int64_t elements_ = 0;
  bool has_columns_ = false;
  int dimensions_ = 0;  // leading dimensions of x, from the innermost on
  int64_t sizes_[kMaxRank], strides_[kMaxRank];
};

inline BroadcastMask::BroadcastMask(const View& mask, const View& x) : data_(static_cast<const uint8_t*>(mask.data)) {
  const int missing = x.rank - mask.rank;
  const auto size = [&](int i) { return i < missing ? 1 : mask.sizes[i - missing]; };
  has_columns_ = size(x.rank - 1) != 1;
  int64_t below = size(x.rank - 1);  // mask stride of the present dimension
  for (int i = x.rank - 2; i >= 0; --i) {
    const int64_t stride = size(i) == 1 ? 0 : below;
    below *= size(i);
    if (x.sizes[i] == 1) continue;
    const int last = dimensions_ - 1;
    if (last >= 0 && stride == sizes_[last] * strides_[last]) {
      sizes_[last] *= x.sizes[i];
    } else {
      sizes_[dimensions_] = x.sizes[i];
      strides_[dimensions_++] = stride;
    }
  }
  elements_ = below;
}

}  // namespace fusedops
