// One kernel class for every declared operator, on the CPU and on the GPU. A build without CUDA kernels registers GPU
// kernels that raise an error: otherwise TensorFlow would copy tensors to the CPU and back without notice.
#include <new>

#include "attributes.h"
#include "call.h"
#include "denormals.h"
#include "dense.h"
#include "registration.h"
#include "table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "variables.h"
#include "xla/stream_executor/stream.h"

namespace fusedops::tf_binding {
namespace {

using xla_binding::dense_view;
using xla_binding::IeeeDenormals;

void parallel_for(void* pool, int64_t count, int64_t cost, Context::Body body, void* closure) {
  using tensorflow::thread::ThreadPool;
  if (count <= 1) return body(closure, 0, count);
  static_cast<ThreadPool*>(pool)->ParallelFor(count, ThreadPool::SchedulingParams::Adaptive(cost),
                                              [body, closure](int64_t begin, int64_t end) {
                                                const IeeeDenormals ieee;
                                                body(closure, begin, end);
                                              });
}

// One call. Its views and shapes live on the stack, since a small operator takes a microsecond.
class Execution {
 public:
  // `counts`: the number of tensors of each input; 0 for an absent one.
  Execution(const Operator& op, const Value* attributes, const int64_t* counts, bool cuda,
            tensorflow::OpKernelContext* context)
      : op_(op), counts_(counts), context_(context), variables_(context), rule_(op, attributes, items_), call_(op) {
    call_.attributes = attributes;
    call_.context.cuda = cuda;
  }

  absl::Status run() {
    TF_RETURN_IF_ERROR(lock_variables());
    TF_RETURN_IF_ERROR(read_inputs());
    if (const Status status = rule_.infer(); !status.ok()) return invalid(status);
    TF_RETURN_IF_ERROR(make_writable());
    TF_RETURN_IF_ERROR(allocate_outputs());
    TF_RETURN_IF_ERROR(allocate_workspace());
    lend_device();
    const Status status = execute();
    if (status.ok()) return absl::OkStatus();
    return xla_binding::is_about_an_argument(status) ? invalid(status) : absl::InternalError(status.sentence());
  }

 private:
  // The tensors of lists, one list after the other. Their sizes and strides share one buffer, which moves while it
  // grows: the views point into it once all are known.
  struct Items {
    std::vector<View> views;
    std::vector<int64_t> numbers;  // of each tensor the sizes, then the strides
    size_t first[kMaxInputs] = {};

    void add(const tensorflow::Tensor& tensor) {
      views.push_back({tensor.data(), core_dtype(tensor.dtype()), tensor.dims(), nullptr, nullptr});
      for (int d = 0; d < tensor.dims(); ++d) numbers.push_back(tensor.dim_size(d));
      numbers.resize(numbers.size() + static_cast<size_t>(tensor.dims()));
    }

    void finish() {
      int64_t* next = numbers.data();
      for (View& view : views) {
        view = dense_view(view.data, view.dtype, view.rank, next, next + view.rank);
        next += 2 * view.rank;
      }
    }
  };

  class ListRule : public Rule {
   public:
    ListRule(const Operator& op, const Value* attributes, const Items& items) : Rule(op, attributes), items_(items) {}

    void read(int input, int64_t item, Shape* shape) override {
      const View& view = items_.views[items_.first[input] + static_cast<size_t>(item)];
      shape->present = true;
      shape->dtype = view.dtype;
      shape->rank = view.rank;
      std::copy_n(view.sizes, view.rank, shape->dims);
    }

   private:
    const Items& items_;
  };

  // Called before any input is read, so that no other kernel writes in between.
  absl::Status lock_variables() {
    for (int i = 0, position = 0; i < static_cast<int>(op_.inputs.size()); position += counts_[i++])
      for (int item = 0; op_.inputs[i].updated && item < counts_[i]; ++item)
        TF_RETURN_IF_ERROR(variables_.add(position + item));
    variables_.lock();
    return absl::OkStatus();
  }

  absl::Status read_inputs() {
    size_t variables = 0;
    for (int i = 0, position = 0; i < static_cast<int>(op_.inputs.size()); ++i) {
      const Input& input = op_.inputs[i];
      const bool is_list = input.kind == Kind::list;
      items_.first[i] = items_.views.size();
      if (is_list) rule_.counts[i] = call_.counts[i] = counts_[i];
      for (int64_t item = 0; item < counts_[i]; ++item, ++position) {
        const tensorflow::Tensor& tensor = input.updated ? *variables_.value(variables++) : context_->input(position);
        if (input.updated && !tensor.IsInitialized())
          return absl::FailedPreconditionError(std::string("fusedops.") + public_name(op_) + ": " + input.name +
                                               " must be variables that have a value");
        const Status status = rule_.check_rank(i, tensor.dims(), is_list ? item : Rule::kNotInList);
        if (!status.ok()) return invalid(status);
        is_list ? items_.add(tensor) : read_input(i, tensor);
      }
    }
    items_.finish();
    for (size_t i = 0; i < op_.inputs.size(); ++i)
      if (call_.counts[i] > 0) call_.inputs[i] = &items_.views[items_.first[i]];
    return absl::OkStatus();
  }

  void read_input(int i, const tensorflow::Tensor& tensor) {
    Shape& shape = rule_.inputs[i];
    shape.present = true;
    shape.dtype = core_dtype(tensor.dtype());
    shape.rank = tensor.dims();
    for (int d = 0; d < shape.rank; ++d) shape.dims[d] = tensor.dim_size(d);
    inputs_[i] = view(tensor, shape, input_strides_[i]);
    call_.inputs[i] = &inputs_[i];
  }

  // Called after all checks: gives mutated tensors memory of their own.
  absl::Status make_writable() {
    size_t variables = 0;
    for (size_t i = 0; i < op_.inputs.size(); ++i) {
      if (!op_.inputs[i].updated) continue;
      View* views = op_.inputs[i].kind == Kind::list ? items_.views.data() + items_.first[i] : &inputs_[i];
      for (int64_t item = 0; item < counts_[i]; ++item, ++variables) {
        TF_RETURN_IF_ERROR(variables_.make_writable(variables));
        views[item].data = variables_.value(variables)->data();
      }
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
  const int64_t* counts_;
  tensorflow::OpKernelContext* context_;
  Variables variables_;
  Items items_;
  ListRule rule_;
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
      OP_REQUIRES_OK(construction, read_count(*construction, rule, i, &counts_[i]));
  }

  void Compute(tensorflow::OpKernelContext* context) override { OP_REQUIRES_OK(context, execute(context)); }

 private:
  absl::Status execute(tensorflow::OpKernelContext* context) const try {
    return Execution(op_, attributes_, counts_, cuda_, context).run();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(out_of_memory(op_));
  }

  const Operator& op_;
  const bool cuda_;
  Value attributes_[kMaxAttributes];
  int64_t counts_[kMaxInputs];
};

template <bool kCuda>
tensorflow::OpKernel* make_kernel(const Operator& op, tensorflow::OpKernelConstruction* node) {
  return new Kernel(op, kCuda, node);
}

}  // namespace

void register_kernels(const Operator& op) {
  register_kernel(op, tensorflow::DEVICE_CPU, make_kernel<false>);
  register_kernel(op, tensorflow::DEVICE_GPU, make_kernel<true>);
}

}  // namespace fusedops::tf_binding
