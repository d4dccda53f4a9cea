// FusedopsKeep(y, saved...) returns y. It is not an operator of the core: fusedops/tf/calls.py explains its use.
#include "registration.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace fusedops::tf_binding {
namespace {

REGISTER_OP("FusedopsKeep")
    .Input("y: T")
    .Input("saved: Saved")
    .Output("kept: T")
    .Attr("T: type")
    .Attr("Saved: list(type)")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

class Keep : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  bool IsExpensive() override { return false; }
  void Compute(tensorflow::OpKernelContext* context) override { context->set_output(0, context->input(0)); }
};

class KeepFactory : public tensorflow::kernel_factory::OpKernelFactory {
 public:
  tensorflow::OpKernel* Create(tensorflow::OpKernelConstruction* node) override { return new Keep(node); }
};

[[maybe_unused]] const bool registered = [] {
  for (const char* device : {tensorflow::DEVICE_CPU, tensorflow::DEVICE_GPU})
    if (!has_kernel("FusedopsKeep", device)) register_kernel("FusedopsKeep", device, std::make_unique<KeepFactory>());
  return true;
}();

}  // namespace
}  // namespace fusedops::tf_binding
