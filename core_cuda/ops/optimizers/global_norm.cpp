#include "ops/optimizers/global_norm.h"

#include <cmath>

#include "core/cpu/lists.h"
#include "core/cpu/sum.h"

namespace fusedops {
namespace {

constexpr int kTensors = input_of(kGlobalNorm, "tensors");

Status global_norm_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(kTensors));
  rule.outputs[output_of(kGlobalNorm, "norm")] = Shape::of(compute_dtype(rule.inputs[kTensors].dtype));
  return {};
}

// Workspace: one double per chunk, for its sum.
size_t global_norm_workspace(const Call& call) {
  int64_t chunks = 0;
  for (const View& tensor : call.list(kTensors)) chunks += chunks_of(tensor.numel());
  return static_cast<size_t>(chunks) * sizeof(double);
}

template <class T>
compute_t<T> sum_of_squares(const T* data, int64_t n) {
  compute_t<T> sum = 0;
  for (int64_t at = 0; at < n; at += cpu::kBlock) {
    compute_t<T> buffer[cpu::kBlock];
    const int64_t size = std::min(cpu::kBlock, n - at);
    const compute_t<T>* values = cpu::widened(data + at, buffer, size);
    sum += cpu::interleaved_sum<compute_t<T>>(size, [=](int64_t i) { return values[i] * values[i]; });
  }
  return sum;
}

Status global_norm_cpu(const Call& call) {
  const auto tensors = call.list(kTensors);
  return dispatch(tensors[0].dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    const auto first = cpu::first_chunks(tensors);
    auto* const sums = static_cast<double*>(call.workspace);
    constexpr int64_t kNanosecondsPerChunk = 3000;
    call.context.parallel_for(first.back(), kNanosecondsPerChunk, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk)
        cpu::in_chunk(first, tensors, chunk, [&](int64_t place, int64_t from, int64_t to) {
          sums[chunk] = sum_of_squares(static_cast<const T*>(tensors[place].data) + from, to - from);
        });
    });
    *call.output<compute_t<T>>(0) = static_cast<compute_t<T>>(std::sqrt(cpu::pairwise_sum(sums, first.back())));
    return {};
  });
}

}  // namespace

Operator global_norm() {
  return {
      kGlobalNorm,
      {.rule = global_norm_rule, .workspace = global_norm_workspace, .cpu = global_norm_cpu, .cuda = global_norm_cuda}};
}

}  // namespace fusedops
