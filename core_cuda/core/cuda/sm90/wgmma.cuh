// wgmma, the warpgroup-level products of compute capability 9.0.
//
// CUTLASS wraps each instruction in a struct, and only these structs are used. CuTe's layouts would select among them
// too, but its templates then dominate the compile time of a kernel.
#pragma once

#include "core/common/element.h"
#include "cute/arch/mma_sm90_gmma.hpp"
#include "cute/arch/mma_sm90_gmma_ext.hpp"

namespace fusedops::cuda::sm90 {

inline constexpr int kWarpgroup = 128;    // threads
inline constexpr int kInstructionK = 16;  // depth of an instruction: one k-block

// The direction of an operand's unit stride: along the depth, or across it.
using Major = cute::SM90::GMMA::Major;

// The instructions for accumulators of 64 x kColumns: both operands in shared memory, or the left one in registers.
template <class T, int kColumns>
struct Instructions;

// CUTLASS names each instruction by its number of columns, so only the preprocessor can select one.
#define FUSEDOPS_INSTRUCTIONS(T, kColumns, kTypes)                                              \
  template <>                                                                                   \
  struct Instructions<T, kColumns> {                                                            \
    template <Major kLeft, Major kRight>                                                        \
    using Shared = cute::SM90::GMMA::MMA_64x##kColumns##x16_##kTypes##_SS<kLeft, kRight>;       \
    template <Major kRight>                                                                     \
    using Registers = cute::SM90::GMMA::MMA_64x##kColumns##x16_##kTypes##_RS<Major::K, kRight>; \
  };
#define FUSEDOPS_INSTRUCTIONS_OF_16_BITS(kColumns) \
  FUSEDOPS_INSTRUCTIONS(f16, kColumns, F32F16F16)  \
  FUSEDOPS_INSTRUCTIONS(bf16, kColumns, F32BF16BF16)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(8)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(16)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(32)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(64)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(80)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(96)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(128)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(160)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(176)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(192)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(224)
FUSEDOPS_INSTRUCTIONS_OF_16_BITS(256)
#undef FUSEDOPS_INSTRUCTIONS_OF_16_BITS
#undef FUSEDOPS_INSTRUCTIONS

// sums (+)= left * right: one instruction. `right`, and `left` unless it is in registers, are matrix descriptors.
template <class T, Major kLeft, Major kRight, int kValues>
__forceinline__ __device__ void multiply_k_block(uint64_t left, uint64_t right, float (&sums)[kValues], bool adds) {
  using Instruction = typename Instructions<T, 2 * kValues>::template Shared<kLeft, kRight>;
  const auto scale = adds ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero;
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    Instruction::fma(left, right, sums[kIndex]..., scale);
  }(std::make_index_sequence<kValues>());
}

template <class T, Major kRight, int kValues>
__forceinline__ __device__ void multiply_k_block(const uint32_t* left, uint64_t right, float (&sums)[kValues],
                                                 bool adds) {
  using Instruction = typename Instructions<T, 2 * kValues>::template Registers<kRight>;
  const auto scale = adds ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero;
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    Instruction::fma(left[0], left[1], left[2], left[3], right, sums[kIndex]..., scale);
  }(std::make_index_sequence<kValues>());
}

// Keeps the compiler from moving register accesses across the instructions that use them asynchronously.
template <class Register, int kCount>
__forceinline__ __device__ void fence_registers(Register (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) cute::warpgroup_fence_operand(registers[i]);
}

// sums (+)= left * right, queued as one wgmma group. Both are operands of swizzled_tile.cuh.
template <class T, bool kAdds, class Left, class Right, int kValues>
__forceinline__ __device__ void multiply(const Left& left, const Right& right, float (&sums)[kValues]) {
  static_assert(Left::kKBlocks == Right::kKBlocks);
  fence_registers(sums);
  cute::warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < Left::kKBlocks; ++k)
    multiply_k_block<T, Left::kMajor, Right::kMajor>(left.at(k), right.at(k), sums, kAdds || k > 0);
  cute::warpgroup_commit_batch();
  fence_registers(sums);
}

// multiply() with a left operand in registers: pairs of elements, in the order of an accumulator.
template <class T, bool kAdds, int kWords, class Right, int kValues>
__forceinline__ __device__ void multiply(uint32_t (&left)[kWords], const Right& right, float (&sums)[kValues]) {
  static_assert(kWords == 4 * Right::kKBlocks);
  fence_registers(left);
  fence_registers(sums);
  cute::warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < Right::kKBlocks; ++k)
    multiply_k_block<T, Right::kMajor>(left + 4 * k, right.at(k), sums, kAdds || k > 0);
  cute::warpgroup_commit_batch();
  fence_registers(sums);
  fence_registers(left);
}

// Waits until at most kPending groups are in flight. `sums` are results of the complete ones.
template <int kPending, int... kValues>
__forceinline__ __device__ void wait_for(float (&... sums)[kValues]) {
  cute::warpgroup_wait<kPending>();
  (fence_registers(sums), ...);
}

// The positions of a thread's values in an accumulator of 64 rows: value v is in row(v / 2 % 2) and column(v). A left
// operand in registers has the same layout, so accumulators become operands without shuffles.
struct Fragment {
  __device__ explicit Fragment(int thread) : first_row(thread / 32 * 16 + thread % 32 / 4), pair(thread % 4 * 2) {}

  __device__ int row(int which) const { return first_row + 8 * which; }
  __device__ int column(int value) const { return value / 4 * 8 + pair + value % 2; }

  int first_row, pair;
};

}  // namespace fusedops::cuda::sm90
