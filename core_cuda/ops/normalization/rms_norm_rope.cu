// rms_norm_rope on a GPU. Limit: memory bandwidth; weight, cos and sin stay in the caches.
//
// Up to 32 lanes of a warp share a row. A slot of a row is two packs: a pack of pairs' first features and that of their
// second ones or, behind the pairs, two packs that are not rotated. Each lane holds its first slot in registers; rows
// of more slots than lanes read the other slots twice. The order of all sums depends on shape and dtype alone, and not
// on the alignment. Each slot is summed by itself: squares of 16-bit values that are added to a large sum one by one
// are rounded to the same side.
//
// No load of a held slot waits for another one. The backward of rows without further slots loads a step ahead.
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

// kHeld: no row has more slots than lanes, and indices of rows have 31 bits. kWidth: elements of a pack, 1 if rows are
// not made of whole packs.
template <bool kAligned, bool kHeld, bool kInterleaved, int kWidth, class T, class Angle>
class NormRopeLane {
 public:
  using A = compute_t<T>;
  using Index = std::conditional_t<kHeld, int, int64_t>;  // in a row
  using Slot = Stored<T, kWidth>[2];
  using Values = A[2][kWidth];
  struct Angles {
    Stored<Angle, kWidth> cos, sin;
  };
  using RowIndex = std::conditional_t<kHeld, uint32_t, int64_t>;
  struct Row {
    bool exists;
    RowIndex index, i, j, k;
  };

  __device__ NormRopeLane(const NormRopeCall<T, Angle>& call)
      : call_(call),
        norm_(call.norm),
        lane_(threadIdx.x & (call.plan.lanes - 1)),
        size_(static_cast<Index>(call.norm.x_rows.size)),
        half_(static_cast<Index>(call.norm.rope.half)),
        pair_slots_(static_cast<Index>(call.plan.pair_slots)) {}

  __device__ int lane() const { return lane_; }
  __device__ int group() const { return threadIdx.x >> call_.plan.lane_shift; }

  // The row with this index, or row 0 if it is not below `end`.
  __device__ Row row(int64_t index, int64_t end) const {
    Row row{index < end, static_cast<RowIndex>(index < end ? index : 0)};
    const auto [outer, k] = divided(row.index, call_.inner);
    const auto [i, j] = divided(outer, call_.middle);
    row.i = i, row.j = j, row.k = k;
    return row;
  }

  __device__ const T* at(const T* data, const Heads& rows, const Row& row) const {
    return data + row.i * rows.strides[0] + row.j * rows.strides[1] + row.k * rows.strides[2];
  }

  __device__ bool has(Index slot) const { return first(slot) < size_; }
  __device__ bool is_pair(Index slot) const { return slot < pair_slots_; }
  __device__ Index first(Index slot) const {
    if (!is_pair(slot)) return 2 * half_ + 2 * (slot - pair_slots_) * kWidth;
    return slot * (kInterleaved ? 2 * kWidth : kWidth);
  }
  __device__ Index second(Index slot) const {
    return first(slot) + (is_pair(slot) && !kInterleaved ? half_ : Index(kWidth));
  }
  __device__ bool has_second(Index slot) const { return second(slot) < size_; }

  // Calls body(slot) for the slots of this lane that are not held.
  template <class Body>
  __device__ void each_further_slot(Body body) const {
    if constexpr (!kHeld)
      for (int64_t slot = lane_ + call_.plan.lanes; has(slot); slot += call_.plan.lanes) body(slot);
  }

  // Zeros if there is no such row or slot.
  __device__ void read(const T* row, bool exists, Index slot, Slot& to) const {
    to[0].template load<kAligned>(row + first(slot), exists ? size_ - first(slot) : 0);
    to[1].template load<kAligned>(row + second(slot), exists ? size_ - second(slot) : 0);
  }

