// Chooses the kernels for attention: by what follows from shapes, strides and dtypes, and by what the GPU can do.
#include "core/cuda/launch.cuh"
#include "ops/attention/attention_paths.h"

namespace fusedops {
namespace cuda {
namespace {

bool is_16_bit(const Attention& call) { return size_of(call.dtype) == 2; }

#ifdef FUSEDOPS_SM90

Status runs_sm90(const Attention& call, bool taken, bool* result) {
  *result = false;
  return is_16_bit(call) && taken ? has_sm90(result) : Status();
}

#endif

Status run_forward(const Attention& call, void* workspace, const Context& context) {
  const bool drops = call.dropout.seed;
  if (!is_16_bit(call)) return (drops ? attention_dropout_simple : attention_simple)(call, context);
  if (is_split(call)) return attention_split(call, workspace, context);
#ifdef FUSEDOPS_SM90
  bool sm90 = false;
  FUSEDOPS_TRY(runs_sm90(call, takes_sm90(call), &sm90));
  if (sm90) return (call.has_mask || drops ? attention_bits_sm90 : attention_sm90)(call, workspace, context);
#endif
  const bool f16 = call.dtype == DType::f16;
  if (drops) return (f16 ? attention_dropout_mma_f16 : attention_dropout_mma_bf16)(call, context);
  return (f16 ? attention_mma_f16 : attention_mma_bf16)(call, context);
}

Status run_backward(const Attention& call, void* workspace, const Context& context) {
  const bool drops = call.dropout.seed;
  if (!is_16_bit(call))
    return (drops ? attention_dropout_simple_backward : attention_simple_backward)(call, workspace, context);
#ifdef FUSEDOPS_SM90
  bool sm90 = false;
  FUSEDOPS_TRY(runs_sm90(call, takes_sm90_backward(call), &sm90));
  if (sm90)
    return (call.has_mask || drops ? attention_bits_sm90_backward : attention_sm90_backward)(call, workspace, context);
#endif
  const bool f16 = call.dtype == DType::f16;
  if (drops)
    return (f16 ? attention_dropout_mma_backward_f16 : attention_dropout_mma_backward_bf16)(call, workspace, context);
  return (f16 ? attention_mma_backward_f16 : attention_mma_backward_bf16)(call, workspace, context);
}

using Run = Status (*)(const Attention&, void* workspace, const Context&);

Status run(const Call& call, bool is_backward) {
  const Run kernels = is_backward ? run_backward : run_forward;
  Attention attention = Attention::of(call);
  if (!attention.offsets_q) return kernels(attention, call.workspace, call.context);
  const PackedOffsets offsets(attention, call.workspace);
  FUSEDOPS_TRY(sanitize_offsets(attention, offsets, is_backward, call.context));
  if (attention.sequences == 0) return {};
  attention.offsets_q = offsets.q, attention.offsets_k = offsets.k;
  return kernels(attention, static_cast<char*>(call.workspace) + offsets.size, call.context);
}

}  // namespace
}  // namespace cuda

Status attention_cuda(const Call& call) { return cuda::run(call, /*is_backward=*/false); }

Status attention_varlen_cuda(const Call& call) { return cuda::run(call, /*is_backward=*/false); }

Status attention_backward_cuda(const Call& call) { return cuda::run(call, /*is_backward=*/true); }

Status attention_varlen_backward_cuda(const Call& call) { return cuda::run(call, /*is_backward=*/true); }

}  // namespace fusedops
