#include "core/cuda/lists.cuh"
#include "ops/optimizers/adamw.h"

namespace fusedops {
namespace cuda {
namespace {

constexpr int kStepsAtOnce = (kTableBytes - 128) / 8;

// The addresses of the steps of some parameters.
struct StepTable {
  float* steps[kStepsAtOnce];
};

// Launched before the update: one thread per parameter computes its factors in double and increments its step.
template <class T>
__global__ void __launch_bounds__(kThreads)
    adamw_factors_kernel(const __grid_constant__ StepTable table, int count,
                         const __grid_constant__ AdamwOptions options, AdamwFactors<compute_t<T>>* factors) {
  begin_kernel();
  const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (i >= count) return;
  const auto found = options.factors<T>(*table.steps[i]);
  factors[i] = found;
  if (!found.skipped) *table.steps[i] += 1;
}

template <class T>
__global__ void adamw_shared_factors_kernel(Scalar step, const __grid_constant__ AdamwOptions options,
                                            AdamwFactors<compute_t<T>>* factors) {
  begin_kernel();
  *factors = options.factors<T>(step.get<T>());
}

template <class T>
Status compute_factors(const Call& call, const AdamwOptions& options) {
  auto* const factors = static_cast<AdamwFactors<compute_t<T>>*>(call.workspace);
  constexpr int kStep = input_of(kAdamw, "step");
  if (call.inputs[kStep])
    return launch(call.context, adamw_shared_factors_kernel<T>, 1, 1, scalar(call, kStep), options, factors);
  const auto steps = call.list(input_of(kAdamw, "steps"));
  StepTable table;
  for (size_t first = 0; first < steps.size(); first += kStepsAtOnce) {
    const int count = static_cast<int>(std::min<size_t>(kStepsAtOnce, steps.size() - first));
    for (int i = 0; i < count; ++i) table.steps[i] = static_cast<float*>(steps[first + i].data);
    FUSEDOPS_TRY(launch(call.context, adamw_factors_kernel<T>, (count + kThreads - 1) / kThreads, kThreads, table,
                        count, options, factors + first));
  }
  return {};
}

}  // namespace
}  // namespace cuda

Status adamw_cuda(const Call& call) {
  const AdamwOptions options(call);
  FUSEDOPS_TRY(dispatch(call.list(input_of(kAdamw, "params"))[0].dtype,
                        [&](auto tag) { return cuda::compute_factors<typename decltype(tag)::type>(call, options); }));
  return with_adamw_update(call, options, [&]<class Update>(const Update& update, const ListViews<Update>& lists) {
    return cuda::update_lists(call.context, update, lists);
  });
}

}  // namespace fusedops
