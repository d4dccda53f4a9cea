// rms_norm_rope on a GPU. Limit: memory bandwidth; weight, cos and sin stay in the caches.
//
// Up to 32 lanes of a warp share a row. A slot of a row is two packs: a pack of pairs' first features and that of their
// second ones or, behind the pairs, two packs that are not rotated. Each lane holds its first slot in registers; rows
// of more slots than lanes read the other slots twice. The order of all sums depends on shape and dtype alone, and not
// on the alignment. Each slot is summed by itself: squares of 16-bit values that are added to a large sum one by one
// are rounded to the same side.
#include "core/cuda/divisor.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/reduce.cuh"
#include "ops/normalization/rms_norm_rope.h"
#include "ops/rotary/rope.cuh"

namespace fusedops {
namespace cuda {
namespace {

constexpr int kBlockThreads = NormRopePlan::kBlockThreads;

template <class T, class Angle>
struct NormRopeCall {
  NormRope<T, Angle> norm;
  NormRopePlan plan;
  int64_t rows;
  Divisor inner, middle, per_batch;
};

// kWidth: elements of a pack, 1 if rows are not made of whole packs.
template <bool kAligned, bool kInterleaved, int kWidth, class T, class Angle>
class NormRopeLane {
 public:
  using A = compute_t<T>;
  using Values = A[2][kWidth];

  __device__ NormRopeLane(const NormRopeCall<T, Angle>& call)
      : call_(call), norm_(call.norm), lane_(threadIdx.x & (call.plan.lanes - 1)) {}

  __device__ int lane() const { return lane_; }
  __device__ int group() const { return threadIdx.x / call_.plan.lanes; }

  __device__ void set_row(int64_t row) {
    exists_ = row < call_.rows;
    row_ = exists_ ? row : 0;
    const auto [outer, k] = call_.inner.divide(row_);
    const auto [i, j] = call_.middle.divide(outer);
    i_ = i, j_ = j, k_ = k;
    angles_ = norm_.rope.angle_row(call_.per_batch.divide(i).quotient, j, k) * norm_.rope.half;
  }

  __device__ bool exists() const { return exists_; }
  __device__ int64_t row() const { return row_; }
  __device__ const T* at(const T* data, const Heads& rows) const {
    return data + i_ * rows.strides[0] + j_ * rows.strides[1] + k_ * rows.strides[2];
  }

  __device__ bool has(int64_t slot) const { return slot < call_.plan.slots; }
  __device__ bool is_pair(int64_t slot) const { return slot < call_.plan.pair_slots; }
  __device__ int64_t first(int64_t slot) const {
    if (!is_pair(slot)) return 2 * norm_.rope.half + 2 * (slot - call_.plan.pair_slots) * kWidth;
    return slot * (kInterleaved ? 2 * kWidth : kWidth);
  }
  __device__ int64_t second(int64_t slot) const {
    return first(slot) + (is_pair(slot) && !kInterleaved ? norm_.rope.half : kWidth);
  }
  __device__ bool has_second(int64_t slot) const { return second(slot) < norm_.rope.rows.size; }

  // Calls body(slot) for the slots of this lane that are not held.
  template <class Body>
  __device__ void each_further_slot(Body body) const {
    for (int64_t slot = lane_ + call_.plan.lanes; has(slot); slot += call_.plan.lanes) body(slot);
  }

  // Zeros if there is no such slot.
  __device__ void read(const T* row, int64_t slot, Values& to) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[0][i] = to[1][i] = 0;
    if (!has(slot)) return;
    const auto read = [&](int64_t column, A(&to)[kWidth]) {
      Stored<T, kWidth> stored;
      stored.template load<kAligned>(row + column, kWidth);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) to[i] = stored[i];
    };
    read(first(slot), to[0]);
    if (has_second(slot)) read(second(slot), to[1]);
  }

  __device__ void write(const Values& values, int64_t slot, T* row) const {
    if (!has(slot)) return;
    store<kAligned>(values[0], row + first(slot));
    if (has_second(slot)) store<kAligned>(values[1], row + second(slot));
  }

  // weight + offset
  __device__ void read_factor(int64_t slot, Values& to) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[0][i] = to[1][i] = 1;
    if (!norm_.weight.data || !has(slot)) return;
    read_factor_pack(first(slot), to[0]);
    if (has_second(slot)) read_factor_pack(second(slot), to[1]);
  }

  // Rotates values of a pair slot by the angles of the row.
  __device__ void rotate_slot(int64_t slot, Values& values) const {
    if (!is_pair(slot)) return;
    Stored<Angle, kWidth> cos, sin;
    Values out;
    cos.template load<kAligned>(norm_.rope.cos + angles_ + slot * kWidth, kWidth);
    sin.template load<kAligned>(norm_.rope.sin + angles_ + slot * kWidth, kWidth);
    rotate<kInterleaved>(values, cos, sin, norm_.rope.inverse, out);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[0][i] = out[0][i], values[1][i] = out[1][i];
  }

