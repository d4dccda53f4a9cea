// The CUDA kernels for attention, and what each can do. attention.cu chooses among them, by what follows from shapes,
// strides and dtypes alone.
#pragma once

#include "ops/attention/attention.h"

namespace fusedops::cuda {

// Any floating dtype and any size, one multiply-add at a time: float32 and float64, and 16 bits with odd sizes.
Status attention_simple(const Attention& call, const Context& context);
Status attention_simple_backward(const Attention& call, void* workspace, const Context& context);

// 16 bits on the tensor cores of compute capability 8.0 and later: D and Dv up to 256, any alignment.
Status attention_mma(const Attention& call, const Context& context);
Status attention_mma_backward(const Attention& call, void* workspace, const Context& context);

// Few queries over many keys: the keys are split, and the splits' results joined in their order.
bool is_split(const Attention& call);
FUSEDOPS_CUDA_KERNEL size_t attention_split_workspace(const Attention& call);  // bytes; 0 if it is not split
Status attention_split(const Attention& call, void* workspace, const Context& context);

// 16 bits on the warpgroup tensor cores of compute capability 9.x.
bool takes_sm90(const Attention& call);
bool takes_sm90_backward(const Attention& call);
Status attention_sm90(const Attention& call, const Context& context);
Status attention_sm90_backward(const Attention& call, void* workspace, const Context& context);

}  // namespace fusedops::cuda
