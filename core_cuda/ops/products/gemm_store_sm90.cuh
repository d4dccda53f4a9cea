// Stores of a warp's sums through shared memory and TMA, for epilogues of gemm_sm90.cuh.
#pragma once

#include "core/cuda/sm90/swizzled_tile.cuh"
#include "core/cuda/sm90/tma.cuh"
#include "core/cuda/tensor_core.cuh"
#include "ops/products/matmul.h"

namespace fusedops::cuda {

// Double-buffered panels of a warp, 16 rows of 128 bytes each. Warps are independent, so no block barrier is needed. A
// work tile has an even number of panels, so that each one begins with the first buffer.
template <class Out>
class PanelStores {
 public:
  static constexpr int kRows = 16, kColumns = 128 / int(sizeof(Out)), kBufferBytes = kRows * 128;
  static constexpr int kBytes = 2 * kBufferBytes;
  using Panel = sm90::SwizzledTile<kRows, 64>;

  // Sums of a thread in a panel, see Fragment.
  static constexpr int kValues = kColumns / 2;

  __device__ PanelStores(char* buffers, int matrix) : buffers_(buffers), matrix_(matrix) {}

  // Stores the panel whose first element in c is in this row and column. value(i) is the thread's i-th value.
  template <class Value>
  __forceinline__ __device__ void store(const CUtensorMap& c, int row, int column, Value&& value) {
    const int lane = threadIdx.x % 32;
    cute::tma_store_wait<1>();  // the last store from this buffer has read it
    __syncwarp();
    char* const buffer = buffers_ + next_ * kBufferBytes;
    write(reinterpret_cast<uint16_t*>(buffer), lane, value);
    cute::tma_store_fence();
    __syncwarp();
    if (lane == 0) {
      cute::SM90_TMA_STORE_3D::copy(&c, buffer, column * kHalves, row, matrix_);
      cute::tma_store_arrive();
    }
    next_ ^= 1;
  }

  // TMA descriptor of c. A 32-bit element counts as two of 16 bits.
  static Status describe(const Matmul& product, void* c, CUtensorMap* result) {
    const auto stride = cuuint64_t(product.c_stride) * sizeof(Out);
    const sm90::Boxes<3> boxes = {
        .data = c,
        .sizes = {cuuint64_t(product.n) * kHalves, cuuint64_t(product.m), cuuint64_t(product.batch)},
        .strides = {stride, product.batch > 1 ? stride * cuuint64_t(product.m) : stride},
        .box = {64, kRows, 1}};
    return boxes.describe(result);
  }

  // Writes a panel to a buffer.
  template <class Value>
  static __forceinline__ __device__ void write(uint16_t* panel, int lane, Value&& value) {
    if constexpr (kHalves == 1) {
      const auto pair = [&](int i) { return rounded_pair<Out>(value(i), value(i + 1)); };
#pragma unroll
      for (int i = 0; i < kValues; i += 8)  // 16 columns
        cute::SM90_U32x4_STSM_N::copy(
            pair(i), pair(i + 2), pair(i + 4), pair(i + 6),
            *reinterpret_cast<cute::uint128_t*>(panel + Panel::at(lane % 16, i * 2 + lane / 16 * 8)));
    } else {
      // Odd rows write the right half of the panel first, to avoid bank conflicts with even rows.
      const bool is_odd = lane / 4 % 2;
#pragma unroll
      for (int i = 0; i < kValues; i += 2) {
        const int other = i ^ kValues / 2, column = (is_odd ? other : i) / 4 * 16 + lane % 4 * 4;
        *reinterpret_cast<float2*>(panel + Panel::at(lane / 4 + i / 2 % 2 * 8, column)) =
            make_float2(is_odd ? value(other) : value(i), is_odd ? value(other + 1) : value(i + 1));
      }
    }
  }

 private:
  static constexpr int kHalves = sizeof(Out) / 2;  // 16-bit words of an element

  char* buffers_;
  int matrix_, next_ = 0;
};

}  // namespace fusedops::cuda