  // The sum over the lanes of a row. Called by whole warps.
  __device__ A row_sum(A sum) const {
    for (int offset = 1; offset < call_.plan.lanes; offset *= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    return sum;
  }

 private:
  __device__ void read_factor_pack(int64_t column, A (&to)[kWidth]) const {
    if constexpr (kWidth > 1) {
      load_parameter<kAligned, T>(norm_.weight, column, kWidth, A(1), to);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) to[i] += norm_.offset;
    } else {
      to[0] = norm_.weight.template get<T>(column) + norm_.offset;
    }
  }

  const NormRopeCall<T, Angle>& call_;
  const NormRope<T, Angle>& norm_;
  const int lane_;
  bool exists_ = false;
  int64_t row_ = 0, i_ = 0, j_ = 0, k_ = 0, angles_ = 0;
};

template <bool kAligned, bool kInterleaved, int kWidth, class T, class Angle>
__global__ void __launch_bounds__(kBlockThreads)
    rms_norm_rope_kernel(const __grid_constant__ NormRopeCall<T, Angle> call) {
  begin_kernel();
  using A = compute_t<T>;
  using Lane = NormRopeLane<kAligned, kInterleaved, kWidth, T, Angle>;
  using Values = typename Lane::Values;
  Lane me(call);
  me.set_row(int64_t(blockIdx.x) * (kBlockThreads / call.plan.lanes) + me.group());
  const T* const x = me.at(call.norm.x, call.norm.x_rows);
  Values held;
  me.read(x, me.lane(), held);
  const auto squares_of = [](const Values& values) {
    A sum = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum = fused(values[half][i], values[half][i], sum);
    return sum;
  };
  A squares = squares_of(held);
  me.each_further_slot([&](int64_t slot) {
    Values values;
    me.read(x, slot, values);
    squares += squares_of(values);
  });
  const A rstd = rsqrt(me.row_sum(squares) / static_cast<A>(call.norm.x_rows.size) + call.norm.eps);
  if (!me.exists()) return;
  if (me.lane() == 0) call.norm.rstd[me.row()] = rstd;
  T* const y = call.norm.rope.y + me.row() * call.norm.x_rows.size;
  const auto finish = [&](int64_t slot, Values& values) {
    Values factor;
    me.read_factor(slot, factor);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[half][i] = product(product(values[half][i], rstd), factor[half][i]);
    me.rotate_slot(slot, values);
    me.write(values, slot, y);
  };
  finish(me.lane(), held);
  me.each_further_slot([&](int64_t slot) {
    Values values;
    me.read(x, slot, values);
    finish(slot, values);
  });
}

// A block has one row chunk. Its groups of lanes take the rows in turn, and each lane adds its terms of dweight.
template <bool kAligned, bool kInterleaved, int kWidth, class T, class Angle>
__global__ void __launch_bounds__(kBlockThreads, sizeof(T) == 2 ? 2 : 1)
    rms_norm_rope_backward_kernel(const __grid_constant__ NormRopeCall<T, Angle> call) {
  begin_kernel();
  using A = compute_t<T>;
  using Lane = NormRopeLane<kAligned, kInterleaved, kWidth, T, Angle>;
  using Values = typename Lane::Values;
  const NormRope<T, Angle>& norm = call.norm;
  const int64_t size = norm.x_rows.size, first_row = blockIdx.x * call.plan.chunks.rows;
  const int64_t end = min(first_row + call.plan.chunks.rows, call.rows);
  A* const partials = norm.partials + blockIdx.x * size;
  Lane me(call);
  Values factor, dweight = {};
  me.read_factor(me.lane(), factor);
  for (int64_t row = first_row; row < end; row += call.plan.groups) {
    me.set_row(row + me.group() < end ? row + me.group() : call.rows);
    const T *const dy = me.at(norm.rope.x, norm.rope.rows), *const x = me.at(norm.x, norm.x_rows);
    const A rstd = me.exists() ? norm.rstd[me.row()] : A(0);
    // Reads dz, the rotated dy, and xhat; zeros if there is no such row or slot.
    const auto read = [&](int64_t slot, Values& dz, Values& xhat) {
      const int64_t existing = me.exists() ? slot : call.plan.slots;
      me.read(dy, existing, dz);
      me.read(x, existing, xhat);
      if (me.exists()) me.rotate_slot(slot, dz);
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) xhat[half][i] = product(xhat[half][i], rstd);
    };
    const auto terms_of = [](const Values& dz, const Values& xhat, const Values& factor) {
      A sum = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum = fused(product(dz[half][i], factor[half][i]), xhat[half][i], sum);
      return sum;
    };
    Values dz, xhat;
    read(me.lane(), dz, xhat);
    A sum = terms_of(dz, xhat, factor);
    me.each_further_slot([&](int64_t slot) {
      Values dz, xhat, factor;
      read(slot, dz, xhat);
      me.read_factor(slot, factor);
      sum += terms_of(dz, xhat, factor);
    });
    const A mean = me.row_sum(sum) / static_cast<A>(size);
    // Adds the terms of dweight, and replaces dz by dx.
    const auto finish = [&](int64_t slot, Values& dz, const Values& xhat, const Values& factor, Values& dweight) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          dweight[half][i] = fused(dz[half][i], xhat[half][i], dweight[half][i]);
          dz[half][i] = product(rstd, fused(-xhat[half][i], mean, product(dz[half][i], factor[half][i])));
        }
      if (norm.need_dx && me.exists()) me.write(dz, slot, norm.rope.y + me.row() * size);
    };
    finish(me.lane(), dz, xhat, factor, dweight);
    me.each_further_slot([&](int64_t slot) {
      Values dz, xhat, factor, terms = {};
      read(slot, dz, xhat);
      me.read_factor(slot, factor);
      finish(slot, dz, xhat, factor, terms);
      if (!norm.need_dweight) return;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          if (half == 1 && !me.has_second(slot)) continue;
          A& column = partials[(half == 0 ? me.first(slot) : me.second(slot)) + i];
          column = row == first_row ? terms[half][i] : column + terms[half][i];
        }
    });
  }

  if (!norm.need_dweight) return;
  __shared__ A side[kBlockThreads][2 * kWidth];
