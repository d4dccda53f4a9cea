#include "ops/attention/attention_dispatch.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "core/common/exp.h"
#include "ops/attention/attention_workspace.h"

namespace fusedops::cuda {
namespace {

// A tensor that TMA can load if its rows begin at multiples of 16 bytes.
struct Tensor {
  const HeadRows& rows;
  int features, heads;
  bool packed;
  int64_t positions, sequences;

  bool is_aligned() const {
    constexpr int64_t kVector = 8;
    const auto fits = [](int64_t stride, int64_t size) { return size == 1 || (stride > 0 && stride % kVector == 0); };
    return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && features % kVector == 0 &&
           fits(rows.position, positions) && fits(rows.head, heads) && (packed || fits(rows.sequence, sequences));
  }
};

Tensor of_queries(const Attention& call, const HeadRows& rows, int features) {
  const bool packed = call.offsets_q;
  return {rows, features, call.heads, packed, packed ? call.packed_queries : call.queries, call.sequences};
}

Tensor of_keys(const Attention& call, const HeadRows& rows, int features) {
  const bool packed = call.offsets_q;
  return {rows, features, call.key_heads, packed, packed ? call.packed_keys : call.keys, call.sequences};
}

bool all_aligned(std::initializer_list<Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return tensor.is_aligned(); });
}

// True without a soft cap and with a positive scale, by which terms of scores can be divided. Other calls use the sm80
// kernels: sm90 kernels for them would double the compile time.
bool has_plain_scores(const Attention& call) {
  return call.softcap == 0 && static_cast<float>(call.scale * kLog2E) > (call.has_terms() ? 1e-20f : 0);
}

// The lengths of packed sequences are unknown on the host, so that the choice does not depend on them.
bool fits_sm90_tiles(const Attention& call, int max_features) {
  const bool packed = call.offsets_q;
  return size_of(call.dtype) == 2 && call.rows() > 0 && has_plain_scores(call) &&
         std::max(call.dim, call.dim_v) <= max_features &&
         (packed ? call.packed_queries > 0 && call.packed_keys > 0 : call.queries > kMaxDecodeQueries && call.keys > 0);
}

using A = const Attention&;
using G = const GpuProperties&;
using K = AttentionKernel;

bool is_16_bit(A call) { return size_of(call.dtype) == 2; }
bool has_dropout(A call) { return call.dropout.seed; }
bool is_general(A call) { return has_dropout(call) || call.has_terms(); }

// True if TMA can load the bias, whose rows begin at multiples of 16 bytes, and nothing else changes scores.
bool has_bias_tiles(A call) {
  const size_t row = call.keys * (call.bias.is_f32() ? sizeof(float) : size_of(call.dtype));
  return call.bias.has_columns() && row % 16 == 0 && reinterpret_cast<uintptr_t>(call.bias.data()) % 16 == 0 &&
         !call.has_mask && !has_dropout(call) && !call.alibi.data && std::max(call.dim, call.dim_v) > 64;
}

bool takes_sm90(A call, G gpu) {
  return gpu.has_sm90_kernels && fits_sm90_tiles(call, 256) &&
         all_aligned({of_queries(call, call.q, call.dim), of_keys(call, call.k, call.dim),
                      of_keys(call, call.v, call.dim_v), of_queries(call, call.y, call.dim_v)});
}

bool takes_sm90_backward(A call, G gpu) {
  const int max_features = call.can_hide() || has_dropout(call) ? 128 : 256;
  return gpu.has_sm90_kernels && fits_sm90_tiles(call, max_features) &&
         all_aligned({of_queries(call, call.q, call.dim), of_keys(call, call.k, call.dim),
                      of_keys(call, call.v, call.dim_v), of_queries(call, call.y, call.dim_v),
                      of_queries(call, call.dy, call.dim_v), of_queries(call, call.dq, call.dim),
                      of_keys(call, call.dk, call.dim), of_keys(call, call.dv, call.dim_v)});
}

// The sm90 kernels for large heads have all options.
bool takes_large_heads(A call, G gpu) {
  return gpu.has_sm90_kernels && has_score_chunks(call) &&
         all_aligned({of_queries(call, call.q, call.dim), of_keys(call, call.k, call.dim),
                      of_keys(call, call.v, call.dim_v), of_queries(call, call.y, call.dim_v)});
}

