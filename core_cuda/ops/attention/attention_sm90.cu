#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "core/common/exp.h"
#include "ops/attention/attention_paths.h"

namespace fusedops::cuda {
namespace {

// What one of the operator's tensors is to TMA: rows that begin at multiples of 16 bytes, and strides in these units.
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

// A product is a score: without a soft cap or negative scale. The other calls are computed by the kernels for 8.0:
// kernels for them here would take as long to compile as all of these.
bool is_plain(const Attention& call) { return call.softcap == 0 && static_cast<float>(call.scale * kLog2E) > 0; }

// Of packed sequences nobody knows here how long they are: the kernel must not depend on all of them together.
bool has_tiles(const Attention& call, int most_features) {
  const bool packed = call.offsets_q;
  return size_of(call.dtype) == 2 && call.rows() > 0 && is_plain(call) &&
         std::max(call.dim, call.dim_v) <= most_features &&
         (packed ? call.packed_queries > 0 && call.packed_keys > 0 : call.queries > kFewQueries && call.keys > 0);
}

}  // namespace

bool takes_sm90(const Attention& call) {
  return has_tiles(call, 256) && all_aligned({of_queries(call, call.q, call.dim), of_keys(call, call.k, call.dim),
                                              of_keys(call, call.v, call.dim_v), of_queries(call, call.y, call.dim_v)});
}

bool takes_sm90_backward(const Attention& call) {
  const int most_features = call.has_mask || call.dropout.seed ? 128 : 256;
  return has_tiles(call, most_features) &&
         all_aligned({of_queries(call, call.q, call.dim), of_keys(call, call.k, call.dim),
                      of_keys(call, call.v, call.dim_v), of_queries(call, call.y, call.dim_v),
                      of_queries(call, call.dy, call.dim_v), of_queries(call, call.dq, call.dim),
                      of_keys(call, call.dk, call.dim), of_keys(call, call.dv, call.dim_v)});
}

}  // namespace fusedops::cuda
