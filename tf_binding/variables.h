// The variables that a call mutates, locked for its duration.
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

  // Adds the variable whose handle is the input at this position.
  absl::Status add(int position);

  // Locks each variable once, in order of address, as TensorFlow's own kernels do.
  void lock();

  // Both need the lock. `place` is the index in the order of `add`. make_writable gives the value memory that it shares
  // with no other tensor, such as one that a reader still holds.
  tensorflow::Tensor* value(size_t place) const { return variables_[place]->tensor(); }
  absl::Status make_writable(size_t place);

 private:
  tensorflow::OpKernelContext* context_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::Var*> locked_;
};

}  // namespace fusedops::tf_binding
