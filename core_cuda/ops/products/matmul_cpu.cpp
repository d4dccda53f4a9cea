// matmul on the CPU: a blocked product of packed panels, the scheme of K. Goto and R. van de Geijn, "Anatomy of
// high-performance matrix multiplication", ACM TOMS 34(3), 2008, with the names of BLIS (F. Van Zee and R. van de
// Geijn, "BLIS: a framework for rapidly instantiating BLAS functionality", ACM TOMS 41(3), 2015).
//
// Reads a [m, k] and b [k, n] once per tile of c that needs them, computes m * n * k multiply-adds and writes c. They
// limit the speed of a product of large matrices; reading memory limits one with a short side.
//
//   tiles of c [mc, nc]          the items of parallel_for; neighbours one below the other share the packed b
//     blocks of kc of the sum    b [kc, nc] is packed, for the second-level cache
//       tiles again              a [mc, kc] is packed, for the second-level cache
//         panels of nr columns   b [kc, nr] stays in the first-level cache
//           panels of mr rows    the micro-kernel: c [mr, nr] stays in registers over kc steps
//
// The order of a sum depends on k alone: kc products in sequence, then the blocks in sequence. The error is then
// bounded by about kc + k / kc roundings instead of k. A product with a vector (m = 1 or n = 1) has another order,
// which depends on the shape alone too.
#include "ops/products/matmul_cpu.h"

#include "core/common/activations.h"
#include "core/common/ceil_div.h"
#include "core/cpu/scratch.h"
#include "core/cpu/sum.h"
#include "core/cpu/widest.h"
#include "ops/products/matmul.h"

namespace fusedops {
namespace {

using cpu::Lines;
using cpu::MicroKernel;

// In float32 a packed block of a takes 120 KiB and one of b 512 KiB, of the 1 to 2 MiB of a second-level cache.
constexpr int64_t kMc = 120, kNc = 512, kKc = 256;
constexpr int64_t kManyTiles = 32;   // with fewer, tiles are made narrower, down to kMinNc: threads would idle
constexpr int64_t kMinNc = 128;      // below, packing a costs more than a tenth of the multiply-adds
constexpr int64_t kTilesAtOnce = 4;  // tiles that share a packed b, and the buffer for sums of 16-bit types

constexpr int64_t kLinesAtOnce = 64, kVectorKc = 1024;  // for a product with a vector
static_assert(kKc <= cpu::kBlock && kVectorKc <= cpu::kBlock && kLinesAtOnce <= cpu::kBlock);

// Splits evenly into whole panels: 130 rows become 72 + 58 rather than 120 + 10.
int64_t balanced(int64_t size, int64_t most, int64_t panel) {
  const int64_t panels = ceil_div(size, panel);
  return ceil_div(panels, ceil_div(panels, most / panel)) * panel;
}

// ---- Epilogue ----

template <class A>
void activate(int activation, A* x, int64_t n) {
  activations::dispatch(activation, [&](auto chosen) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) x[i] = decltype(chosen)::at(x[i]).value;
  });
}

template <class T, class A>
void write(const A* from, T* to, int64_t n) {
  if constexpr (std::is_same_v<T, A>)
    std::copy_n(from, n, to);
  else
    cpu::narrow(from, to, n);
}

// Rounds and writes n adjacent sums from element `at` of c on. Sums of c's type may alias c.
template <class T, class A = compute_t<T>>
void finish(const Matmul& call, int64_t at, int64_t n, A* sums) {
  const Epilogue& epilogue = call.epilogue;
  if (const T* bias = static_cast<const T*>(epilogue.bias))
    for (int64_t i = 0, column = at % call.c_stride; i < n; ++i) {
      sums[i] += to_compute(bias[column]);
      if (++column == call.n) column = 0;
    }
  if (epilogue.z) write(sums, static_cast<T*>(epilogue.z) + at, n);
  if (epilogue.activation) activate(epilogue.activation, sums, n);
  T* const c = static_cast<T*>(call.c) + at;
  if (static_cast<void*>(c) != sums) write(sums, c, n);
}

