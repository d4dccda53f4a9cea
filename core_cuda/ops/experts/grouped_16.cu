#include "ops/experts/grouped_multistage.cuh"
#include "ops/products/matmul_sm80.cuh"

namespace fusedops::cuda {
namespace {

template <class T, class Product>
Status run_aligned(const Product& product, const GroupTiles& tiles, const Context& context) {
  return has_aligned_rows(representative(product))
             ? run_grouped<Mma16<T>, SmallTile16, 16>(product, tiles, context)
             : run_grouped<Mma16<T>, SmallMisalignedTile16, 2>(product, tiles, context);
}

template <class Product>
Status run(const Product& product, const GroupTiles& tiles, const Context& context) {
  return product.dtype == DType::f16 ? run_aligned<f16>(product, tiles, context)
                                     : run_aligned<bf16>(product, tiles, context);
}

}  // namespace

Status grouped_16(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  return run(product, tiles, context);
}

Status grouped_16(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  return run(product, tiles, context);
}

}  // namespace fusedops::cuda
