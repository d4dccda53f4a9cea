// Tiles of 16-bit elements in shared memory, in the swizzled layouts of TMA and wgmma.
#pragma once

#include "core/cuda/sm90/wgmma.cuh"

namespace fusedops::cuda::sm90 {

// A wgmma operand in shared memory: PTX ISA, "Matrix descriptor". Offsets are in its units of 16 bytes.
template <Major kMajor_, int kKBlocks_, int kKBlocksOfPanel, int kPanelOffset, int kKBlockOffset>
struct SharedOperand {
  static constexpr Major kMajor = kMajor_;
  static constexpr int kKBlocks = kKBlocks_;

  uint32_t low, high;

  // The descriptor of a k-block, which covers kInstructionK of the depth.
  __forceinline__ __device__ uint64_t at(int k_block) const {
    const uint32_t offset = k_block / kKBlocksOfPanel * kPanelOffset + k_block % kKBlocksOfPanel * kKBlockOffset;
    return uint64_t(high) << 32 | (low + offset);
  }

  __forceinline__ __device__ SharedOperand operator+(int offset) const { return {low + offset, high}; }
};

// A matrix [kRows, kColumns] as consecutive panels [kRows, kPanel]. A panel row has 128 or 64 bytes. Within every 8
// rows, 16-byte chunks are swizzled, so that the 8 rows of a chunk lie in different banks.
template <int kRows, int kColumns, int kPanel_ = 64>
struct SwizzledTile {
  static_assert((kPanel_ == 64 || kPanel_ == 32) && kColumns % kPanel_ == 0 && kRows % 8 == 0);
  static constexpr int kPanel = kPanel_, kPanels = kColumns / kPanel, kSize = kRows * kColumns;
  static constexpr int kOffset = kSize * 2 / 16;  // descriptor offset from one tile to the next

  // The index of an element.
  static __device__ int at(int row, int column) {
    const int chunk = column % kPanel / 8, swizzle = kPanel == 64 ? row % 8 : row / 2 % 4;
    return (column / kPanel * kRows + row) * kPanel + (chunk ^ swizzle) * 8 + column % 8;
  }

  // An operand of rows from `row` on, a multiple of 8. The depth runs along the columns.
  static __forceinline__ __device__ auto rows(const void* tile, int row = 0) {
    using Operand = SharedOperand<Major::K, kColumns / kInstructionK, kPanel / kInstructionK, kRows * kRowOffset,
                                  kInstructionK * 2 / 16>;
    return describe<Operand>(tile, row * kRowOffset, 1);
  }

  // An operand of columns from `column` on, a multiple of a panel. The depth runs along the rows.
  static __forceinline__ __device__ auto columns(const void* tile, int column = 0) {
    using Operand =
        SharedOperand<Major::MN, kRows / kInstructionK, kRows / kInstructionK, 0, kInstructionK * kRowOffset>;
    return describe<Operand>(tile, offset_of_columns(column), offset_of_columns(kPanel));
  }

  // For column operands: the descriptor offset of this many columns, a multiple of a panel.
  static __device__ constexpr int offset_of_columns(int columns) { return columns / kPanel * kRows * kRowOffset; }

 private:
  static constexpr int kRowOffset = kPanel * 2 / 16;

  template <class Operand>
  static __forceinline__ __device__ Operand describe(const void* tile, int offset, uint32_t leading) {
    constexpr uint32_t kSwizzle = kPanel == 64 ? 1 : 2, kEightRows = 8 * kRowOffset;
    // Higher bits hold the block's rank in its cluster, and would reach into the next field.
    const uint32_t address = (static_cast<uint32_t>(__cvta_generic_to_shared(tile)) & 0x3ffff) >> 4;
    return {address + offset + (leading << 16), kEightRows | kSwizzle << 30};
  }
};

// The descriptor offset of this many lines, a multiple of 64, or of this many lines of whole tiles.
template <int kDepth>
FUSEDOPS_HD constexpr int line_offset(int lines) {
  return lines * kDepth * 2 / 16;
}

// An operand of kLines lines from `line` on, a multiple of 64 unless the unit stride runs along the depth.
template <bool kAlongDepth, int kLines, int kDepth>
__forceinline__ __device__ auto line_operand(const void* tile, int line = 0) {
  if constexpr (kAlongDepth)
    return SwizzledTile<kLines, kDepth>::rows(tile, line);
  else
    return SwizzledTile<kDepth, kLines>::columns(tile, line);
}

}  // namespace fusedops::cuda::sm90
