#include "ops/products/matmul_few_tiles_sm90.cuh"

namespace fusedops::cuda {

Status few_tiles_bf16_sm90(const Matmul& product, const FewTilesChoice& tile, const Context& context) {
  return few_tiles<bf16>(product, tile, context);
}

}  // namespace fusedops::cuda
