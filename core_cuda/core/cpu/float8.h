// Rounding to 8 bits on the CPU: core/common/float8.h.
#pragma once

#include <algorithm>
#include <atomic>

#include "core/common/float8.h"
#include "core/cpu/row_blocks.h"

namespace fusedops::cpu {

static_assert(kBlock % kScaleBlock == 0);

// The largest absolute value, compared as bits, which compilers vectorize. NaN is ignored.
template <class A>
A largest_of(const A* values, int64_t n) {
  using Bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
  constexpr Bits kInfinity = std::bit_cast<Bits>(std::numeric_limits<A>::infinity());
  Bits largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Bits magnitude = std::bit_cast<Bits>(values[i]) & (Bits(-1) >> 1);
    largest = std::max(largest, magnitude > kInfinity ? Bits(0) : magnitude);
  }
  return std::bit_cast<A>(largest);
}

template <class A>
void raise_to(A* largest, A value) {
  std::atomic_ref<A> shared(*largest);
  A known = shared.load(std::memory_order_relaxed);
  while (value > known && !shared.compare_exchange_weak(known, value, std::memory_order_relaxed)) {
  }
}

template <class Format, class A>
void narrow_to(const A* values, A scale, int64_t n, uint8_t* to) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = float8_from<Format>(to_odd(odd_quotient(values[i], scale)));
}

// Rounds a row. values(start, n, to) computes n <= kBlock of its values from `start` on, and is called again if the
// scale is computed from all of them.
template <class A, class Values>
void quantize_row(const Float8Result<A>& out, int64_t row, Values values) {
  A buffer[kBlock];
  const auto each_block = [&](auto body) {
    for (int64_t start = 0; start < out.columns; start += kBlock) {
      const int64_t n = std::min(kBlock, out.columns - start);
      values(start, n, buffer);
      body(start, n);
    }
  };
  const auto round = [&](int64_t start, int64_t n, A scale) {
    const A* from = buffer + start % kBlock;
    uint8_t* to = out.y + row * out.columns + start;
    out.is_e5m2 ? narrow_to<E5m2>(from, scale, n, to) : narrow_to<E4m3>(from, scale, n, to);
  };
  if (out.scaling == Scaling::block) {
    each_block([&](int64_t start, int64_t n) {
      for (int64_t at = start; at < start + n; at += kScaleBlock) {
        const int64_t size = std::min<int64_t>(kScaleBlock, start + n - at), place = out.scale_place(row, at);
        const A scale = out.given ? out.given[place] : out.scale_of(largest_of(buffer + at % kBlock, size));
        if (!out.given) out.scales[place] = scale;
        round(at, size, scale);
      }
    });
    return;
  }
  A scale = 1;
  if (out.given) {
    scale = out.given[out.scale_place(row, 0)];
  } else if (out.scaling == Scaling::row || out.finds_largest) {
    A largest = 0;
    each_block([&](int64_t, int64_t n) { largest = std::max(largest, largest_of(buffer, n)); });
    if (out.finds_largest) return raise_to(out.largest, largest);
    scale = out.scales[row] = out.scale_of(largest);
  } else {
    scale = *out.scales;
  }
  each_block([&](int64_t start, int64_t n) { round(start, n, scale); });
}

// Runs one pass, or two if the scale is computed from the whole tensor. run(result, is_last) quantizes all rows.
template <class A, class Run>
void quantize(const Float8Result<A>& result, Run run) {
  if (result.has_tensor_scale()) {
    Float8Result<A> first = result;
    first.finds_largest = true;
    *result.largest = 0;
    run(first, false);
    *result.scales = result.scale_of(*result.largest);
  }
  run(result, true);
}

// Quantizes all rows of an operator with independent values(row, start, n, to). A function pointer avoids an
// instantiation for each activation. `cost` is the approximate time of kBlock elements in nanoseconds.
template <class A>
using ValuesOfRow = void (*)(const void* values, int64_t row, int64_t start, int64_t n, A* to);

template <class A>
void quantize_rows(const Context& context, const Float8Result<A>& result, int64_t rows, int64_t cost,
                   ValuesOfRow<A> compute, const void* values) {
  const int64_t cost_ns = 1 + 2 * cost * result.columns / kBlock;
  quantize(result, [&](const Float8Result<A>& pass, bool) {
    context.parallel_for(rows, cost_ns, [&](int64_t begin, int64_t end) {
      run_widest([&] {
        for (int64_t row = begin; row < end; ++row)
          quantize_row(pass, row, [&](int64_t start, int64_t n, A* to) { compute(values, row, start, n, to); });
      });
    });
  });
}

template <class A, class Values>
void quantize_rows(const Context& context, const Float8Result<A>& result, int64_t rows, int64_t cost,
                   const Values& values) {
  const ValuesOfRow<A> compute = [](const void* values, int64_t row, int64_t start, int64_t n, A* to) {
    (*static_cast<const Values*>(values))(row, start, n, to);
  };
  quantize_rows<A>(context, result, rows, cost, compute, &values);
}

}  // namespace fusedops::cpu