// Writes c for k = 0.
template <class T, class A = compute_t<T>>
void finish_zeros(const Matmul& call) {
  const int64_t elements = call.m * call.n;
  for (int64_t at = 0; at < elements; at += cpu::kBlock) {
    A sums[cpu::kBlock] = {};
    finish<T>(call, at, std::min(cpu::kBlock, elements - at), sums);
  }
}

// Adds n adjacent sums to the halves from element `at` of c on, or rounds them (Matmul::to_halves).
inline void finish_halves(const Matmul& call, int64_t at, int64_t n, float* sums) {
  auto *const upper = static_cast<uint16_t*>(call.c) + at, *const lower = static_cast<uint16_t*>(call.low) + at;
  if (call.adds)
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) sums[i] += Halves{upper[i], lower[i]}.sum();
  if (call.rounds) return write(sums, static_cast<bf16*>(call.c) + at, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const auto halves = Halves::of(sums[i]);
    upper[i] = halves.upper, lower[i] = halves.lower;
  }
}

template <class T>
Lines<T> lines(const Matmul::Matrix& matrix, bool along_k, int64_t batch) {
  return {static_cast<const T*>(matrix.data) + batch * matrix.batch_stride, along_k, matrix.stride};
}

template <class T>
Lines<T> rows_of_a(const Matmul& call, int64_t batch) {
  return lines<T>(call.a, !call.a.transposed, batch);
}

template <class T>
Lines<T> cols_of_b(const Matmul& call, int64_t batch) {
  return lines<T>(call.b, call.b.transposed, batch);
}

// ---- Matrix by matrix ----

template <class T>
class Product {
 public:
  using A = compute_t<T>;

  explicit Product(const Matmul& call)
      : call_(call),
        kernel_(cpu::micro_kernel<A>(call.n)),
        of_pairs_(cpu::micro_kernel_of_pairs<T>(call.n)),
        mc_(balanced(call.m, kMc, kernel_.mr)),
        nc_(kNc),
        kc_(std::min(call.k, kKc)),
        row_tiles_(ceil_div(call.m, mc_)) {
    while (nc_ > kMinNc && call.batch * row_tiles_ * ceil_div(call.n, nc_) < kManyTiles) nc_ /= 2;
    nc_ = balanced(call.n, nc_, kernel_.nr);
    col_tiles_ = ceil_div(call.n, nc_);
  }

  int64_t items() const { return call_.batch * row_tiles_ * col_tiles_; }

  int64_t nanoseconds_per_item() const {
    constexpr int64_t kMultiplyAdds = 256 / sizeof(A), kElements = 4;  // per nanosecond
    return 30 + mc_ * nc_ * call_.k / kMultiplyAdds + (mc_ * nc_ + (mc_ + nc_) * call_.k) / kElements;
  }

  // Tiles are numbered down the columns of c, so that the tiles of an item share the packed b.
  void compute(int64_t begin, int64_t end) const {
    const cpu::Scratch<A> memory = allocate();
    while (begin < end) {
      const int64_t row_tile = begin % row_tiles_, col_tile = begin / row_tiles_ % col_tiles_;
      const int64_t batch = begin / row_tiles_ / col_tiles_;
      const int64_t count = std::min({tiles_at_once(), row_tiles_ - row_tile, end - begin});
      const int64_t row = row_tile * mc_, col = col_tile * nc_;
      multiply_tiles(rows_of_a<T>(call_, batch).from(row, 0), std::min(count * mc_, call_.m - row),
                     cols_of_b<T>(call_, batch).from(col, 0), std::min(nc_, call_.n - col),
                     (batch * call_.m + row) * call_.c_stride + col, memory.get());
      begin += count;
    }
  }

 private:
  // True if sums need a buffer until they are complete: c is rounded, or each block would be rounded on its addition to
  // c.
  bool has_sum_buffer() const {
    return (!std::is_same_v<T, A> && !call_.has_compute_dtype_c) || (call_.adds && call_.k > kc_);
  }