#pragma unroll
  for (int i = 0; i < 2 * kWidth; ++i) side[threadIdx.x][i] = dweight[i / kWidth][i % kWidth];
  __syncthreads();
  if (me.group() > 0 || !me.has(me.lane())) return;
#pragma unroll
  for (int i = 0; i < 2 * kWidth; ++i) {
    if (i >= kWidth && !me.has_second(me.lane())) continue;
    A sum = 0;
    for (int group = 0; group < call.plan.groups; ++group) sum += side[group * call.plan.lanes + me.lane()][i];
    partials[(i < kWidth ? me.first(me.lane()) : me.second(me.lane())) + i % kWidth] = sum;
  }
}

// Launches the kernel for the layout of a call.
template <bool kBackward, class T, class Angle>
Status launch_norm_rope(const NormRope<T, Angle>& norm, const NormRopePlan& plan, const Context& context) {
  const Rope<T, Angle>& rope = norm.rope;
  const int64_t rows = rope.count();
  const NormRopeCall<T, Angle> call{
      norm, plan, rows, Divisor(rope.rows.sizes[2]), Divisor(rope.rows.sizes[1]), Divisor(rope.per_batch)};
  const auto run = [&](auto forward, auto backward) {
    if constexpr (kBackward)
      return launch(context, backward, Grid{plan.chunks.count, plan.groups * plan.lanes}, call);
    else
      return launch(context, forward, (rows + kBlockThreads / plan.lanes - 1) / (kBlockThreads / plan.lanes),
                    kBlockThreads, call);
  };
  constexpr int kPack = kPackSize<T>;
  const bool aligned = are_aligned(rope) && are_aligned(norm.x, norm.x_rows) && is_aligned(norm.weight.data);
  const auto run_for = [&](auto interleaved) {
    constexpr bool kInterleaved = decltype(interleaved)::value;
    if (plan.width == 1)
      return run(rms_norm_rope_kernel<false, kInterleaved, 1, T, Angle>,
                 rms_norm_rope_backward_kernel<false, kInterleaved, 1, T, Angle>);
    return aligned ? run(rms_norm_rope_kernel<true, kInterleaved, kPack, T, Angle>,
                         rms_norm_rope_backward_kernel<true, kInterleaved, kPack, T, Angle>)
                   : run(rms_norm_rope_kernel<false, kInterleaved, kPack, T, Angle>,
                         rms_norm_rope_backward_kernel<false, kInterleaved, kPack, T, Angle>);
  };
  return rope.interleaved ? run_for(std::true_type()) : run_for(std::false_type());
}

template <bool kBackward>
Status run_norm_rope(const Call& call, const RotaryPlaces& at) {
  return dispatch_rotation(call, at, [&](auto tag, auto angle) -> Status {
    const NormRope<typename decltype(tag)::type, typename decltype(angle)::type> norm(call, kBackward);
    const int64_t size = norm.x_rows.size, rows = norm.rope.count();
    const NormRopePlan plan(rows, size, norm.rope.half, call.inputs[at.x]->dtype);
    if (rows > 0 && size > 0) FUSEDOPS_TRY(launch_norm_rope<kBackward>(norm, plan, call.context));
    if (!kBackward || !norm.need_dweight) return {};
    return sum_row_chunks(call.context, norm.partials, plan.chunks.count, size, norm.dweight);
  });
}

}  // namespace
}  // namespace cuda

Status rms_norm_rope_cuda(const Call& call) {
  return cuda::run_norm_rope</*kBackward=*/false>(call, RotaryPlaces(kRmsNormRope, "x"));
}

Status rms_norm_rope_backward_cuda(const Call& call) {
  return cuda::run_norm_rope</*kBackward=*/true>(call, RotaryPlaces(kRmsNormRopeBackward, "x"));
}

}  // namespace fusedops
