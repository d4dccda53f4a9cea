// The steps of experts between its products. Limit: memory bandwidth.
#include <cub/block/block_reduce.cuh>

#include "core/cuda/divisor.cuh"
#include "core/cuda/gpu.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "ops/experts/grouped_kernels.h"

namespace fusedops {
namespace cuda {
namespace {

template <class T>
using Values = compute_t<T>[kPackSize<T>];

// A pack of a row of `size` elements, from element i on, with zeros past the end.
template <bool kAligned, class T>
__device__ void load_values(const T* row, int64_t i, int64_t size, Values<T>& values) {
  const Pack<T> pack = load_row_pack<kAligned>(row + i, size - i);
#pragma unroll
  for (int j = 0; j < kPackSize<T>; ++j) values[j] = element(pack, j);
}

template <bool kAligned, class T>
__device__ void store_values(const Values<T>& values, T* row, int64_t i, int64_t size) {
  store_row_pack<kAligned>(rounded<T>(values), row + i, size - i);
}

// The gates and ups of a row of z, from element i of each on; and their gradients, at the same places.
template <bool kAligned, class T>
__device__ void load_gates(const ExpertGate& gate, const T* z, int64_t i, Values<T>& gates, Values<T>& ups) {
  constexpr int kPack = kPackSize<T>;
  if (!gate.interleaved) {
    load_values<kAligned>(z, i, gate.size, gates);
    load_values<kAligned>(z + gate.size, i, gate.size, ups);
    return;
  }
  Values<T> pairs[2];
  load_values<kAligned>(z, 2 * i, 2 * gate.size, pairs[0]);
  load_values<kAligned>(z, 2 * i + kPack, 2 * gate.size, pairs[1]);
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    gates[j] = pairs[2 * j / kPack][2 * j % kPack];
    ups[j] = pairs[2 * j / kPack][2 * j % kPack + 1];
  }
}

template <bool kAligned, class T>
__device__ void store_gates(const ExpertGate& gate, const Values<T>& gates, const Values<T>& ups, T* z, int64_t i) {
  constexpr int kPack = kPackSize<T>;
  if (!gate.interleaved) {
    store_values<kAligned>(gates, z, i, gate.size);
    store_values<kAligned>(ups, z + gate.size, i, gate.size);
    return;
  }
  Values<T> pairs[2];
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    pairs[2 * j / kPack][2 * j % kPack] = gates[j];
    pairs[2 * j / kPack][2 * j % kPack + 1] = ups[j];
  }
  store_values<kAligned>(pairs[0], z, 2 * i, 2 * gate.size);
  store_values<kAligned>(pairs[1], z, 2 * i + kPack, 2 * gate.size);
}

// h of the sorted rows, from z of the slots; for products without a fused gate.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    gate_slots_kernel(const ExpertsUp step, int64_t count, const Divisor packs) {
  begin_kernel();
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= count) return;
  const auto [row, pack] = packs.divide(thread);
  const ExpertGate& gate = step.gate;
  const Groups& groups = step.product.groups;
  const int64_t i = pack * kPackSize<T>;
  Values<T> gates = {}, ups = {};
  if (row < groups.offsets[groups.groups]) {
    const T* const z = static_cast<const T*>(step.product.y) + 2 * gate.size * step.product.y_rows[row];
    load_gates<kAligned>(gate, z, i, gates, ups);
    activations::dispatch(gate.activation, [&](auto chosen) {
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) gates[j] = gated_value<decltype(chosen)>(gate, gates[j], ups[j]).value;
    });
  }
  store_values<kAligned>(gates, static_cast<T*>(step.h) + row * gate.size, i, gate.size);
}

// A thread has a pack of a token's row.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    sum_slots_kernel(const ExpertsSum step, int64_t count, const Divisor packs) {
  begin_kernel();
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= count) return;
  const auto [token, pack] = packs.divide(thread);
  const int64_t i = pack * kPackSize<T>;
  Values<T> sums = {};
