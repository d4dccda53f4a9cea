// The variables that a call updates, held for its duration.
#pragma once

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace fusedops::tf_binding {

class Variables {
 public:
  explicit Variables(tensorflow::OpKernelContext* context) : context_(context) {}
  ~Variables();
  Variables(const Variables&) = delete;

  // The variable whose handle is the input in this position.
  absl::Status add(int position);

  // Locks all, in the order that TensorFlow's own kernels keep: by address. A variable that is given twice, once.
  void lock();

  // While they are locked: the value of the one that was added in this place; and the same in memory that no other
  // tensor shares, which a reader may still hold.
  tensorflow::Tensor* value(size_t place) const { return variables_[place]->tensor(); }
  absl::Status make_writable(size_t place);

  size_t size() const { return variables_.size(); }

 private:
  tensorflow::OpKernelContext* context_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::Var*> locked_;
};

}  // namespace fusedops::tf_binding
