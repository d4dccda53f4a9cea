// Masks and biases of scores: tensors that are broadcast to them, row by row.
#pragma once

#include <cstdint>

#include "core/common/numeric.h"
#include "core/declaration/rule.h"
#include "core/declaration/view.h"

namespace fusedops {

inline Status check_mask_dtype(const Rule& rule, int mask) {
  const DType got = rule.inputs[mask].dtype;
  if (got == DType::boolean) return {};
  return rule.must(mask, "be bool",
                   std::string(name_of(got)) + ": True marks what is visible; a bias is added to the scores");
}

// Checks a tensor that is broadcast to `to`, which `described` names in the error sentence.
inline Status check_broadcast(const Rule& rule, int input, const Shape& to, const std::string& described) {
  const Shape& got = rule.inputs[input];
  if (!got.ranked || !to.ranked) return {};
  bool fits = got.rank <= to.rank;
  for (int i = 1; fits && i <= got.rank; ++i) {
    const Dim size = got.dims[got.rank - i], full = to.dims[to.rank - i];
    fits = size == 1 || size == full || size < 0 || full < 0;  // unknown dimensions are checked once they are known
  }
  return fits ? Status() : rule.must(input, "be broadcastable to " + described, rule.show(got));
}

// The rows of a tensor that is broadcast to x.
class BroadcastRows {
 public:
  BroadcastRows() = default;
  BroadcastRows(const View& tensor, const View& x);  // contiguous, of no higher rank; each dimension is x's or 1

  // Place of the first element for a row of x. Dimensions are collapsed if possible, so that a typical mask has two or
  // three.
  FUSEDOPS_HD int64_t place(int64_t row) const {
    int64_t place = 0;
    for (int i = 0; i + 1 < dimensions_; ++i) {
      place += row % sizes_[i] * strides_[i];
      row /= sizes_[i];
    }
    return place + (dimensions_ > 0 ? row * strides_[dimensions_ - 1] : 0);
  }

  // The i-th row of x, of sharing_rows(), whose first element is at a place.
  FUSEDOPS_HD int64_t row_at(int64_t place, int64_t i) const {
    int64_t row = 0, step = 1;
    for (int d = 0; d < dimensions_; ++d) {
      row += (strides_[d] ? place / strides_[d] : i) % sizes_[d] * step;
      if (strides_[d] == 0) i /= sizes_[d];
      step *= sizes_[d];
    }
    return row;
  }

  // The number of rows of x that share a row of the tensor.
  int64_t sharing_rows() const {
    int64_t product = 1;
    for (int d = 0; d < dimensions_; ++d) product *= strides_[d] ? 1 : sizes_[d];
    return product;
  }

  // The same for the first rows of matrices of `height` rows each. x has elements.
  BroadcastRows of_matrices(int64_t height) const;

  // True if a row has an element per column, false if it has one for all.
  FUSEDOPS_HD bool has_columns() const { return has_columns_; }

  int64_t elements() const { return elements_; }

 private:
  int64_t elements_ = 0;
  bool has_columns_ = false;
  int dimensions_ = 0;  // leading dimensions of x, from the innermost on
  int64_t sizes_[kMaxRank], strides_[kMaxRank];
};

inline BroadcastRows::BroadcastRows(const View& tensor, const View& x) {
  const int missing = x.rank - tensor.rank;
  const auto size = [&](int i) { return i < missing ? 1 : tensor.sizes[i - missing]; };
  has_columns_ = size(x.rank - 1) != 1;
  int64_t below = size(x.rank - 1);  // stride of the present dimension
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

inline BroadcastRows BroadcastRows::of_matrices(int64_t height) const {
  BroadcastRows matrices = *this;
  if (height == 1) return matrices;
  matrices.dimensions_ = 0;
  const auto add = [&](int64_t size, int64_t stride) {
    matrices.sizes_[matrices.dimensions_] = size, matrices.strides_[matrices.dimensions_++] = stride;
  };
  // The innermost dimension has the rows of a matrix, and may have matrices.
  if (sizes_[0] > height) add(sizes_[0] / height, strides_[0] * height);
  for (int i = 1; i < dimensions_; ++i) add(sizes_[i], strides_[i]);
  return matrices;
}

class BroadcastMask : public BroadcastRows {
 public:
  BroadcastMask() = default;
  BroadcastMask(const View& mask, const View& x)
      : BroadcastRows(mask, x), data_(static_cast<const uint8_t*>(mask.data)) {}

  // First element for a row of x.
  FUSEDOPS_HD const uint8_t* row(int64_t index) const { return data_ + place(index); }

 private:
  const uint8_t* data_ = nullptr;
};

// Numbers that are added to scores, of the scores' dtype or float32. Minus infinity masks.
class BroadcastBias : public BroadcastRows {
 public:
  BroadcastBias() = default;
  BroadcastBias(const View& bias, const View& x)
      : BroadcastRows(bias, x), numbers_{bias.data, bias.dtype == DType::f32} {}

  FUSEDOPS_HD bool is_given() const { return numbers_.data; }
  FUSEDOPS_HD bool is_f32() const { return numbers_.is_f32; }
  const void* data() const { return numbers_.data; }

  // An element of the row that begins at a place.
  template <class T>
  FUSEDOPS_HD compute_t<T> at(int64_t place, int64_t column) const {
    return numbers_.get<T>(place + (has_columns() ? column : 0));
  }

  // True if pairs of adjacent columns, the first of them even, can be loaded at once. `row`: elements between rows.
  bool has_aligned_pairs(int64_t columns, int64_t row, DType dtype) const {
    const size_t pair = 2 * (is_f32() ? sizeof(float) : size_of(dtype));
    return has_columns() && columns % 2 == 0 && row % 2 == 0 && reinterpret_cast<uintptr_t>(numbers_.data) % pair == 0;
  }

#ifdef __CUDACC__
  // Starts to bring the 128 bytes of an element into the L2 cache.
  template <class T>
  __device__ void prefetch(int64_t place, int64_t column) const {
    const int64_t bytes = (place + (has_columns() ? column : 0)) * int(is_f32() ? sizeof(float) : sizeof(T));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(numbers_.data) + bytes));
  }

  // Two adjacent elements, the first at an even place.
  template <class T>
  __device__ float2 pair(int64_t place) const {
    if (is_f32()) return *reinterpret_cast<const float2*>(static_cast<const float*>(numbers_.data) + place);
    alignas(4) T two[2];
    *reinterpret_cast<uint32_t*>(two) =
        *reinterpret_cast<const uint32_t*>(static_cast<const T*>(numbers_.data) + place);
    return {to_compute(two[0]), to_compute(two[1])};
  }
#endif

 private:
  Parameter numbers_;
};

}  // namespace fusedops
