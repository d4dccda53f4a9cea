// Building blocks of products on the CPU: the micro-kernel, which multiplies panels, and packing, which makes them.
// Used by matmul_cpu.cpp and attention_cpu.cpp.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/common/numeric.h"
#include "core/cpu/elementwise.h"

namespace fusedops::cpu {

// ---- Micro-kernel: c [mr, nr] (+)= a [k, mr]^T @ b [k, nr], both packed ----

// The mr * kVectors sums, a row of b and an element of a must fit into registers. Each step then loads mr + nr elements
// for mr * nr multiply-adds, and the multiply-adds are the only limit.
template <class A, int kVectorBytes, int mr, int kVectors>
[[gnu::always_inline]] inline void multiply(int64_t k, const A* a, const A* b, A* c, int64_t c_stride, bool add) {
  typedef A Vector __attribute__((vector_size(kVectorBytes)));
  constexpr int kWidth = kVectorBytes / sizeof(A), nr = kVectors * kWidth;
  static_assert(mr % 4 == 0 && nr % 4 == 0, "packing interleaves four lines at a time");
  Vector sums[mr][kVectors] = {};
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

}  // namespace fusedops::cpu
