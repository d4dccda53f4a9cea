// Chooses how gated_linear is computed: as one product, or in parts.
#include "core/cuda/launch.cuh"
#include "ops/products/gated_linear.h"
#include "ops/products/matmul_paths.h"

namespace fusedops {
namespace cuda {
namespace {

#ifdef FUSEDOPS_SM90

// What TMA can address, and tiles enough to occupy a large GPU. The distance between both weights is a stride to it: of
// less than 2^40 bytes.
bool takes_sm90(const GatedLinear& call) {
  constexpr int64_t kMost = int64_t(1) << 30, kFarthest = int64_t(1) << 40;
  if (size_of(call.dtype) != 2 || call.columns % kGatedColumns != 0 || call.gate_weight.data == call.up_weight.data)
    return false;
  if (call.rows >= kMost || call.columns >= kMost || call.depth >= kMost || call.depth == 0) return false;
  const Matmul gate = call.gate_product(call.y), up = call.up_product(call.y);
  const bool alike = gate.b.transposed == up.b.transposed && gate.b.stride == up.b.stride;
  const int64_t distance = static_cast<const char*>(up.b.data) - static_cast<const char*>(gate.b.data);
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const bool outputs_aligned = aligned(call.y) && aligned(call.gate) && aligned(call.up);
  const int64_t tiles = (call.rows + 127) / 128 * ((call.columns + 127) / 128);
  return alike && std::abs(distance) < kFarthest && rows_aligned(gate) && rows_aligned(up) && outputs_aligned &&
         call.rows > 64 && tiles >= 64;
}

#endif

}  // namespace
}  // namespace cuda

Status gated_linear_cuda(const Call& call) {
#ifdef FUSEDOPS_SM90
  const GatedLinear linear(call);
  if (cuda::takes_sm90(linear)) {
    bool has_sm90 = false;
    FUSEDOPS_TRY(cuda::has_sm90(&has_sm90));
    if (has_sm90) return cuda::gated_linear_sm90(linear, call.context);
  }
#endif
  return gated_linear_in_parts(call);
}

}  // namespace fusedops
