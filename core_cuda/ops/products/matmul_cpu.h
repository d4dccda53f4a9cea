// Building blocks of products on the CPU: the micro-kernel, which multiplies panels, and packing, which makes them.
// Used by matmul_cpu.cpp and attention_cpu.cpp.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "core/common/numeric.h"
#include "core/cpu/elementwise.h"

namespace fusedops::cpu {

// ---- Micro-kernel: c [mr, nr] (+)= a [k, mr]^T @ b [k, nr], both packed ----

// The sums of earlier steps come from the second- or third-level cache while the micro-kernel adds the next ones.
template <int mr, class A>
[[gnu::always_inline]] inline void prefetch_tile(const A* c, int64_t c_stride, int nr) {
  constexpr int kLine = 64 / sizeof(A);
#pragma GCC unroll 16
  for (int i = 0; i < mr; ++i)
#pragma GCC unroll 4
    for (int at = 0; at < nr; at += kLine) __builtin_prefetch(c + i * c_stride + at, /*write=*/1);
}

// The mr * kVectors sums, a row of b and an element of a must fit into registers. Each step then loads mr + nr elements
// for mr * nr multiply-adds, and the multiply-adds are the only limit.
template <class A, int kVectorBytes, int mr, int kVectors>
[[gnu::always_inline]] inline void multiply(int64_t k, const A* a, const A* b, A* c, int64_t c_stride, bool add) {
  typedef A Vector __attribute__((vector_size(kVectorBytes)));
  constexpr int kWidth = kVectorBytes / sizeof(A), nr = kVectors * kWidth;
  static_assert(mr % 4 == 0 && nr % 4 == 0, "packing interleaves four lines at a time");
  Vector sums[mr][kVectors] = {};
  if (add) prefetch_tile<mr>(c, c_stride, nr);
  for (int64_t p = 0; p < k; ++p, a += mr, b += nr) {
    Vector row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) std::memcpy(&row[v], b + v * kWidth, sizeof row[v]);
#pragma GCC unroll 16
    for (int i = 0; i < mr; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] += a[i] * row[v];
  }
#pragma GCC unroll 16
  for (int i = 0; i < mr; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      A* to = c + i * c_stride + v * kWidth;
      if (add) {
        Vector before;
        std::memcpy(&before, to, sizeof before);
        sums[i][v] += before;
      }
      std::memcpy(to, &sums[i][v], sizeof(Vector));
    }
}

template <class A>
struct MicroKernel {
  int mr, nr;
  void (*multiply)(int64_t k, const A* a, const A* b, A* c, int64_t c_stride, bool add);
  int steps = 1;  // of the sum in an element of a panel: 2 bf16, or 1
};

inline constexpr int kMaxMr = 12, kMaxNr = 32;  // over all kernels below

template <class A, int mr, int kVectors>
void multiply_portable(int64_t k, const A* a, const A* b, A* c, int64_t c_stride, bool add) {
  multiply<A, 16, mr, kVectors>(k, a, b, c, c_stride, add);
}

#ifdef __x86_64__
template <class A, int mr, int kVectors>
[[gnu::target("avx2,fma")]] void multiply_avx2(int64_t k, const A* a, const A* b, A* c, int64_t c_stride, bool add) {
  multiply<A, 32, mr, kVectors>(k, a, b, c, c_stride, add);
}

template <class A, int mr, int kVectors>
[[gnu::target("avx512f")]] void multiply_avx512(int64_t k, const A* a, const A* b, A* c, int64_t c_stride, bool add) {
  multiply<A, 64, mr, kVectors>(k, a, b, c, c_stride, add);
}

