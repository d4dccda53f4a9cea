// Registers kernels with TensorFlow, and each operator of the table once: built-in ones while a library is loaded,
// others when a process has added them.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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
  tensorflow::NodeDef node;
  node.set_op(op);
  return tensorflow::KernelDefAvailable(tensorflow::DeviceType(device), node);
}

// `on_host`: the inputs in host memory, which are handles of variables.
inline void register_kernel(const std::string& op, const char* device,
                            std::unique_ptr<tensorflow::kernel_factory::OpKernelFactory> factory,
                            const std::vector<std::string>& on_host = {}) {
  tensorflow::KernelDefBuilder builder(op.c_str());
  builder.Device(device);
  for (const std::string& input : on_host) builder.HostMemory(input.c_str());
  tensorflow::kernel_factory::OpKernelRegistrar(builder.Build(), op, std::move(factory));
}

// Registers the kernel of an operator for one device, unless a copy of this library has done so: TensorFlow runs
// neither of two kernels.
inline void register_kernel(const Operator& op, const char* device, MakeKernel make) {
  const std::string type = type_name(op.name);
  std::vector<std::string> variables;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (op.inputs[i].updated) variables.push_back(argument_name(op, op.inputs[i].name, i));
  if (!has_kernel(type, device)) register_kernel(type, device, std::make_unique<KernelFactory>(op, make), variables);
}

// The operators that a library has not registered yet.
class NewOperators {
 public:
  // Calls `add` once for each, and skips those that it refuses. Returns null or the first refusal, which is valid until
  // the thread's next call.
  const char* registered(Status (*add)(const Operator& op)) {
    thread_local std::string refusal;
    refusal.clear();
    const std::lock_guard lock(mutex_);
    for (const Operator* op : operators().subspan(known_)) {
      ++known_;
      if (const Status status = add(*op); !status.ok() && refusal.empty()) refusal = status.sentence();
    }
    return refusal.empty() ? nullptr : refusal.c_str();
  }

 private:
  std::mutex mutex_;
  size_t known_ = 0;
};

}  // namespace fusedops::tf_binding
