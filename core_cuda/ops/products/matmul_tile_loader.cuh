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
    from += first_line() * stride + column();
    const int64_t step = kLineStride * stride;
    fetch_lines(to, lines, width, [&](int i) { return from + i * step; });
  }

  // The same for lines of a matrix at `from` with these numbers.
  __device__ void fetch_numbered(T* to, const T* from, int64_t stride, const int32_t* numbers, int lines, int width) {
    from += column();
    fetch_lines(to, lines, width, [&](int i) {
      const int line = first_line() + i * kLineStride;
      return from + (line < lines ? numbers[line] : 0) * stride;
    });
  }

  __device__ void store(T* to) {
    if constexpr (!kAsync) {
      to += first_line() * kPitch + column();
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

  static __device__ int first_line() { return threadIdx.x / kPerLine; }
  static __device__ int column() { return threadIdx.x % kPerLine * kElements; }

  // from(i) is the address of the thread's first element in its i-th line.
  template <class From>
  __device__ void fetch_lines(T* to, int lines, int width, From&& from) {
    const int line = first_line(), column = TileLoader::column();
    if constexpr (kAsync) {
      to += line * kPitch + column;
      const int row_bytes = min(max(width - column, 0), kElements) * int(sizeof(T));
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        copy_async<kBytes>(to + i * kLineStride * kPitch, from(i), line + i * kLineStride < lines ? row_bytes : 0);
    } else if (lines == kLines && width == kWidth) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int j = 0; j < kElements; ++j) values_[i][j] = from(i)[j];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int j = 0; j < kElements; ++j)
          values_[i][j] = line + i * kLineStride < lines && column + j < width ? from(i)[j] : T{};
    }
  }

  T values_[kAsync ? 1 : kCount][kAsync ? 1 : kElements];
};

}  // namespace fusedops::cuda
