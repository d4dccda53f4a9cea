// Kernel selection for attention. It depends on dtype, shapes, strides, alignment, scale, soft cap, the presence of
// mask, bias, ALiBi, dropout and packed offsets, and the GPU. It does not depend on values in device memory.
#pragma once

#include "core/declaration/dispatch.h"
#include "ops/attention/attention.h"

namespace fusedops::cuda {

// attention.cu runs each of them; attention_kernels.h declares the kernels.
enum class AttentionKernel {
  simt_general,
  simt,
  sm90_large_heads,
  sm80_large_heads,
  split_kv,
  sm90_bias_tiles,
  sm90_bias,
  sm90_masked,
  sm90_alibi,
  sm90,
  sm80_general,
  sm80
};

using AttentionEntry = DispatchEntry<AttentionKernel, Attention>;
const AttentionEntry& choose_attention(const Attention& call, bool is_backward, const GpuProperties& gpu);

}  // namespace fusedops::cuda
