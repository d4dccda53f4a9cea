#include "ops/experts/grouped_sm90.cuh"

namespace fusedops::cuda {
namespace {

template <class T>
Status run(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  return launch_grouped_sm90<T>(product, StoreGroupRows<T>(product), tiles, context);
}

template <class T>
Status run(const ExpertsUp& step, const GroupTiles& tiles, const Context& context) {
  return launch_grouped_sm90<T>(step.product, StoreGate<T>(step), tiles, context);
}

}  // namespace

Status grouped_sm90(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  return product.dtype == DType::f16 ? run<f16>(product, tiles, context) : run<bf16>(product, tiles, context);
}

Status experts_up_sm90(const ExpertsUp& step, const GroupTiles& tiles, const Context& context) {
  return step.product.dtype == DType::f16 ? run<f16>(step, tiles, context) : run<bf16>(step, tiles, context);
}

}  // namespace fusedops::cuda