  int64_t tiles_at_once() const { return has_sum_buffer() ? std::min(kTilesAtOnce, row_tiles_) : row_tiles_; }

  cpu::Scratch<A> allocate() const {
    const int64_t sums = has_sum_buffer() ? tiles_at_once() * mc_ * nc_ : 0;
    return cpu::scratch<A>(mc_ * kc_ + kc_ * nc_ + sums);
  }

  // `at`: the first element of c.
  void multiply_tiles(const Lines<T>& a, int64_t rows, const Lines<T>& b, int64_t cols, int64_t at, A* memory) const {
    A *packed_a = memory, *packed_b = packed_a + mc_ * kc_, *buffer = packed_b + kc_ * nc_;
    A* const sums = has_sum_buffer() ? buffer : static_cast<A*>(call_.c) + at;
    const int64_t stride = has_sum_buffer() ? nc_ : call_.c_stride;
    sum_blocks(a, rows, b, cols, sums, stride, packed_a, packed_b);
    if (!has_sum_buffer() && call_.epilogue.is_empty()) return;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = at + i * call_.c_stride;
      if constexpr (std::is_same_v<T, bf16>)
        if (call_.low) {
          finish_halves(call_, row, cols, sums + i * stride);
          continue;
        }
      if (call_.adds)
        add(sums + i * stride, static_cast<A*>(call_.c) + row, cols);
      else
        finish<T>(call_, row, cols, sums + i * stride);
    }
  }

  static void add(const A* from, A* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  }

  static void pack(const MicroKernel<A>& kernel, const Lines<T>& lines, int64_t count, int64_t k, A* to, int width) {
    if constexpr (std::is_same_v<T, bf16>)
      if (kernel.steps == 2) return cpu::pack_pairs(lines, count, k, to, width);
    cpu::pack(lines, count, k, to, width);
  }

  // The kernel for a block of the sum. The choice changes no bit.
  const MicroKernel<A>& kernel_for(const Lines<T>& a, int64_t rows, const Lines<T>& b, int64_t cols, int64_t k) const {
    if constexpr (std::is_same_v<T, bf16>)
      if (of_pairs_.multiply && cpu::can_pair(a, rows, b, cols, k)) return of_pairs_;
    return kernel_;
  }

  void sum_blocks(const Lines<T>& a, int64_t rows, const Lines<T>& b, int64_t cols, A* sums, int64_t stride,
                  A* packed_a, A* packed_b) const {
    for (int64_t p = 0; p < call_.k; p += kc_) {
      const int64_t k = std::min(kc_, call_.k - p);
      const MicroKernel<A>& kernel = kernel_for(a.from(0, p), rows, b.from(0, p), cols, k);
      pack(kernel, b.from(0, p), cols, k, packed_b, kernel.nr);
      for (int64_t i = 0; i < rows; i += mc_) {
        const int64_t block_rows = std::min(mc_, rows - i);
        pack(kernel, a.from(i, p), block_rows, k, packed_a, kernel.mr);
        cpu::multiply_panels(kernel, block_rows, cols, ceil_div(k, kernel.steps), packed_a, packed_b, sums + i * stride,
                             stride, p > 0 || (call_.adds && !has_sum_buffer()));
      }
    }
  }

  Matmul call_;
  MicroKernel<A> kernel_, of_pairs_;  // of the same mr and nr
  int64_t mc_, nc_, kc_;
  int64_t row_tiles_, col_tiles_;
};

// ---- Matrix by vector: no packing, since each element is used once ----

template <class T>
class VectorProduct {
 public:
  using A = compute_t<T>;

  explicit VectorProduct(const Matmul& call)
      : call_(call),
        one_column_(call.n == 1),
        count_(one_column_ ? call.m : call.n),
        groups_(ceil_div(count_, kLinesAtOnce)) {}

