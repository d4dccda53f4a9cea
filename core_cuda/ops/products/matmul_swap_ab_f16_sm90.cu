#include "ops/products/matmul_swap_ab_sm90.cuh"

namespace fusedops::cuda {

Status swap_ab_f16_sm90(const Matmul& product, const SwapAbChoice& tile, const Context& context) {
  return swap_ab<f16>(product, tile, context);
}

}  // namespace fusedops::cuda
