// Entry points of the CUDA kernels for attention, with their preconditions. attention_dispatch.h chooses among them.
#pragma once

#include "ops/attention/attention_workspace.h"

namespace fusedops::cuda {

// float32 and float64 on CUDA cores: D and Dv up to 256.
Status attention_simt(const Attention& call, const Context& context);
Status attention_simt_backward(const Attention& call, void* workspace, const Context& context);

// 16 bits with mma, compute capability 8.0 and later: D and Dv up to 256, any alignment.
Status attention_sm80_f16(const Attention& call, const Context& context);
Status attention_sm80_bf16(const Attention& call, const Context& context);
Status attention_sm80_backward_f16(const Attention& call, void* workspace, const Context& context);
Status attention_sm80_backward_bf16(const Attention& call, void* workspace, const Context& context);

// The same kernels with dropout, compiled separately: it takes registers even if a branch skips it.
Status attention_simt_dropout(const Attention& call, const Context& context);
Status attention_simt_dropout_backward(const Attention& call, void* workspace, const Context& context);
Status attention_sm80_dropout_f16(const Attention& call, const Context& context);
Status attention_sm80_dropout_bf16(const Attention& call, const Context& context);
Status attention_sm80_dropout_backward_f16(const Attention& call, void* workspace, const Context& context);
Status attention_sm80_dropout_backward_bf16(const Attention& call, void* workspace, const Context& context);

// Split-KV for few queries over many keys: is_split_kv(call).
Status attention_split_kv(const Attention& call, void* workspace, const Context& context);

// 16 bits with wgmma, compute capability 9.x.
Status attention_sm90(const Attention& call, void* workspace, const Context& context);
Status attention_sm90_backward(const Attention& call, void* workspace, const Context& context);

// With a mask, dropout or both.
Status attention_masked_sm90(const Attention& call, void* workspace, const Context& context);
Status attention_masked_sm90_backward(const Attention& call, void* workspace, const Context& context);

// Runs before the kernels of packed sequences. The host cannot read the offsets, so each is replaced by the running
// maximum, clamped to [0, positions]. Sequences then do not overlap, and a position belongs to the first that has it.
// Rows of the results (of the gradients if is_backward) outside all sequences become zeros, and lse minus infinity.
Status sanitize_offsets(const Attention& call, const PackedOffsets& offsets, bool is_backward, const Context& context);

// Preprocessing of the simt and sm80 backward: delta, and zeros in the semaphores. finish_dq is the postprocessing of
// the sm80 backward: dq = scale * its float32 sum.
Status begin_backward(const Attention& call, const BackwardSums& sums, const Context& context);
Status finish_dq(const Attention& call, const BackwardSums& sums, const Context& context);

}  // namespace fusedops::cuda
