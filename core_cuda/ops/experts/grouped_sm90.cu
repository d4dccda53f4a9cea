#include "ops/experts/grouped_sm90.cuh"

namespace fusedops::cuda {
namespace {

template <class T>
Status run(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  const auto store = [&](auto columns) { return StoreGroupRows<T, columns>(product); };
  return launch_grouped_sm90<T>(product, store, tiles, context);
}

}  // namespace

Status grouped_sm90(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  return product.dtype == DType::f16 ? run<f16>(product, tiles, context) : run<bf16>(product, tiles, context);
}

}  // namespace fusedops::cuda
