// Registers kernels with TensorFlow.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

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

inline bool has_kernel(const std::string& op, const char* device) {
  const tensorflow::KernelList known = tensorflow::GetRegisteredKernelsForOp(op);
  return std::any_of(known.kernel().begin(), known.kernel().end(),
                     [device](const tensorflow::KernelDef& kernel) { return kernel.device_type() == device; });
}

inline void register_kernel(const std::string& op, const char* device,
                            std::unique_ptr<tensorflow::kernel_factory::OpKernelFactory> factory) {
  tensorflow::kernel_factory::OpKernelRegistrar(tensorflow::KernelDefBuilder(op.c_str()).Device(device).Build(), op,
                                                std::move(factory));
}

// Of every operator for one device. Nothing, if a copy of this library did so before: of two kernels TensorFlow would
// run neither.
inline void register_kernels(const char* device, MakeKernel make) {
  if (has_kernel(type_name(operators().front()->name), device)) return;
  for (const Operator* op : operators())
    register_kernel(type_name(op->name), device, std::make_unique<KernelFactory>(*op, make));
}

}  // namespace fusedops::tf_binding
