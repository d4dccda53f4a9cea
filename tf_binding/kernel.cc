// One kernel class for every declared operator, on the CPU and on the GPU. A build without CUDA kernels says so when
// one is called: unregistered, it would be copied to the CPU and back in silence.
#include "attributes.h"
#include "dense.h"
#include "registration.h"
#include "table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tsl/platform/denormal.h"
#include "xla/stream_executor/stream.h"

namespace fusedops::tf_binding {
namespace {

// TensorFlow's threads flush denormal numbers to zero, PyTorch's do only if the user asks for it.
using IeeeDenormals = tsl::port::ScopedDontFlushDenormal;

void parallel_for(void* pool, int64_t count, int64_t cost, Context::Body body, void* closure) {
  using tensorflow::thread::ThreadPool;
  if (count <= 1) return body(closure, 0, count);
  static_cast<ThreadPool*>(pool)->ParallelFor(count, ThreadPool::SchedulingParams::Adaptive(cost),
                                              [body, closure](int64_t begin, int64_t end) {
                                                const IeeeDenormals ieee;
                                                body(closure, begin, end);
                                              });
}

// One call: its views and shapes live on the stack, since a small operator is over in a microsecond.
class Execution {
 public:
  Execution(const Operator& op, const Value* attributes, const bool* present, bool cuda,
            tensorflow::OpKernelContext* context)
      : op_(op), present_(present), context_(context), rule_(op, attributes), call_(op) {
    call_.attributes = attributes;
    call_.context.cuda = cuda;
  }

  absl::Status run() {
    TF_RETURN_IF_ERROR(read_inputs());
    if (const Status status = rule_.infer(); !status.ok()) return invalid(status);
    TF_RETURN_IF_ERROR(allocate_outputs());
    TF_RETURN_IF_ERROR(allocate_workspace());
    lend_device();
    const Status status = execute();
    if (status.ok()) return absl::OkStatus();
    return is_about_an_argument(status) ? invalid(status) : absl::InternalError(status.sentence());
  }

 private:
  absl::Status read_inputs() {
    for (int i = 0, position = 0; i < static_cast<int>(op_.inputs.size()); ++i) {
      if (!present_[i]) continue;
      const tensorflow::Tensor& tensor = context_->input(position++);
      if (const Status status = rule_.check_rank(i, tensor.dims()); !status.ok()) return invalid(status);
      Shape& shape = rule_.inputs[i];
      shape.present = true;
      shape.dtype = core_dtype(tensor.dtype());
      shape.rank = tensor.dims();
      for (int d = 0; d < shape.rank; ++d) shape.dims[d] = tensor.dim_size(d);
      inputs_[i] = view(tensor, shape, input_strides_[i]);
      call_.inputs[i] = &inputs_[i];
    }
    return absl::OkStatus();
  }

  absl::Status allocate_outputs() {
    for (int i = 0; i < static_cast<int>(op_.outputs.size()); ++i) {
      const Shape& shape = rule_.outputs[i];
      TF_RETURN_IF_ERROR(check_output_dtype(rule_, i, context_->expected_output_dtype(i)));
      tensorflow::TensorShape sizes;
      TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(
          absl::Span<const int64_t>(shape.dims, static_cast<size_t>(shape.rank)), &sizes));
      tensorflow::Tensor* tensor;
      TF_RETURN_IF_ERROR(context_->allocate_output(i, sizes, &tensor));
      call_.outputs[i] = view(*tensor, shape, output_strides_[i]);
    }
    return absl::OkStatus();
  }

  absl::Status allocate_workspace() {
    const auto bytes = static_cast<int64_t>(op_.workspace ? op_.workspace(call_) : 0);
    if (bytes == 0) return absl::OkStatus();
    TF_RETURN_IF_ERROR(context_->allocate_temp(tensorflow::DT_UINT8, tensorflow::TensorShape({bytes}), &workspace_));
    call_.workspace = workspace_.data();
    return absl::OkStatus();
  }

  void lend_device() {
    if (call_.context.cuda) {
      call_.context.stream = context_->op_device_context()->stream()->platform_specific_handle().stream;
    } else {
      call_.context.parallel = parallel_for;
      call_.context.pool = context_->device()->tensorflow_cpu_worker_threads()->workers;
    }
  }

  Status execute() const {
    const IeeeDenormals ieee;
    return fusedops::run(op_, call_);
  }

  static View view(const tensorflow::Tensor& tensor, const Shape& shape, int64_t* strides) {
    return dense_view(tensor.data(), shape.dtype, shape.rank, shape.dims, strides);
  }

  const Operator& op_;
  const bool* present_;
  tensorflow::OpKernelContext* context_;
  Rule rule_;
  Call call_;
  View inputs_[kMaxInputs];
  tensorflow::Tensor workspace_;
  int64_t input_strides_[kMaxInputs][kMaxRank];
  int64_t output_strides_[kMaxOutputs][kMaxRank];
};

class Kernel : public tensorflow::OpKernel {
 public:
  Kernel(const Operator& op, bool cuda, tensorflow::OpKernelConstruction* construction)
      : OpKernel(construction), op_(op), cuda_(cuda) {
    OP_REQUIRES_OK(construction, read_attributes(*construction, op, attributes_));
    const Rule rule(op, attributes_);
    for (int i = 0; i < static_cast<int>(op.inputs.size()); ++i)
      OP_REQUIRES_OK(construction, read_presence(*construction, rule, i, &present_[i]));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    Execution execution(op_, attributes_, present_, cuda_, context);
    OP_REQUIRES_OK(context, execution.run());
  }

 private:
  const Operator& op_;
  const bool cuda_;
  Value attributes_[kMaxAttributes];
  bool present_[kMaxInputs];
};

}  // namespace

void register_kernels(const Operator& op) {
  register_kernel(op, tensorflow::DEVICE_CPU,
                  [](const Operator& op, tensorflow::OpKernelConstruction* node) -> tensorflow::OpKernel* {
                    return new Kernel(op, false, node);
                  });
  register_kernel(op, tensorflow::DEVICE_GPU,
                  [](const Operator& op, tensorflow::OpKernelConstruction* node) -> tensorflow::OpKernel* {
                    return new Kernel(op, true, node);
                  });
}

}  // namespace fusedops::tf_binding
