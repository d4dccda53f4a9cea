// Runs the kernels that attention_dispatch.h chooses.
#include "core/cuda/gpu.h"
#include "core/cuda/launch.cuh"
#include "ops/attention/attention_dispatch.h"
#include "ops/attention/attention_kernels.h"

namespace fusedops {
namespace cuda {
namespace {

using K = AttentionKernel;

Status run_forward(const Attention& call, K kernel, void* workspace, const Context& context) {
  const bool f16 = call.dtype == DType::f16;
  switch (kernel) {
    case K::simt_general:
      return attention_simt_general(call, context);
    case K::simt:
      return attention_simt(call, context);
    case K::sm80_large_heads:
      return (f16 ? attention_large_heads_f16 : attention_large_heads_bf16)(call, context);
    case K::split_kv:
      return attention_split_kv(call, workspace, context);
#ifdef FUSEDOPS_SM90
    case K::sm90_large_heads:
      return attention_large_heads_sm90(call, workspace, context);
    case K::sm90_bias_tiles:
      return attention_bias_tiles_sm90(call, workspace, context);
    case K::sm90_bias:
      return attention_bias_sm90(call, workspace, context);
    case K::sm90_masked:
      return attention_masked_sm90(call, workspace, context);
    case K::sm90_alibi:
      return attention_alibi_sm90(call, workspace, context);
    case K::sm90:
      return attention_sm90(call, workspace, context);
#endif
    case K::sm80_general:
      return (f16 ? attention_sm80_general_f16 : attention_sm80_general_bf16)(call, context);
    default:
      return (f16 ? attention_sm80_f16 : attention_sm80_bf16)(call, context);
  }
}

Status run_backward(const Attention& call, K kernel, void* workspace, const Context& context) {
  const bool f16 = call.dtype == DType::f16;
  switch (kernel) {
    case K::simt_general:
      return attention_simt_general_backward(call, workspace, context);
    case K::simt:
      return attention_simt_backward(call, workspace, context);
    case K::sm80_large_heads:
      return (f16 ? attention_large_heads_backward_f16 : attention_large_heads_backward_bf16)(call, workspace, context);
#ifdef FUSEDOPS_SM90
    case K::sm90_large_heads:
      return attention_large_heads_sm90_backward(call, workspace, context);
    case K::sm90_bias_tiles:
      return attention_bias_tiles_sm90_backward(call, workspace, context);
    case K::sm90_bias:
      return attention_bias_sm90_backward(call, workspace, context);
    case K::sm90_masked:
      return attention_masked_sm90_backward(call, workspace, context);
    case K::sm90_alibi:
      return attention_alibi_sm90_backward(call, workspace, context);
    case K::sm90:
      return attention_sm90_backward(call, workspace, context);
#endif
    case K::sm80_general:
      return (f16 ? attention_sm80_general_backward_f16 : attention_sm80_general_backward_bf16)(call, workspace,
                                                                                                context);
    default:
      return (f16 ? attention_sm80_backward_f16 : attention_sm80_backward_bf16)(call, workspace, context);
  }
}

Status run_chosen(const Attention& call, bool is_backward, void* workspace, const Context& context) {
  GpuProperties gpu;
  FUSEDOPS_TRY(current_gpu(&gpu));
  const AttentionEntry& entry = choose_attention(call, is_backward, gpu);
  log_kernel(entry, gpu);
  return (is_backward ? run_backward : run_forward)(call, entry.kernel, workspace, context);
}

// The gradients of sinks without any row.
Status clear_sinks(const Attention& call, const Context& context) {
  if (!call.dsinks) return {};
  const size_t bytes = call.heads * (call.sinks.is_f32 ? sizeof(float) : size_of(call.dtype));
  return check(cudaMemsetAsync(call.dsinks, 0, bytes, static_cast<cudaStream_t>(context.stream)), "clearing dsinks");
}

Status run(const Call& call, bool is_backward) {
  Attention attention = Attention::of(call);
  if (attention.dbias && !attention.has_scores()) {
    FUSEDOPS_TRY(check(
        cudaMemsetAsync(attention.dbias, 0, attention.bias_bytes(), static_cast<cudaStream_t>(call.context.stream)),
        "clearing dbias"));
    attention.dbias = nullptr;
  }
  if (attention.dy_zeros)
    FUSEDOPS_TRY(
        check(cudaMemsetAsync(call.workspace, 0, attention.dy_zeros, static_cast<cudaStream_t>(call.context.stream)),
              "clearing dy"));
  char* const workspace = static_cast<char*>(call.workspace) + attention.dy_zeros;
  if (!attention.offsets_q) return run_chosen(attention, is_backward, workspace, call.context);
  const PackedOffsets offsets(attention, workspace);
  FUSEDOPS_TRY(sanitize_offsets(attention, offsets, is_backward, call.context));
  if (attention.sequences == 0) return clear_sinks(attention, call.context);
  attention.offsets_q = offsets.q, attention.offsets_k = offsets.k;
  return run_chosen(attention, is_backward, workspace + offsets.size, call.context);
}

}  // namespace
}  // namespace cuda

Status attention_cuda(const Call& call) { return cuda::run(call, /*is_backward=*/false); }

Status attention_backward_cuda(const Call& call) { return cuda::run(call, /*is_backward=*/true); }

}  // namespace fusedops