  __device__ void read_angles(const Row& row, Index slot, Angles& to) const {
    const Rope<T, Angle>& rope = norm_.rope;
    const int64_t angles = rope.angle_row(divided(row.i, call_.per_batch).quotient, row.j, row.k) * half_;
    to.cos.template load<kAligned>(rope.cos + angles + slot * kWidth, half_ - slot * kWidth);
    to.sin.template load<kAligned>(rope.sin + angles + slot * kWidth, half_ - slot * kWidth);
  }

  __device__ void write(const Values& values, Index slot, T* row) const {
    if (has(slot)) store<kAligned>(values[0], row + first(slot));
    if (has_second(slot)) store<kAligned>(values[1], row + second(slot));
  }

  // weight + offset
  __device__ void read_factor(Index slot, Values& to) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[0][i] = to[1][i] = 1;
    if (!norm_.weight.data) return;
    read_factor_pack(first(slot), to[0]);
    read_factor_pack(second(slot), to[1]);
  }

  // Rotates values of a pair slot.
  template <bool kInverse>
  __device__ void rotate_slot(Index slot, const Angles& angles, Values& values) const {
    if (!is_pair(slot)) return;
    Values out;
    rotate<kInterleaved>(values, angles.cos, angles.sin, kInverse, out);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[0][i] = out[0][i], values[1][i] = out[1][i];
  }

  // The sum over the lanes of a row. Called by whole warps.
  __device__ A row_sum(A sum) const {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2)
      if (offset < call_.plan.lanes) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    return sum;
  }

 private:
  static __device__ auto divided(RowIndex dividend, const Divisor& divisor) {
    if constexpr (kHeld)
      return divisor.divide_short(dividend);
    else
      return divisor.divide(dividend);
  }

  __device__ void read_factor_pack(Index column, A (&to)[kWidth]) const {
    if constexpr (kWidth > 1) {
      load_parameter<kAligned, T>(norm_.weight, column, size_ - column, A(1), to);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) to[i] += norm_.offset;
    } else if (column < size_) {
      to[0] = norm_.weight.template get<T>(column) + norm_.offset;
    }
  }

  const NormRopeCall<T, Angle>& call_;
  const NormRope<T, Angle>& norm_;
  const int lane_;
  const Index size_, half_, pair_slots_;
};

// Rows of each group of lanes of the forward: two share their factors.
constexpr int rows_of_lanes(bool held) { return held ? 2 : 1; }

template <bool kAligned, bool kHeld, bool kInterleaved, int kWidth, class T, class Angle>
__global__ void __launch_bounds__(kBlockThreads, kHeld ? 3 : 1)
    rms_norm_rope_kernel(const __grid_constant__ NormRopeCall<T, Angle> call) {
  begin_kernel();
  using A = compute_t<T>;
  using Lane = NormRopeLane<kAligned, kHeld, kInterleaved, kWidth, T, Angle>;
  using Slot = typename Lane::Slot;
  using Values = typename Lane::Values;
  using Angles = typename Lane::Angles;
  const Lane me(call);
  constexpr int kRows = rows_of_lanes(kHeld);
  const int64_t groups = kBlockThreads >> call.plan.lane_shift;
  typename Lane::Row rows[kRows];
  Slot held[kRows];
  Angles angles[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    rows[r] = me.row((int64_t(blockIdx.x) * kRows + r) * groups + me.group(), call.rows);
    me.read(me.at(call.norm.x, call.norm.x_rows, rows[r]), true, me.lane(), held[r]);
    me.read_angles(rows[r], me.lane(), angles[r]);
  }
  Values factor;
  me.read_factor(me.lane(), factor);
  const auto squares_of = [](const Slot& x) {
    A sum = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum = fused(x[half][i], x[half][i], sum);
    return sum;
  };
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const auto& row = rows[r];
    const T* const x = me.at(call.norm.x, call.norm.x_rows, row);
    A squares = squares_of(held[r]);
    me.each_further_slot([&](int64_t slot) {
      Slot x_slot;
      me.read(x, true, slot, x_slot);
      squares += squares_of(x_slot);
    });
    const A rstd = rsqrt(me.row_sum(squares) / static_cast<A>(call.norm.x_rows.size) + call.norm.eps);
    if (!row.exists) continue;
    if (me.lane() == 0) call.norm.rstd[row.index] = rstd;
    T* const y = call.norm.rope.y + int64_t(row.index) * call.norm.x_rows.size;
    const auto finish = [&](auto slot, const Slot& x, const Values& factor, const Angles& angles) {
      Values values;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[half][i] = product(product(x[half][i], rstd), factor[half][i]);
      me.template rotate_slot</*kInverse=*/false>(slot, angles, values);
      me.write(values, slot, y);
    };
    finish(me.lane(), held[r], factor, angles[r]);
    me.each_further_slot([&](int64_t slot) {
      Slot x_slot;
      Angles angles;
      Values factor;
      me.read(x, true, slot, x_slot);
      me.read_angles(row, slot, angles);
      me.read_factor(slot, factor);
      finish(slot, x_slot, factor, angles);
    });
  }
}

