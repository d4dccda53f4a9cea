// Copies tiles of any alignment from global to shared memory.
#pragma once

#include <cstdint>

#include "core/cuda/async_copy.cuh"

namespace fusedops::cuda {

// A tile has kLines lines of kWidth elements of unit stride; in shared memory the lines are kPitch elements apart.
// kBytes is the widest access that the alignment allows. cp.async needs at least 4 bytes; copies of 2 bytes go through
// registers: fetch() starts the loads, store() ends them.
template <class T, int kLines, int kWidth, int kPitch, int kThreads, int kBytes>
class TileLoader {
 public:
  // Fetches the tile at `from`. Elements outside of `lines` x `width` become zero.
  __device__ void fetch(T* to, const T* from, int64_t stride, int lines, int width) {
    const int line = threadIdx.x / kPerLine, column = threadIdx.x % kPerLine * kElements;
    from += line * stride + column;
    const int64_t step = kLineStride * stride;
    if constexpr (kAsync) {
      to += line * kPitch + column;
      const int row_bytes = min(max(width - column, 0), kElements) * int(sizeof(T));
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        copy_async<kBytes>(to + i * kLineStride * kPitch, from + i * step,
                           line + i * kLineStride < lines ? row_bytes : 0);
    } else if (lines == kLines && width == kWidth) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int j = 0; j < kElements; ++j) values_[i][j] = from[i * step + j];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int j = 0; j < kElements; ++j)
          values_[i][j] = line + i * kLineStride < lines && column + j < width ? from[i * step + j] : T{};
    }
  }

  __device__ void store(T* to) {
    if constexpr (!kAsync) {
      to += threadIdx.x / kPerLine * kPitch + threadIdx.x % kPerLine * kElements;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        struct alignas(kElements * sizeof(T)) Elements {
          T values[kElements];
        };
        Elements elements;
#pragma unroll
        for (int j = 0; j < kElements; ++j) elements.values[j] = values_[i][j];
        *reinterpret_cast<Elements*>(to + i * kLineStride * kPitch) = elements;
      }
    }
  }

 private:
  static constexpr bool kAsync = kBytes >= 4;
  static constexpr int kElements = kAsync ? kBytes / sizeof(T) : 2;  // adjacent elements of a thread
  static constexpr int kPerLine = kWidth / kElements;
  static constexpr int kLineStride = kThreads / kPerLine;
  static constexpr int kCount = kLines / kLineStride;
  static_assert(kWidth % kElements == 0 && kThreads % kPerLine == 0 && kLines % kLineStride == 0);

  T values_[kAsync ? 1 : kCount][kAsync ? 1 : kElements];
};

}  // namespace fusedops::cuda