  int64_t items() const { return call_.batch * groups_; }

  int64_t nanoseconds_per_item() const { return 30 + std::min(count_, kLinesAtOnce) * call_.k / 8; }

  void compute(int64_t begin, int64_t end) const {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t batch = item / groups_, first = item % groups_ * kLinesAtOnce;
      const Lines<T> rows = rows_of_a<T>(call_, batch), cols = cols_of_b<T>(call_, batch);
      multiply(one_column_ ? rows.from(first, 0) : cols.from(first, 0), one_column_ ? cols : rows,
               std::min(kLinesAtOnce, count_ - first), batch * count_ + first);
    }
  }

 private:
  void multiply(const Lines<T>& matrix, const Lines<T>& vector, int64_t count, int64_t at) const {
    A sums[kLinesAtOnce] = {}, x[kVectorKc];
    cpu::run_widest([&] {
      for (int64_t p = 0; p < call_.k; p += kVectorKc) {
        const int64_t k = std::min(kVectorKc, call_.k - p);
        for (int64_t i = 0; i < k; ++i) x[i] = to_compute(*vector.at(0, p + i));
        if (matrix.along_k)
          add_dots(matrix.from(0, p), x, count, k, sums);
        else
          add_steps(matrix.from(0, p), x, count, k, sums);
      }
    });
    finish<T>(call_, at, count, sums);
  }

  static void add_dots(const Lines<T>& matrix, const A* x, int64_t count, int64_t k, A* sums) {
    A buffer[kVectorKc];
    for (int64_t line = 0; line < count; ++line) {
      const A* elements = cpu::widened(matrix.at(line, 0), buffer, k);
      sums[line] += cpu::interleaved_sum<A>(k, [=](int64_t i) { return elements[i] * x[i]; });
    }
  }

  // Adds in the order of interleaved_sum, so that both layouts of a matrix give the same bits.
  static void add_steps(const Lines<T>& matrix, const A* x, int64_t count, int64_t k, A* sums) {
    A accumulators[cpu::kAccumulators][kLinesAtOnce] = {}, buffer[kLinesAtOnce];
    for (int64_t p = 0; p < k; ++p) {
      const A* elements = cpu::widened(matrix.at(0, p), buffer, count);
      A* accumulator = accumulators[p % cpu::kAccumulators];
      for (int64_t i = 0; i < count; ++i) accumulator[i] += elements[i] * x[p];
    }
    for (int width = cpu::kAccumulators / 2; width > 0; width /= 2)
      for (int j = 0; j < width; ++j)
        for (int64_t i = 0; i < count; ++i) accumulators[j][i] += accumulators[j + width][i];
    for (int64_t i = 0; i < count; ++i) sums[i] += accumulators[0][i];
  }

  Matmul call_;
  bool one_column_;
  int64_t count_, groups_;
};

template <class AnyProduct>
void run(const AnyProduct& product, const Context& context) {
  context.parallel_for(product.items(), product.nanoseconds_per_item(),
                       [&](int64_t begin, int64_t end) { product.compute(begin, end); });
}

}  // namespace

Status multiply_cpu(const Matmul& product, const Context& context) {
  const int64_t elements = product.batch * product.m * product.n;
  if (elements == 0) return {};
  if (product.k == 0 && product.epilogue.is_empty()) {
    if (product.adds) return {};
    const int64_t size = size_of(product.c_dtype());
    for (int64_t row = 0; row < product.batch * product.m; ++row)
      std::memset(static_cast<char*>(product.c) + row * product.c_stride * size, 0, product.n * size);
    return {};
  }
  return dispatch(product.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool is_vector = product.m == 1 || (product.n == 1 && product.c_stride == 1);
    if (product.k == 0)
      finish_zeros<T>(product);
    else if (is_vector && !product.has_compute_dtype_c && !product.low)
      run(VectorProduct<T>(product), context);
    else
      run(Product<T>(product), context);
    return Status();
  });
}

}  // namespace fusedops