// A block has one row chunk. Its groups of lanes take the rows in turn, and each lane adds its terms of dweight.
template <bool kAligned, bool kHeld, bool kInterleaved, int kWidth, class T, class Angle>
__global__ void __launch_bounds__(kBlockThreads, sizeof(T) == 2 ? 2 : 1)
    rms_norm_rope_backward_kernel(const __grid_constant__ NormRopeCall<T, Angle> call) {
  begin_kernel();
  using A = compute_t<T>;
  using Lane = NormRopeLane<kAligned, kHeld, kInterleaved, kWidth, T, Angle>;
  using Slot = typename Lane::Slot;
  using Values = typename Lane::Values;
  using Row = typename Lane::Row;
  const NormRope<T, Angle>& norm = call.norm;
  const int64_t size = norm.x_rows.size, first_row = blockIdx.x * call.plan.chunks.rows;
  const int64_t end = min(first_row + call.plan.chunks.rows, call.rows);
  A* const partials = norm.partials + blockIdx.x * size;
  const Lane me(call);
  // A slot of a row: zeros if there is no such row or slot.
  struct Loaded {
    Slot dy, x;
    typename Lane::Angles angles;
  };
  const auto load = [&](const Row& row, auto slot, Loaded& to) {
    me.read(me.at(norm.rope.x, norm.rope.rows, row), row.exists, slot, to.dy);
    me.read(me.at(norm.x, norm.x_rows, row), row.exists, slot, to.x);
    me.read_angles(row, slot, to.angles);
  };
  Row row = me.row(first_row + me.group(), end);
  Loaded held;
  load(row, me.lane(), held);
  A rstd = row.exists ? norm.rstd[row.index] : A(0);
  Values factor, dweight = {};
  me.read_factor(me.lane(), factor);
  for (int64_t first = first_row; first < end; first += call.plan.groups) {
    const Row next = me.row(first + call.plan.groups + me.group(), end);
    const A next_rstd = next.exists ? norm.rstd[next.index] : A(0);
    Loaded ahead;
    if constexpr (kHeld) load(next, me.lane(), ahead);
    // dz, the rotated dy, and xhat
    const auto prepare = [&](auto slot, const Loaded& from, Values& dz, Values& xhat) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          dz[half][i] = from.dy[half][i];
          xhat[half][i] = product(from.x[half][i], rstd);
        }
      if (row.exists) me.template rotate_slot</*kInverse=*/true>(slot, from.angles, dz);
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
    prepare(me.lane(), held, dz, xhat);
    A sum = terms_of(dz, xhat, factor);
    me.each_further_slot([&](int64_t slot) {
      Loaded loaded;
      Values dz, xhat, factor;
      load(row, slot, loaded);
      prepare(slot, loaded, dz, xhat);
      me.read_factor(slot, factor);
      sum += terms_of(dz, xhat, factor);
    });
    const A mean = me.row_sum(sum) / static_cast<A>(size);
    // Adds the terms of dweight, and replaces dz by dx.
    const auto finish = [&](auto slot, Values& dz, const Values& xhat, const Values& factor, Values& dweight) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          dweight[half][i] = fused(dz[half][i], xhat[half][i], dweight[half][i]);
          dz[half][i] = product(rstd, fused(-xhat[half][i], mean, product(dz[half][i], factor[half][i])));
        }
      if (norm.need_dx && row.exists) me.write(dz, slot, norm.rope.y + int64_t(row.index) * size);
    };
    finish(me.lane(), dz, xhat, factor, dweight);
    me.each_further_slot([&](int64_t slot) {
      Loaded loaded;
      Values dz, xhat, factor, terms = {};
      load(row, slot, loaded);
      prepare(slot, loaded, dz, xhat);
      me.read_factor(slot, factor);
      finish(slot, dz, xhat, factor, terms);
      if (!norm.need_dweight) return;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          if (half == 1 && !me.has_second(slot)) continue;
          A& column = partials[(half == 0 ? me.first(slot) : me.second(slot)) + i];
          column = first == first_row ? terms[half][i] : column + terms[half][i];
        }
    });
    row = next;
    if constexpr (kHeld)
      held = ahead;
    else
      load(next, me.lane(), held);
    rstd = next_rstd;
  }

  if (!norm.need_dweight) return;
  __shared__ A side[kBlockThreads][2 * kWidth];
