// Entry points of the CUDA kernels for attention, with their preconditions. attention_dispatch.h chooses among them.
#pragma once

#include "ops/attention/attention_workspace.h"

namespace fusedops::cuda {

// float32 and float64 on CUDA cores.
Status attention_simt(const Attention& call, const Context& context);
Status attention_simt_backward(const Attention& call, void* workspace, const Context& context);

// 16 bits with mma, compute capability 8.0 and later: D and Dv up to 256, any alignment.
Status attention_sm80_f16(const Attention& call, const Context& context);
Status attention_sm80_bf16(const Attention& call, const Context& context);
Status attention_sm80_backward_f16(const Attention& call, void* workspace, const Context& context);
Status attention_sm80_backward_bf16(const Attention& call, void* workspace, const Context& context);

// The same kernels with dropout, ALiBi, a bias or several, compiled separately: they take registers even if branches
// skip them.
Status attention_simt_general(const Attention& call, const Context& context);
Status attention_simt_general_backward(const Attention& call, void* workspace, const Context& context);
Status attention_sm80_general_f16(const Attention& call, const Context& context);
Status attention_sm80_general_bf16(const Attention& call, const Context& context);
Status attention_sm80_general_backward_f16(const Attention& call, void* workspace, const Context& context);
Status attention_sm80_general_backward_bf16(const Attention& call, void* workspace, const Context& context);

// 16 bits with mma, compute capability 8.0 and later, with all options and any alignment: call.has_large_heads().
Status attention_large_heads_f16(const Attention& call, const Context& context);
Status attention_large_heads_bf16(const Attention& call, const Context& context);
Status attention_large_heads_backward_f16(const Attention& call, void* workspace, const Context& context);
Status attention_large_heads_backward_bf16(const Attention& call, void* workspace, const Context& context);

// Split-KV for few queries over many keys: is_split_kv(call).
Status attention_split_kv(const Attention& call, void* workspace, const Context& context);

// 16 bits with wgmma, compute capability 9.x.
Status attention_sm90(const Attention& call, void* workspace, const Context& context);
Status attention_sm90_backward(const Attention& call, void* workspace, const Context& context);

// With ALiBi.
Status attention_alibi_sm90(const Attention& call, void* workspace, const Context& context);
Status attention_alibi_sm90_backward(const Attention& call, void* workspace, const Context& context);

// With a bias, and with or without a mask, dropout and ALiBi.
Status attention_bias_sm90(const Attention& call, void* workspace, const Context& context);
Status attention_bias_sm90_backward(const Attention& call, void* workspace, const Context& context);

// With a bias whose rows begin at multiples of 16 bytes, which TMA loads, without a mask, dropout or ALiBi: 65 to 128
// features.
Status attention_bias_tiles_sm90(const Attention& call, void* workspace, const Context& context);
Status attention_bias_tiles_sm90_backward(const Attention& call, void* workspace, const Context& context);

// With a mask, dropout or both, with or without ALiBi.
Status attention_masked_sm90(const Attention& call, void* workspace, const Context& context);
Status attention_masked_sm90_backward(const Attention& call, void* workspace, const Context& context);

// With more than 256 features and all options: has_score_chunks(call).
Status attention_large_heads_sm90(const Attention& call, void* workspace, const Context& context);
Status attention_large_heads_sm90_backward(const Attention& call, void* workspace, const Context& context);

// Runs before the kernels of packed sequences. The host cannot read the offsets, so each is replaced by the running
// maximum, clamped to [0, positions]. Sequences then do not overlap, and a position belongs to the first that has it.
// Rows of the results (of the gradients if is_backward) outside all sequences become zeros, and lse minus infinity.
Status sanitize_offsets(const Attention& call, const PackedOffsets& offsets, bool is_backward, const Context& context);

// Statistics of rows in the workspace of a backward: [outer, heads, inner].
struct RowStatistics {
  const void *lse, *delta;  // in the compute type
  int64_t outer, inner;
  bool has_log2_lse;  // true if lse is in units of log 2
};

// The gradients of sinks, by one block for each head.
Status sum_sinks(const Attention& call, const RowStatistics& rows, const Context& context);

// The gradient of a bias of 16-bit attention, with mma. The call has scores; `deltas` has one of each row, in float32.
Status attention_dbias(const Attention& call, const HeadRows& deltas, const Context& context);

// The same with wgmma, compute capability 9.x, beside attention_bias_tiles_sm90_backward, for a bias of 16 bits. `lse`
// and `deltas` have `rows` for each sequence, as in its workspace: lse is in units of log 2.
Status attention_dbias_sm90(const Attention& call, const HeadRows& lse, const HeadRows& deltas, int rows,
                            const Context& context);

// Preprocessing of the simt and sm80 backward: delta, zeros in the semaphores, and the gradients of sinks. finish_dq is
// the postprocessing of the sm80 backward: dq = scale * its float32 sum.
Status begin_backward(const Attention& call, const BackwardSums& sums, const Context& context);
Status finish_dq(const Attention& call, const BackwardSums& sums, const Context& context);

}  // namespace fusedops::cuda