#pragma unroll 8
  for (int64_t k = 0; k < step.per_token; ++k) {
    const int64_t slot = token * step.per_token + k;
    const bool has_expert = step.index.expert(slot) >= 0;  // without a branch, so that the loads of all k overlap
    Values<T> values;
    load_values<kAligned>(static_cast<const T*>(step.from) + step.rows[slot] * step.size, i, step.size, values);
    const compute_t<T> weight = step.weight.data ? step.weight.get<T>(slot) : compute_t<T>(1);
#pragma unroll
    for (int j = 0; j < kPackSize<T>; ++j) sums[j] = has_expert ? sums[j] + weight * values[j] : sums[j];
  }
  store_values<kAligned>(sums, static_cast<T*>(step.y) + token * step.size, i, step.size);
}

constexpr int kRowThreads = 128;

// A block has a sorted row.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kRowThreads, 8) gate_backward_kernel(const ExpertsGateBackward step) {
  using A = compute_t<T>;
  using Reduce = cub::BlockReduce<A, kRowThreads, cub::BLOCK_REDUCE_WARP_REDUCTIONS>;
  __shared__ typename Reduce::TempStorage memory;
  begin_kernel();
  constexpr int kPack = kPackSize<T>;
  const ExpertGate& gate = step.gate;
  const int64_t row = blockIdx.x, slot = step.order[row];
  const bool has_group = row < step.groups.offsets[step.groups.groups];
  const A weight = has_group ? step.weight.get<T>(slot) : A(0);
  const T* const dh = static_cast<const T*>(step.dh) + row * gate.size;
  const T* const z = static_cast<const T*>(step.z_slots) + slot * 2 * gate.size;
  A dot = 0;
  for (int64_t i = int64_t(threadIdx.x) * kPack; i < gate.size; i += kRowThreads * kPack) {
    Values<T> gates = {}, ups = {}, values = {};
    if (has_group) {
      Values<T> dhs;
      load_gates<kAligned>(gate, z, i, gates, ups);
      load_values<kAligned>(dh, i, gate.size, dhs);
      activations::dispatch(gate.activation, [&](auto chosen) {
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          const auto gated = gated_value<decltype(chosen)>(gate, gates[j], ups[j]);
          dot += dhs[j] * gated.value;
          values[j] = weight * gated.value;
          gates[j] = weight * dhs[j] * gated.dgate;
          ups[j] = weight * dhs[j] * gated.dup;
        }
      });
    }
    if (step.dz) store_gates<kAligned>(gate, gates, ups, static_cast<T*>(step.dz) + row * 2 * gate.size, i);
    if (step.weighted_h)
      store_values<kAligned>(values, static_cast<T*>(step.weighted_h) + row * gate.size, i, gate.size);
  }
  if (!step.dweight) return;
  if (step.down_bias && has_group) {
    int64_t expert = 0, above = step.groups.groups;  // offsets[expert] <= row < offsets[above]
    while (above - expert > 1) {
      const int64_t middle = (expert + above) / 2;
      (step.groups.offsets[middle] <= row ? expert : above) = middle;
    }
    const T* const bias = static_cast<const T*>(step.down_bias) + expert * step.dy_size;
    const T* const dy = static_cast<const T*>(step.dy) + step.tokens[row] * step.dy_stride;
    for (int64_t i = threadIdx.x; i < step.dy_size; i += kRowThreads) dot += to_compute(dy[i]) * to_compute(bias[i]);
  }
  dot = Reduce(memory).Sum(dot);
  if (threadIdx.x != 0) return;
  if (step.weight.is_f32)
    static_cast<float*>(step.dweight)[slot] = static_cast<float>(dot);
  else
    static_cast<T*>(step.dweight)[slot] = from_compute<T>(dot);
}

constexpr int kBiasColumns = 32;

template <class T>
constexpr int kBiasRows = kMaxStaticShared / kBiasColumns / sizeof(compute_t<T>);