bool takes_large_heads_backward(A call, G gpu) {
  return takes_large_heads(call, gpu) &&
         all_aligned({of_queries(call, call.dy, call.dim_v), of_queries(call, call.dq, call.dim),
                      of_keys(call, call.dk, call.dim), of_keys(call, call.dv, call.dim_v)});
}

// clang-format off
constexpr AttentionEntry kForwards[] = {
  {K::simt_general, "simt with dropout, ALiBi or bias",
   [](A call, G) { return !is_16_bit(call) && is_general(call); },
   "float32 or float64"},
  {K::simt, "simt",
   [](A call, G) { return !is_16_bit(call); },
   "float32 or float64"},
  {K::sm90_large_heads, "sm90 with large heads",
   takes_large_heads,
   "more than 256 features, aligned"},
  {K::sm80_large_heads, "sm80 with large heads",
   [](A call, G) { return call.has_large_heads(); },
   "more than 256 features, and few queries, packed sequences, misaligned rows, or no sm90 kernels"},
  {K::split_kv, "sm80 split-KV",
   [](A call, G) { return is_split_kv(call); },
   "few queries, many keys"},
  {K::sm90_bias_tiles, "sm90 with tiles of a bias",
   [](A call, G gpu) { return has_bias_tiles(call) && takes_sm90(call, gpu) && fits_sm90_tiles(call, 128); },
   "an aligned bias, 65 to 128 features"},
  {K::sm90_bias, "sm90 with bias",
   [](A call, G gpu) { return call.bias.is_given() && takes_sm90(call, gpu); },
   "aligned"},
  {K::sm90_masked, "sm90 with mask or dropout",
   [](A call, G gpu) { return (call.has_mask || has_dropout(call)) && takes_sm90(call, gpu); },
   "aligned"},
  {K::sm90_alibi, "sm90 with ALiBi",
   [](A call, G gpu) { return call.alibi.data && takes_sm90(call, gpu); },
   "aligned"},
  {K::sm90, "sm90",
   takes_sm90,
   "aligned"},
  {K::sm80_general, "sm80 with dropout, ALiBi or bias",
   [](A call, G) { return is_general(call); },
   "few queries, a soft cap, a scale <= 0, misaligned rows, or no sm90 kernels"},
  {K::sm80, "sm80",
   [](A, G) { return true; },
   "few queries, a soft cap, a scale <= 0, misaligned rows, or no sm90 kernels"},
};

constexpr AttentionEntry kBackwards[] = {
  kForwards[0],
  kForwards[1],
  {K::sm90_large_heads, "sm90 with large heads",
   takes_large_heads_backward,
   "more than 256 features, aligned"},
  kForwards[3],
  {K::sm90_bias_tiles, "sm90 with tiles of a bias",
   [](A call, G gpu) { return has_bias_tiles(call) && takes_sm90_backward(call, gpu); },
   "an aligned bias, 65 to 128 features"},
  {K::sm90_bias, "sm90 with bias",
   [](A call, G gpu) { return call.bias.is_given() && takes_sm90_backward(call, gpu); },
   "aligned, at most 128 features"},
  {K::sm90_masked, "sm90 with mask or dropout",
   [](A call, G gpu) { return (call.has_mask || has_dropout(call)) && takes_sm90_backward(call, gpu); },
   "aligned, at most 128 features"},
  {K::sm90_alibi, "sm90 with ALiBi",
   [](A call, G gpu) { return call.alibi.data && takes_sm90_backward(call, gpu); },
   "aligned"},
  {K::sm90, "sm90",
   takes_sm90_backward,
   "aligned"},
  {K::sm80_general, "sm80 with dropout, ALiBi or bias",
   [](A call, G) { return is_general(call); },
   "few queries, a soft cap, a scale <= 0, many features, misaligned rows, or no sm90 kernels"},
  {K::sm80, "sm80",
   [](A, G) { return true; },
   "few queries, a soft cap, a scale <= 0, many features, misaligned rows, or no sm90 kernels"},
};
// clang-format on

}  // namespace

const AttentionEntry& choose_attention(const Attention& call, bool is_backward, const GpuProperties& gpu) {
  return is_backward ? first_that_accepts(kBackwards, call, gpu) : first_that_accepts(kForwards, call, gpu);
}

}  // namespace fusedops::cuda
