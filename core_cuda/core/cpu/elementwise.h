// The CPU engine of elementwise operators: one pass on the framework's threads, vectorized by the compiler.
#pragma once

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "core/common/elementwise.h"
#include "core/common/numeric.h"
#include "core/cpu/random_words.h"
#include "core/cpu/widest.h"
#include "core/declaration/operator.h"

namespace fusedops::cpu {

// 16-bit types pass through float buffers of this many elements, which stay in the L1 cache.
inline constexpr int64_t kBlock = 1024;

#ifdef FUSEDOPS_AVX512
// Widens the elements that fill whole vectors and returns their number.
[[FUSEDOPS_AVX512]] inline int64_t widen_vectors(const f16* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  return i;
}

[[FUSEDOPS_AVX512]] inline int64_t narrow_vectors(const float* from, f16* to, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
#endif

template <class T>
void widen(const T* from, float* to, int64_t n) {
  int64_t i = 0;
#ifdef FUSEDOPS_AVX512
  if constexpr (std::is_same_v<T, f16>)
    if (has_avx512()) i = widen_vectors(from, to, n);
#endif
#ifdef __F16C__
  if constexpr (std::is_same_v<T, f16>)
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
  for (; i < n; ++i) to[i] = to_compute(from[i]);
}

template <class T>
void narrow(const float* from, T* to, int64_t n) {
  int64_t i = 0;
#ifdef FUSEDOPS_AVX512
  if constexpr (std::is_same_v<T, f16>)
    if (has_avx512()) i = narrow_vectors(from, to, n);
#endif
#ifdef __F16C__
  if constexpr (std::is_same_v<T, f16>)
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; ++i) to[i] = from_compute<T>(from[i]);
}

// n <= kBlock elements in the compute type: the input itself, or a widened copy in `buffer`.
template <class T>
const compute_t<T>* widened(const T* from, compute_t<T>* buffer, int64_t n) {
  if constexpr (std::is_same_v<T, compute_t<T>>) {
    return from;
  } else {
    widen(from, buffer, n);
    return buffer;
  }
}

inline const uint32_t* widened(const uint32_t* words, float*, int64_t) { return words; }

// A bitwise selection of value or otherwise. It is vectorized whatever the sizes of the two types.
template <class T>
T kept_or(T value, T otherwise, uint8_t is_kept) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  const Bits all = static_cast<Bits>(-static_cast<Bits>(is_kept != 0));
  return std::bit_cast<T>(
      static_cast<Bits>((std::bit_cast<Bits>(value) & all) | (std::bit_cast<Bits>(otherwise) & ~all)));
}

// Non-temporal stores: lines are not read before they are overwritten. finish_streaming() publishes the data.
template <class T>
void stream(const T* from, T* to, int64_t n) {
#ifdef __AVX__
  constexpr int64_t kVector = sizeof(__m256i), kStep = kVector / sizeof(T);
  if (reinterpret_cast<uintptr_t>(to) % kVector == 0)
    for (; n >= kStep; n -= kStep, from += kStep, to += kStep)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
  std::copy_n(from, n, to);
}

inline void finish_streaming() {
#ifdef __AVX__
  _mm_sfence();
#endif
}

// True for results so large that they leave the caches before they are read again.
inline bool is_streamed(int64_t bytes) { return bytes >= (32 << 20); }

// out = function(in...) for n elements; n <= kBlock for 16-bit types.
template <class T, class Function, class... Inputs>
void apply_block(Function function, int64_t n, T* out, const Inputs*... in) {
  if constexpr (std::is_same_v<T, compute_t<T>>) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = function(in[i]...);
  } else {
    float result[kBlock];
    const auto compute = [&](const auto*... wide) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) result[i] = function(wide[i]...);
    };
    [&]<size_t... I>(std::index_sequence<I...>) {
      float buffers[sizeof...(in)][kBlock];
      compute(widened(in, buffers[I], n)...);
    }(std::index_sequence_for<Inputs...>());
    narrow(result, out, n);
  }
}

// Calls body(start, n, out) for the blocks of n <= kBlock elements of a result, which may be streamed.
template <class T, class Body>
void each_block(bool streamed, int64_t n, T* out, Body body) {
  T buffer[kBlock];
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t size = std::min(kBlock, n - start);
    body(start, size, streamed ? buffer : out + start);
    if (streamed) stream(buffer, out + start, size);
  }
  if (streamed) finish_streaming();
}

// apply_block() for any number of elements.
template <class T, class Function, class... Inputs>
void apply(Function function, bool streamed, int64_t n, T* out, const Inputs*... in) {
  if (std::is_same_v<T, compute_t<T>> && !streamed) return apply_block(function, n, out, in...);
  each_block(streamed, n, out,
             [&](int64_t start, int64_t size, T* to) { apply_block(function, size, to, in + start...); });
}

// apply() of a formula that draws random words, for elements from `position` on.
template <class T, class Formula, class... Inputs>
void apply_with_words(const Formula& formula, int64_t position, bool streamed, int64_t n, T* out, const Inputs*... in) {
  const auto function = formula.template prepared<T>();
  const Runs runs = formula.runs();
  each_block(streamed, n, out, [&](int64_t start, int64_t size, T* to) {
    const RandomWords<kBlock> words(function.seed, runs, position + start, size);
    apply_block(function, size, to, words.data(), in + start...);
  });
}

// result = formula(tensors...) for an operator, all of one dtype and size.
template <const Signature& kOp, class Formula>
Status elementwise(const Call& call, const Formula& formula) {
  const View& out = result_of<kOp>(call);
  return dispatch(out.dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    const auto function = formula.template prepared<T>();
    const auto tensors = tensors_of<kOp, T>(call);
    const int64_t n = out.numel(), blocks = (n + kBlock - 1) / kBlock;
    const bool streamed = is_streamed(n * sizeof(T));
    constexpr bool kDrawing = kDraws<decltype(function)>;
    constexpr int64_t kNanosecondsPerBlock = kDrawing ? 1250 : 250;
    call.context.parallel_for(blocks, kNanosecondsPerBlock, [&](int64_t begin, int64_t end) {
      const int64_t start = begin * kBlock, stop = std::min(end * kBlock, n);
      const auto compute = [&](const auto*... in) {
        T* to = static_cast<T*>(out.data) + start;
        if constexpr (kDrawing)
          apply_with_words(formula, start, streamed, stop - start, to, in + start...);
        else
          apply(function, streamed, stop - start, to, in + start...);
      };
      std::apply(compute, tensors);
    });
    return {};
  });
}

}  // namespace fusedops::cpu
