#include "ops/products/matmul_few_tiles_sm90.cuh"

namespace fusedops::cuda {

Status few_tiles_f16_sm90(const Matmul& product, const FewTilesChoice& tile, const Context& context) {
  return few_tiles<f16>(product, tile, context);
}

}  // namespace fusedops::cuda
