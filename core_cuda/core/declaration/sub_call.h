// For an operator that consists of calls of others, one after the other, on the CPU and on a GPU alike.
#pragma once

#include <algorithm>

#include "core/declaration/operator.h"

namespace fusedops {

// A matrix that such a call reads or writes: without gaps in the workspace, or the rows of a view.
struct MatrixView {
  MatrixView(DType dtype, int64_t rows, int64_t columns, int64_t stride, void* data = nullptr)
      : sizes{rows, columns}, strides{stride, 1}, view{data, dtype, 2, sizes, strides} {}
  MatrixView(const MatrixView&) = delete;

  static MatrixView of_rows(const View& view) {
    const Rows rows = as_rows(view);
    return {view.dtype, rows.count, rows.size, rows.stride, view.data};
  }

  int64_t bytes() const { return sizes[0] * sizes[1] * size_of(view.dtype); }

  int64_t sizes[2], strides[2];
  View view;
};

// A call of another operator, on the device of the whole. What is not set is absent, false or empty.
struct SubCall {
  SubCall(const Operator& op, const Call& whole) : call(op) {
    call.context = whole.context;
    call.attributes = Attributes(values);
  }
  SubCall(const SubCall&) = delete;

  void set(AttributePlace<bool> at, bool value) { values[at.place].i64 = value; }
  void set(AttributePlace<std::string> at, const std::string& value) { values[at.place].string = value; }

  size_t workspace() const { return call.op.workspace ? call.op.workspace(call) : 0; }

  Status run(void* workspace) {
    call.workspace = workspace;
    return fusedops::run(call.op, call);
  }

  Value values[kMaxAttributes];
  Call call;
};

// Deals out the workspace; one without memory counts what is needed.
class Memory {
 public:
  explicit Memory(void* workspace) : data_(static_cast<char*>(workspace)) {}

  void* take(size_t bytes) {
    constexpr size_t kAlignment = 128;
    void* const at = rest();
    taken_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }

  void take(MatrixView& matrix) { matrix.view.data = take(matrix.bytes()); }

  void* rest() const { return data_ ? data_ + taken_ : nullptr; }
  size_t taken() const { return taken_; }

 private:
  char* data_;
  size_t taken_ = 0;
};

}  // namespace fusedops
