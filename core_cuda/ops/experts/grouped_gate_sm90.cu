#include "ops/experts/grouped_sm90.cuh"

namespace fusedops::cuda {
namespace {

template <class T>
Status run(const ExpertsUp& step, const GroupTiles& tiles, const Context& context) {
  return step.gate.interleaved ? launch_grouped_sm90<T>(step.product, StoreGate<T, true>(step), tiles, context)
                               : launch_grouped_sm90<T>(step.product, StoreGate<T, false>(step), tiles, context);
}

}  // namespace

Status experts_up_sm90(const ExpertsUp& step, const GroupTiles& tiles, const Context& context) {
  return step.product.dtype == DType::f16 ? run<f16>(step, tiles, context) : run<bf16>(step, tiles, context);
}

}  // namespace fusedops::cuda