// An element holds two steps of k in bf16, the first one in the upper half. VDPBF16PS adds the product of the upper
// halves, then that of the lower ones, and rounds after each as a fused multiply-add does. So the bits are those of the
// other kernels unless numbers are subnormal, which it takes and returns as 0: see can_pair().
template <int mr, int kVectors>
[[gnu::target("avx512f,avx512bf16")]] void multiply_bf16_avx512(int64_t k, const float* a, const float* b, float* c,
                                                                int64_t c_stride, bool add) {
  constexpr int kWidth = 16, nr = kVectors * kWidth;
  __m512 sums[mr][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < mr; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_setzero_ps();
  if (add) prefetch_tile<mr>(c, c_stride, nr);
  for (int64_t p = 0; p < k; ++p, a += mr, b += nr) {
    __m512bh row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = (__m512bh)_mm512_loadu_ps(b + v * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < mr; ++i) {
      const auto x = (__m512bh)_mm512_set1_ps(a[i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], x, row[v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < mr; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* const to = c + i * c_stride + v * kWidth;
      _mm512_storeu_ps(to, add ? sums[i][v] + _mm512_loadu_ps(to) : sums[i][v]);
    }
}
#endif

// The kernel for this processor and n columns: 24 sums suit 32 registers (AVX-512, aarch64), 12 or less suit 16. A c
// narrower than half of nr gets a kernel of one vector. All kernels add the same products in the same order, so that
// with fused multiply-adds the choice changes no bit.
template <class A>
MicroKernel<A> micro_kernel(int64_t n) {
  constexpr int kWidth = 16 / sizeof(A);
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) {
    if (n <= 4 * kWidth) return {12, 4 * kWidth, multiply_avx512<A, 12, 1>};
    return {12, 8 * kWidth, multiply_avx512<A, 12, 2>};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    if (n <= 2 * kWidth) return {8, 2 * kWidth, multiply_avx2<A, 8, 1>};
    return {4, 6 * kWidth, multiply_avx2<A, 4, 3>};
  }
#endif
#ifdef __aarch64__
  return {12, 2 * kWidth, multiply_portable<A, 12, 2>};
#else
  return {4, 2 * kWidth, multiply_portable<A, 4, 2>};
#endif
}

// The kernel of pairs of steps, with the same mr and nr; without a function if there is none.
template <class T>
MicroKernel<compute_t<T>> micro_kernel_of_pairs(int64_t n) {
#ifdef __x86_64__
  if constexpr (std::is_same_v<T, bf16>)
    if (__builtin_cpu_supports("avx512bf16"))
      return n <= 16 ? MicroKernel<float>{12, 16, multiply_bf16_avx512<12, 1>, 2}
                     : MicroKernel<float>{12, 32, multiply_bf16_avx512<12, 2>, 2};
#endif
  return {0, 0, nullptr};
}

// c [rows, cols] (+)= a @ b. At the edges the micro-kernel computes values that are not stored.
template <class A>
void multiply_panels(const MicroKernel<A>& kernel, int64_t rows, int64_t cols, int64_t k, const A* a, const A* b, A* c,
                     int64_t c_stride, bool add) {
  const int64_t mr = kernel.mr, nr = kernel.nr;
  for (int64_t j = 0; j < cols; j += nr)
    for (int64_t i = 0; i < rows; i += mr) {
      A* to = c + i * c_stride + j;
      if (i + mr <= rows && j + nr <= cols) {
        kernel.multiply(k, a + i * k, b + j * k, to, c_stride, add);
        continue;
      }
      A edge[kMaxMr * kMaxNr];
      kernel.multiply(k, a + i * k, b + j * k, edge, nr, false);
      for (int64_t y = 0; y < std::min(mr, rows - i); ++y)
        for (int64_t x = 0; x < std::min(nr, cols - j); ++x)
          to[y * c_stride + x] = add ? to[y * c_stride + x] + edge[y * nr + x] : edge[y * nr + x];
    }
}

// ---- Packing: [count, k] becomes panels [k, width] in the order in which the micro-kernel reads them ----

// A matrix as lines along k: the rows of a or the columns of b.
template <class T>
struct Lines {
  const T* data;
  bool along_k;    // true: each line is contiguous; false: each step of k is
  int64_t stride;  // between lines, or between steps of k

  const T* at(int64_t line, int64_t p) const { return along_k ? data + line * stride + p : data + p * stride + line; }
  Lines from(int64_t line, int64_t p) const { return {at(line, p), along_k, stride}; }
};

// Elements kFrom of a followed by b. GCC before 12 lacks __builtin_shufflevector.
template <int... kFrom, class Vector>
Vector shuffled(Vector a, Vector b) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, kFrom...);
#else
  typedef std::conditional_t<sizeof(a[0]) == 8, int64_t, int32_t> Places __attribute__((vector_size(sizeof(Vector))));
  return __builtin_shuffle(a, b, Places{kFrom...});
#endif
}

// Four contiguous lines become four columns of a panel.
template <class A>
void interleave4(const A* const lines[4], int64_t k, A* panel, int width) {
  typedef A Vector __attribute__((vector_size(4 * sizeof(A))));
  int64_t p = 0;
  for (; p + 4 <= k; p += 4) {
    Vector x[4];
    for (int i = 0; i < 4; ++i) std::memcpy(&x[i], lines[i] + p, sizeof x[i]);
    const Vector low01 = shuffled<0, 4, 1, 5>(x[0], x[1]);
    const Vector low23 = shuffled<0, 4, 1, 5>(x[2], x[3]);
    const Vector high01 = shuffled<2, 6, 3, 7>(x[0], x[1]);
    const Vector high23 = shuffled<2, 6, 3, 7>(x[2], x[3]);
    const Vector steps[4] = {shuffled<0, 1, 4, 5>(low01, low23), shuffled<2, 3, 6, 7>(low01, low23),
                             shuffled<0, 1, 4, 5>(high01, high23), shuffled<2, 3, 6, 7>(high01, high23)};
    for (int i = 0; i < 4; ++i) std::memcpy(panel + (p + i) * width, &steps[i], sizeof steps[i]);
  }
  for (; p < k; ++p)
    for (int i = 0; i < 4; ++i) panel[p * width + i] = lines[i][p];
}

// Packs contiguous lines that begin at at(line); at most kBlock steps of k.
template <class At, class A>
void pack_along_k(At at, int lines, int64_t k, A* panel, int width) {
  A buffers[4][kBlock];
  for (int line = 0; line < width; line += 4) {
    const A* sources[4];
    for (int i = 0; i < 4; ++i) {
      sources[i] = buffers[i];
      if (line + i < lines)
        sources[i] = widened(at(line + i), buffers[i], k);
      else
        std::fill_n(buffers[i], k, A(0));
    }
    interleave4(sources, k, panel + line, width);
  }
}

template <class T>
void copy_widened(const T* from, compute_t<T>* to, int64_t n) {
  if constexpr (std::is_same_v<T, compute_t<T>>)
    std::copy_n(from, n, to);
  else
    widen(from, to, n);
}

// Packs a whole narrow panel without a call for each step.
template <int kWidth, class At, class A>
void pack_narrow(At at, int64_t k, A* panel) {
  for (int64_t p = 0; p < k; ++p, panel += kWidth) {
    const auto* step = at(p);
    if constexpr (std::is_same_v<decltype(step), const A*>)
      std::memcpy(panel, step, kWidth * sizeof(A));
    else
      for (int i = 0; i < kWidth; ++i) panel[i] = to_compute(step[i]);
  }
}

// Packs contiguous steps of k that begin at at(step).
template <class At, class A>
void pack_across_k(At at, int lines, int64_t k, A* panel, int width) {
  if (lines == width && width == 4) return pack_narrow<4>(at, k, panel);
  if (lines == width && width == 8) return pack_narrow<8>(at, k, panel);
  if (lines == width && width == 12) return pack_narrow<12>(at, k, panel);
  for (int64_t p = 0; p < k; ++p, panel += width) {
    copy_widened(at(p), panel, lines);
    std::fill(panel + lines, panel + width, A(0));
  }
}

// Lines beyond `count` become zero: the micro-kernel reads them, but their results are not stored.
template <class T, class A>
void pack(const Lines<T>& from, int64_t count, int64_t k, A* panels, int width) {
  for (int64_t line = 0; line < count; line += width, panels += k * width) {
    const int lines = int(std::min<int64_t>(width, count - line));
    if (from.along_k)
      pack_along_k([&](int i) { return from.at(line + i, 0); }, lines, k, panels, width);
    else
      pack_across_k([&](int64_t p) { return from.at(line, p); }, lines, k, panels, width);
  }
}

// The biased exponent of the least magnitude that is not 0: 0 for a subnormal number, and 512 for zeros alone.
inline int least_exponent(const Lines<bf16>& lines, int64_t count, int64_t k) {
  uint16_t least = 0xffff;  // magnitudes minus 1, so that 0 becomes the largest number
  const int64_t rows = lines.along_k ? count : k, size = lines.along_k ? k : count;
  for (int64_t row = 0; row < rows; ++row) {
    const bf16* const x = lines.data + row * lines.stride;
    for (int64_t i = 0; i < size; ++i) least = std::min<uint16_t>(least, uint16_t((x[i].bits & 0x7fff) - 1));
  }
  return (least + 1) >> 7;
}

// True if the products and their sums are 0 or normal numbers: all products, and so all sums, are multiples of a normal
// number, which is 2^(ea - 7 + eb - 7) for the least exponents ea and eb.
inline bool can_pair(const Lines<bf16>& a, int64_t rows, const Lines<bf16>& b, int64_t cols, int64_t k) {
  constexpr int kBias = 127, kLeast = -126 + 14 + 2 * kBias;
  const int of_a = least_exponent(a, rows, k), of_b = least_exponent(b, cols, k);
  return std::min(of_a, of_b) > 0 && of_a + of_b >= kLeast;
}

// Two steps of k as an element of a panel.
inline float pair_of(bf16 first, bf16 second) { return std::bit_cast<float>(uint32_t(first.bits) << 16 | second.bits); }

// Packs pairs of contiguous steps of k. A step behind the last one is 0.
inline void pack_pairs_along_k(const Lines<bf16>& from, int lines, int64_t k, float* panel, int width) {
  float buffers[4][kBlock];
  const int64_t whole = k / 2, pairs = whole + k % 2;
  for (int line = 0; line < width; line += 4) {
    const float* sources[4];
    for (int i = 0; i < 4; ++i) {
      float* const buffer = buffers[i];
      sources[i] = buffer;
      if (line + i >= lines) {
        std::fill_n(buffer, pairs, 0.0f);
        continue;
      }
      const bf16* const steps = from.at(line + i, 0);
      for (int64_t p = 0; p < whole; ++p) {
        uint32_t pair;
        std::memcpy(&pair, steps + 2 * p, sizeof pair);
        buffer[p] = std::bit_cast<float>(pair << 16 | pair >> 16);
      }
      if (pairs > whole) buffer[whole] = pair_of(steps[k - 1], bf16());
    }
    interleave4(sources, pairs, panel + line, width);
  }
}

// Packs pairs of steps of k that are contiguous each.
template <class Count>
void pack_pairs_across_k(const Lines<bf16>& from, Count lines, int64_t k, float* panel, int width) {
  for (int64_t p = 0; p < k; p += 2, panel += width) {
    const bf16 *const step = from.at(0, p), *const next = from.at(0, p + 1);
    if (p + 1 < k)
      for (int i = 0; i < lines; ++i) panel[i] = pair_of(step[i], next[i]);
    else
      for (int i = 0; i < lines; ++i) panel[i] = pair_of(step[i], bf16());
    std::fill(panel + lines, panel + width, 0.0f);
  }
}

inline void pack_pairs(const Lines<bf16>& from, int64_t count, int64_t k, float* panels, int width) {
  for (int64_t line = 0; line < count; line += width, panels += (k + 1) / 2 * width) {
    const int lines = int(std::min<int64_t>(width, count - line));
    const Lines<bf16> of_panel = from.from(line, 0);
    if (from.along_k)
      pack_pairs_along_k(of_panel, lines, k, panels, width);
    else if (lines == 32)  // a constant number of lines is faster
      pack_pairs_across_k(of_panel, std::integral_constant<int, 32>(), k, panels, width);
    else if (lines == 12)
      pack_pairs_across_k(of_panel, std::integral_constant<int, 12>(), k, panels, width);
    else
      pack_pairs_across_k(of_panel, lines, k, panels, width);
  }
}

}  // namespace fusedops::cpu
