// An epilogue of CUTLASS's kernels for 9.x that is a function of a warpgroup's sums, in the registers that hold them,
// and writes what it makes of them itself. The tile has 128 rows and 128 columns, and a warpgroup of its own; while one
// computes its epilogue, the other multiplies (linear_sm90.cuh).
#pragma once

#include "ops/products/matmul_sm90.cuh"

namespace fusedops::cuda {

// Of each 8 columns of its tile, a thread holds the sums of two neighbours, in one row and in that 8 below; and the
// same 64 rows further down.
struct SumPlace {
  static constexpr int kGroups = 128 / 8, kRows = 4;

  // Of the thread's rows: of the sums of row i, those of group g are at(i, g) and the one behind it.
  static __device__ constexpr int at(int i, int group) { return 4 * (i / 2 * kGroups + group) + i % 2 * 2; }
  static __device__ constexpr int row(int i) { return i / 2 * 64 + i % 2 * 8; }

  // The thread's first row and column in the tile.
  static __device__ int first_row(int thread) { return thread / 32 * 16 + thread % 32 / 4; }
  static __device__ int first_column(int thread) { return thread % 4 * 2; }
};

// `Work` has the arguments, and operator()(sums, coordinates of the tile, index of the thread in its warpgroup).
template <class T, class Work>
class DirectEpilogue {
 public:
  using EpilogueSchedule = cutlass::gemm::EpilogueDefault;
  using DispatchPolicy = EpilogueSchedule;
  using ThreadEpilogueOp = void;
  using ElementAccumulator = float;
  using ElementOutput = T;
  using ElementC = T;
  using ElementD = T;
  using StrideC = cute::Stride<int64_t, cute::_1, int64_t>;
  using StrideD = StrideC;
  struct SharedStorage {};
  using Arguments = Work;
  using Params = Work;

  template <class Problem>
  static constexpr Params to_underlying_arguments(const Problem&, const Arguments& arguments, void*) {
    return arguments;
  }
  template <class Problem>
  static size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }
  template <class Problem>
  static cutlass::Status initialize_workspace(const Problem&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }
  template <class Problem>
  static bool can_implement(const Problem&, const Arguments&) {
    return true;
  }

  CUTLASS_HOST_DEVICE explicit DirectEpilogue(const Params& params) : work_(params) {}

  template <class Problem, class Tile, class Coordinates, class Sums, class Mma, class Residue>
  CUTLASS_DEVICE void operator()(const Problem&, const Tile&, const Coordinates& coordinates, const Sums& sums,
                                 const Mma&, const Residue&, int thread, char*) const {
    static_assert(decltype(cute::size(sums))::value == 2 * SumPlace::kRows * SumPlace::kGroups);
    work_(sums, coordinates, thread);
  }

 private:
  Work work_;
};

// The transpose of the 4 x 4 words that the four lanes of a quad hold: lane i gives its word j to lane j, as word i.
__device__ inline void transpose_in_quad(uint32_t (&words)[4]) {
  const int lane = threadIdx.x % 4;
  const auto exchange = [](uint32_t& low, uint32_t& high, bool is_high, int distance) {
    const uint32_t got = __shfl_xor_sync(0xffffffff, is_high ? low : high, distance);
    (is_high ? low : high) = got;
  };
  exchange(words[0], words[2], lane & 2, 2);
  exchange(words[1], words[3], lane & 2, 2);
  exchange(words[0], words[1], lane & 1, 1);
  exchange(words[2], words[3], lane & 1, 1);
}

// What the lanes of a quad hold of 32 columns of a row, two of each 8: each lane gets 8 neighbours, rounded, those of
// its place in the quad. Written in one access, they are 64 bytes of the row together.
template <class T>
CUTLASS_DEVICE uint4 rounded_in_quad(const cutlass::Array<float, 8>& values) {
  const cutlass::NumericArrayConverter<T, float, 2> round;
  uint32_t words[4];
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    const cutlass::Array<float, 2> pair = {values[group * 2], values[group * 2 + 1]};
    const cutlass::Array<T, 2> rounded = round(pair);
    words[group] = reinterpret_cast<const uint32_t&>(rounded);
  }
  transpose_in_quad(words);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace fusedops::cuda
