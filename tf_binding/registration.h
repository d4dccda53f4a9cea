// Registers a kernel of every declared operator with TensorFlow.
#pragma once

#include <memory>
#include <string>

#include "names.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace fusedops::tf_binding {

using MakeKernel = tensorflow::OpKernel* (*)(const Operator& op, tensorflow::OpKernelConstruction* node);

class KernelFactory : public tensorflow::kernel_factory::OpKernelFactory {
 public:
  KernelFactory(const Operator& op, MakeKernel make) : op_(op), make_(make) {}
  tensorflow::OpKernel* Create(tensorflow::OpKernelConstruction* node) override { return make_(op_, node); }

 private:
  const Operator& op_;
  const MakeKernel make_;
};

// For one device. Nothing, if a copy of this library did so before: of two kernels TensorFlow would run neither.
inline void register_kernels(const char* device, MakeKernel make) {
  const tensorflow::KernelList before = tensorflow::GetRegisteredKernelsForOp(op_name(*operators().front()));
  for (const tensorflow::KernelDef& kernel : before.kernel())
    if (kernel.device_type() == device) return;
  for (const Operator* op : operators()) {
    const std::string name = op_name(*op);
    tensorflow::kernel_factory::OpKernelRegistrar(tensorflow::KernelDefBuilder(name.c_str()).Device(device).Build(),
                                                  name, std::make_unique<KernelFactory>(*op, make));
  }
}

}  // namespace fusedops::tf_binding