// A block has 32 columns of an expert's bias. Each of its warps sums every kBiasRows-th row of the group.
template <class T>
__global__ void __launch_bounds__(kBiasColumns* kBiasRows<T>)
    bias_gradient_kernel(const ExpertsBiasGradient step, const Divisor column_tiles) {
  using A = compute_t<T>;
  __shared__ A sums[kBiasRows<T>][kBiasColumns];
  begin_kernel();
  const auto [expert, tile] = column_tiles.divide(blockIdx.x);
  const int lane = threadIdx.x % kBiasColumns, warp = threadIdx.x / kBiasColumns;
  const int64_t column = tile * kBiasColumns + lane, end = step.groups.offsets[expert + 1];
  A sum = 0;
  if (column < step.size) {
#pragma unroll 4
    for (int64_t row = step.groups.offsets[expert] + warp; row < end; row += kBiasRows<T>) {
      const int64_t number = step.from.rows ? step.from.rows[row] : row;
      const A value = to_compute(static_cast<const T*>(step.from.data)[number * step.from.stride + column]);
      sum += step.weight.data ? step.weight.get<T>(step.order[row]) * value : value;
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= step.size) return;
#pragma unroll
  for (int i = 1; i < kBiasRows<T>; ++i) sum += sums[i][lane];
  static_cast<T*>(step.to)[expert * step.size + column] = from_compute<T>(sum);
}

// Calls body(Tag<T>(), is_aligned) with constants. `size`: the elements of a row of each of these tensors.
template <class Body>
Status dispatch_rows(DType dtype, int64_t size, std::initializer_list<const void*> tensors, Body&& body) {
  return dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool aligned = size % kPackSize<T> == 0 && std::all_of(tensors.begin(), tensors.end(), is_aligned);
    return aligned ? body(tag, std::true_type()) : body(tag, std::false_type());
  });
}

// Launches a thread for each pack of rows [rows, size].
template <class T, class Step>
Status launch_packs(const Context& context, void (*kernel)(Step, int64_t, Divisor), const Step& step, int64_t rows,
                    int64_t size) {
  const int64_t packs = (size + kPackSize<T> - 1) / kPackSize<T>, count = rows * packs;
  if (count == 0) return {};
  return launch(context, kernel, (count + kThreads - 1) / kThreads, kThreads, step, count, Divisor(packs));
}

Status gate_slots(const ExpertsUp& step, const Context& context) {
  const int64_t size = step.gate.size;
  return dispatch_rows(step.product.dtype, size, {step.product.y, step.h}, [&](auto tag, auto aligned) {
    using T = typename decltype(tag)::type;
    return launch_packs<T>(context, gate_slots_kernel<T, aligned>, step, step.product.groups.count, size);
  });
}

}  // namespace
}  // namespace cuda

Status run_cuda(const ExpertsUp& step, const Context& context) {
#ifdef FUSEDOPS_SM90
  GpuProperties gpu;
  FUSEDOPS_TRY(cuda::current_gpu(&gpu));
  const Matmul product = cuda::representative(step.product);
  if (cuda::can_fuse_gate(product, gpu)) {
    log_kernel(cuda::choose_grouped(product, gpu), gpu);
    return cuda::experts_up_sm90(step, GroupTiles(step.product.groups), context);
  }
#endif
  FUSEDOPS_TRY(multiply_groups_cuda(step.product, /*workspace=*/nullptr, context));
  return cuda::gate_slots(step, context);
}

Status run_cuda(const ExpertsSum& step, const Context& context) {
  return cuda::dispatch_rows(step.dtype, step.size, {step.from, step.y}, [&](auto tag, auto aligned) {
    using T = typename decltype(tag)::type;
    return cuda::launch_packs<T>(context, cuda::sum_slots_kernel<T, aligned>, step, step.tokens, step.size);
  });
}

Status run_cuda(const ExpertsGateBackward& step, const Context& context) {
  const auto tensors = {step.dh, step.z_slots, static_cast<const void*>(step.dz),
                        static_cast<const void*>(step.weighted_h)};
  return cuda::dispatch_rows(step.dtype, step.gate.size, tensors, [&](auto tag, auto aligned) {
    using T = typename decltype(tag)::type;
    return cuda::launch(context, cuda::gate_backward_kernel<T, aligned>, step.groups.count, cuda::kRowThreads, step);
  });
}

Status run_cuda(const ExpertsBiasGradient& step, const Context& context) {
  const int64_t tiles = ceil_div(step.size, cuda::kBiasColumns);
  return dispatch(step.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (tiles == 0) return Status();
    return cuda::launch(context, cuda::bias_gradient_kernel<T>, step.groups.groups * tiles,
                        cuda::kBiasColumns * cuda::kBiasRows<T>, step, cuda::Divisor(tiles));
  });
}

}  // namespace fusedops