#pragma unroll
  for (int i = 0; i < 2 * kWidth; ++i) side[threadIdx.x][i] = dweight[i / kWidth][i % kWidth];
  __syncthreads();
  // One thread adds the groups' terms of one column.
  for (int place = threadIdx.x; place < call.plan.lanes * 2 * kWidth; place += call.plan.groups * call.plan.lanes) {
    const int slot = place / (2 * kWidth), i = place % (2 * kWidth);
    if (i < kWidth ? !me.has(slot) : !me.has_second(slot)) continue;
    A sum = 0;
    for (int group = 0; group < call.plan.groups; ++group) sum += side[group * call.plan.lanes + slot][i];
    partials[(i < kWidth ? me.first(slot) : me.second(slot)) + i % kWidth] = sum;
  }
}

// Launches the kernel for the layout of a call.
template <bool kBackward, class T, class Angle>
Status launch_norm_rope(const NormRope<T, Angle>& norm, const NormRopePlan& plan, const Context& context) {
  const Rope<T, Angle>& rope = norm.rope;
  const int64_t rows = rope.count();
  const NormRopeCall<T, Angle> call{
      norm, plan, rows, Divisor(rope.rows.sizes[2]), Divisor(rope.rows.sizes[1]), Divisor(rope.per_batch)};
  const auto run = [&](auto forward, auto backward, bool held = false) {
    const int64_t block_rows = kBlockThreads / plan.lanes * rows_of_lanes(held);
    if constexpr (kBackward)
      return launch(context, backward, Grid{plan.chunks.count, plan.groups * plan.lanes}, call);
    else
      return launch(context, forward, (rows + block_rows - 1) / block_rows, kBlockThreads, call);
  };
  constexpr int kPack = kPackSize<T>;
  const bool aligned = are_aligned(rope) && are_aligned(norm.x, norm.x_rows) && is_aligned(norm.weight.data);
  const auto run_for = [&](auto interleaved) {
    constexpr bool kInterleaved = decltype(interleaved)::value;
    if (plan.width == 1)
      return run(rms_norm_rope_kernel<false, false, kInterleaved, 1, T, Angle>,
                 rms_norm_rope_backward_kernel<false, false, kInterleaved, 1, T, Angle>);
    if (!aligned)
      return run(rms_norm_rope_kernel<false, false, kInterleaved, kPack, T, Angle>,
                 rms_norm_rope_backward_kernel<false, false, kInterleaved, kPack, T, Angle>);
    if (plan.slots <= plan.lanes && rows < int64_t(1) << 31)
      return run(rms_norm_rope_kernel<true, true, kInterleaved, kPack, T, Angle>,
                 rms_norm_rope_backward_kernel<true, true, kInterleaved, kPack, T, Angle>, /*held=*/true);
    return run(rms_norm_rope_kernel<true, false, kInterleaved, kPack, T, Angle>,
               rms_norm_rope_backward_kernel<true, false, kInterleaved, kPack, T, Angle>);
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
