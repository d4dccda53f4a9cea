#include "ops/experts/grouped_multistage.cuh"
#include "ops/products/matmul_sm80.cuh"

namespace fusedops::cuda {
namespace {

template <class T, class Product>
Status run_with(const Product& product, const GroupTiles& tiles, const Context& context) {
  return run_aligned<Mma16<T>, SmallTile16, SmallMisalignedTile16>(product, tiles, context);
}

template <class Product>
Status run(const Product& product, const GroupTiles& tiles, const Context& context) {
  return product.dtype == DType::f16 ? run_with<f16>(product, tiles, context) : run_with<bf16>(product, tiles, context);
}

}  // namespace

Status grouped_16(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  return run(product, tiles, context);
}

Status grouped_16(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  return run(product, tiles, context);
}

}  // namespace fusedops::cuda
