// Operators that consist of calls of other operators, on the CPU and on a GPU.
#pragma once

#include <algorithm>

#include "core/declaration/operator.h"

namespace fusedops {

// A matrix argument of such a call: contiguous in the workspace, or the rows of a view.
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

// A call of another operator on the same device. Arguments and attributes that are not set are absent, false or empty.
template <const Signature& kOp>
struct SubCall {
  explicit SubCall(const Call& whole) : call(built_in<kOp>()) {
    call.context = whole.context;
    call.attributes = Attributes(values);
  }
  SubCall(const SubCall&) = delete;

  template <Name kName>
  const View*& input() {
    return call.inputs[input_of(kOp, kName.text)];
  }

  template <Name kName>
  View& output() {
    return call.outputs[output_of(kOp, kName.text)];
  }

  template <Name kName>
  void set(bool value) {
    values[attribute_of<bool>(kOp, kName.text).index].i64 = value;
  }

  template <Name kName>
  void set_text(const std::string& value) {
    values[attribute_of<std::string>(kOp, kName.text).index].string = value;
  }

  size_t workspace() const { return call.op.workspace ? call.op.workspace(call) : 0; }

  Status run(void* workspace) {
    call.workspace = workspace;
    return fusedops::run(call.op, call);
  }

  Value values[kMaxAttributes];
  Call call;
};

// Allocates from the workspace. Without memory it only counts the bytes.
class WorkspaceAllocator {
 public:
  explicit WorkspaceAllocator(void* workspace) : data_(static_cast<char*>(workspace)) {}

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

// The workspace size and the kernel of an operator that consists of calls. Calls(call, workspace) has workspace(),
// which returns the bytes, and run(). Without memory only workspace() is called.
template <class Calls>
size_t workspace_of_calls(const Call& call) {
  return Calls(call, nullptr).workspace();
}
template <class Calls>
Status run_calls(const Call& call) {
  return Calls(call, call.workspace).run();
}

// Such an operator has a CUDA kernel in builds in which the operator that it calls has one.
template <class Calls>
Implementation in_calls(Status (*rule)(Rule&), const Operator& called) {
  return {.rule = rule,
          .workspace = workspace_of_calls<Calls>,
          .cpu = run_calls<Calls>,
          .cuda = called.cuda ? run_calls<Calls> : nullptr};
}

}  // namespace fusedops
