#include "variables.h"

#include <algorithm>
#include <cstring>

#include "tensorflow/core/framework/device.h"

namespace fusedops::tf_binding {

using tensorflow::Tensor;

absl::Status Variables::add(int position) {
  const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context_, position);
  TF_RETURN_IF_ERROR(tensorflow::LookupResource(context_, handle, &variables_.emplace_back()));
  return absl::OkStatus();
}

void Variables::lock() {
  for (const auto& variable : variables_) locked_.push_back(variable.get());
  std::sort(locked_.begin(), locked_.end());
  locked_.erase(std::unique(locked_.begin(), locked_.end()), locked_.end());
  for (tensorflow::Var* variable : locked_) variable->mu()->lock();
}

Variables::~Variables() {
  for (tensorflow::Var* variable : locked_) variable->mu()->unlock();
}

absl::Status Variables::make_writable(size_t place) {
  tensorflow::Var& variable = *variables_[place];
  Tensor* const value = variable.tensor();
  if (value->RefCountIsOne() && !variable.copy_on_read_mode.load()) return absl::OkStatus();
  tensorflow::AllocatorAttributes attributes;
  attributes.set_gpu_compatible(true);
  attributes.set_nic_compatible(true);
  Tensor copy;
  TF_RETURN_IF_ERROR(context_->allocate_temp(value->dtype(), value->shape(), &copy, attributes));
  absl::Status copied;
  if (const auto* device = context_->op_device_context()) {
    // Queued on the device's stream, before the kernel.
    device->CopyTensorInSameDevice(value, static_cast<tensorflow::Device*>(context_->device()), &copy,
                                   [&copied](const absl::Status& status) { copied = status; });
  } else {
    std::memcpy(copy.data(), value->data(), value->TotalBytes());
  }
  if (copied.ok()) *value = copy;
  return copied;
}

}  // namespace fusedops::tf_binding
