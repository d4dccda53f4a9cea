#include "ops/experts/grouped_sm90.cuh"

namespace fusedops::cuda {
namespace {

template <class T, bool kInterleaved>
Status launch_with(const ExpertsUp& step, const GroupTiles& tiles, const Context& context) {
  const auto store = [&](auto columns) { return StoreGate<T, columns, kInterleaved>(step); };
  return launch_grouped_sm90<T>(step.product, store, tiles, context);
}

template <class T>
Status run(const ExpertsUp& step, const GroupTiles& tiles, const Context& context) {
  return step.gate.interleaved ? launch_with<T, true>(step, tiles, context)
                               : launch_with<T, false>(step, tiles, context);
}

}  // namespace

Status experts_up_sm90(const ExpertsUp& step, const GroupTiles& tiles, const Context& context) {
  return step.product.dtype == DType::f16 ? run<f16>(step, tiles, context) : run<bf16>(step, tiles, context);
}

}  // namespace fusedops::cuda
