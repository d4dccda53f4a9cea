// The handlers of XLA's custom call, in TensorFlow and in JAX. They run the operator that the call names, on XLA's
// buffers.
#include "handler.h"

#include <new>
#include <string>
#include <vector>

#include "call.h"
#include "core/declaration/operator.h"
#include "denormals.h"
#include "dense.h"
#include "host_threads.h"
#include "xla/ffi/api/ffi.h"

namespace fusedops::xla_binding {
namespace {

namespace ffi = xla::ffi;

DType core_dtype(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::F64:
      return DType::f64;
    case ffi::F32:
      return DType::f32;
    case ffi::F16:
      return DType::f16;
    case ffi::BF16:
      return DType::bf16;
    case ffi::PRED:
      return DType::boolean;
    case ffi::U8:
      return DType::u8;
    case ffi::S8:
      return DType::i8;
    case ffi::S16:
      return DType::i16;
    case ffi::S32:
      return DType::i32;
    case ffi::S64:
      return DType::i64;
    case ffi::F8E4M3FN:
      return DType::f8_e4m3fn;
    case ffi::F8E5M2:
      return DType::f8_e5m2;
    default:
      return DType::other;  // refused by every operator
  }
}

// The buffers of a call as the core sees them.
class Execution {
 public:
  Execution(const Operator& op, const Context& context) : op_(op), call_(op) {
    call_.attributes = attributes_;
    call_.context = context;
  }

  ffi::Error run(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary dictionary) {
    const auto counts = dictionary.get<ffi::Span<const int64_t>>(kCounts);
    const auto attributes = dictionary.get<ffi::Dictionary>(kAttributes);
    if (!counts) return counts.error();
    if (!attributes) return attributes.error();
    for (size_t i = 0; i < op_.attributes.size(); ++i) {
      const auto text = attributes->get<std::string_view>(op_.attributes[i].name);
      if (!text) return text.error();
      parse(op_.attributes[i].type, *text, &attributes_[i]);  // spelled by the lowering
    }
    if (const ffi::Error error = read_operands(operands, *counts); error.failure()) return error;
    for (size_t i = 0; i < op_.outputs.size(); ++i) {
      auto result = results.get<ffi::AnyBuffer>(i);
      if (!result) return result.error();
      call_.outputs[i] = view(**result, output_strides_[i]);
    }
    auto workspace = results.get<ffi::AnyBuffer>(op_.outputs.size());
    if (!workspace) return workspace.error();
    call_.workspace = (*workspace)->untyped_data();
    // The size is part of the program, which may be older than this library.
    const size_t given = (*workspace)->size_bytes(), needed = op_.workspace ? op_.workspace(call_) : 0;
    if (given < needed)
      return ffi::Error::InvalidArgument(std::string("fusedops.") + public_name(op_) +
                                         ": the workspace of the program must have " + std::to_string(needed) +
                                         " bytes in this version, so export it again; got " + std::to_string(given));
    if (const ffi::Error error = check_mutated(results); error.failure()) return error;

    const IeeeDenormals ieee;
    const Status status = fusedops::run(op_, call_);
    if (status.ok()) return ffi::Error::Success();
    return is_about_an_argument(status) ? ffi::Error::InvalidArgument(status.sentence())
                                        : ffi::Error::Internal(status.sentence());
  }

 private:
  ffi::Error read_operands(ffi::RemainingArgs operands, ffi::Span<const int64_t> counts) {
    inputs_.reserve(operands.size());
    input_strides_.resize(operands.size() * kMaxRank);
    for (size_t position = 0; position < operands.size(); ++position) {
      const auto operand = operands.get<ffi::AnyBuffer>(position);
      if (!operand) return operand.error();
      inputs_.push_back(view(*operand, &input_strides_[position * kMaxRank]));
    }
    for (size_t i = 0, position = 0; i < op_.inputs.size(); position += static_cast<size_t>(counts[i++])) {
      if (counts[i] > 0) call_.inputs[i] = &inputs_[position];
      if (op_.inputs[i].kind == Kind::list) call_.counts[i] = counts[i];
      for (int64_t item = 0; op_.inputs[i].updated && item < counts[i]; ++item)
        mutated_.push_back(&inputs_[position + static_cast<size_t>(item)]);
    }
    return ffi::Error::Success();
  }

  // The operator writes a mutated input in the memory of the operand, which must also be the result's.
  ffi::Error check_mutated(ffi::RemainingRets results) {
    for (size_t i = 0; i < mutated_.size(); ++i) {
      auto result = results.get<ffi::AnyBuffer>(op_.outputs.size() + 1 + i);
      if (!result) return result.error();
      if ((*result)->element_count() > 0 && (*result)->untyped_data() != mutated_[i]->data)
        return ffi::Error::Internal(std::string("fusedops: XLA has given ") + op_.name + " two memories of a variable");
    }
    return ffi::Error::Success();
  }

  // uint32 [..., 2] is int64 [...] in two words: JAX has no int64 by default, and no operator takes uint32.
  static View view(const ffi::AnyBuffer& buffer, int64_t* strides) {
    const auto sizes = buffer.dimensions();
    const auto rank = static_cast<int>(sizes.size());
    if (buffer.element_type() == ffi::U32 && rank > 0 && sizes[rank - 1] == 2)
      return dense_view(buffer.untyped_data(), DType::i64, rank - 1, sizes.begin(), strides);
    return dense_view(buffer.untyped_data(), core_dtype(buffer.element_type()), rank, sizes.begin(), strides);
  }

  const Operator& op_;
  Call call_;
  Value attributes_[kMaxAttributes];
  std::vector<View> inputs_;  // one per operand
  std::vector<int64_t> input_strides_;
  std::vector<const View*> mutated_;
  int64_t output_strides_[kMaxOutputs][kMaxRank];
};

ffi::Error execute(const Context& context, ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary dictionary) {
  const auto name = dictionary.get<std::string_view>(kOperator);
  if (!name) return name.error();
  const Operator* op = find_operator(*name);
  if (!op) return ffi::Error::Internal("fusedops: no operator is named " + std::string(*name));
  try {
    return Execution(*op, context).run(operands, results, dictionary);
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, out_of_memory(*op));
  }
}

ffi::Error execute_on_host(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                           ffi::Dictionary dictionary) {
  Context context;
  context.parallel = parallel_for;
  context.pool = &pool;
  return execute(context, operands, results, dictionary);
}

ffi::Error execute_on_cuda(void* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                           ffi::Dictionary dictionary) {
  Context context;
  context.cuda = true;
  context.stream = stream;
  return execute(context, operands, results, dictionary);
}

}  // namespace
}  // namespace fusedops::xla_binding

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(fusedops_xla_on_host, fusedops::xla_binding::execute_on_host,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs());
// No kernel allocates or waits: XLA may capture the launches of many calls in one CUDA graph.
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fusedops_xla_on_cuda, fusedops::xla_binding::execute_on_cuda,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().RemainingArgs().RemainingRets().Attrs(),
    {ffi::Traits::kCmdBufferCompatible});
