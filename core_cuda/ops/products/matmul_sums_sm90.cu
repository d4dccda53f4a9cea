#include "ops/products/matmul_sm90.cuh"

namespace fusedops::cuda {
namespace {

template <class Tiles>
Status sums_with(const Matmul& product, const Context& context) {
  return product.dtype == DType::f16 ? matmul_sm90<f16, Tiles, StoreSums<Tiles>>(product, context)
                                     : matmul_sm90<bf16, Tiles, StoreSums<Tiles>>(product, context);
}

}  // namespace

Status sums_sm90(const Matmul& product, const Context& context) { return sums_with<LargeTiles>(product, context); }

Status split_sums_sm90(const Matmul& part, const Context& context) { return sums_with<SmallTiles>(part, context); }

}  // namespace fusedops::cuda
