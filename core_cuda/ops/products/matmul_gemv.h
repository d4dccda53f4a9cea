// GEMV: a product of at most four rows or columns, which is bound by reading the other matrix once (matmul_gemv.cu).
#pragma once

#include <algorithm>

#include "core/common/ceil_div.h"
#include "ops/products/matmul.h"

namespace fusedops {

// The product as c [rows, columns] = x [rows, k] @ matrix [k, columns]; one of few columns is turned. All of it
// follows from shape and strides alone, as the size of the workspace must.
struct Gemv {
  static constexpr int kMaxRows = 4;
  static constexpr int kLines = 4;   // columns of a block, for lines along k
  static constexpr int kLanes = 16;  // adjacent packs of a block, for lines along n

  explicit Gemv(const Matmul& product) {
    constexpr int64_t kMinDepth = 256;  // for less, tiles have fewer idle threads
    if (!product.can_copy || product.batch != 1 || product.k < kMinDepth || product.c_stride != product.n) return;
    if (std::min(product.m, product.n) > kMaxRows || std::min(product.m, product.n) == 0) return;
    is_turned = product.n < product.m;
    rows = std::min(product.m, product.n);
    columns = std::max(product.m, product.n);
    x = is_turned ? product.b.turned() : product.a;
    matrix = is_turned ? product.a.turned() : product.b;

    // Splits fill a large GPU with 5 blocks of 128 threads, or 2 of 256 threads, per multiprocessor. One more fits, so
    // that GPCs whose size is no multiple of the cluster take all clusters in one wave. A thread has at least one pack
    // of a line, or eight lines.
    constexpr int64_t kMultiprocessors = 132, kMaxSplits = 64, kUnit = 64;
    const int64_t pack = 16 / size_of(product.dtype);
    const int64_t tiles = ceil_div(columns, has_lines_along_k() ? int64_t(kLines) : kLanes * pack);
    const int64_t blocks = kMultiprocessors * (has_lines_along_k() ? 5 : 2);
    const int64_t least = has_lines_along_k() ? 128 * pack : 128;
    const int64_t most = std::min({blocks / tiles, product.k / least, kMaxSplits});
    while (2 * splits <= most) splits *= 2;
    depth = ceil_div(ceil_div(product.k, splits), kUnit) * kUnit;
    bytes = splits == 1 ? 0 : size_t(splits * rows * columns) * size_of(compute_dtype(product.dtype));
  }

  bool has_lines_along_k() const { return matrix.transposed; }

  bool is_turned = false;
  int64_t rows = 0, columns = 0;  // no rows: the kernel cannot take the product
  Matmul::Matrix x = {}, matrix = {};
  int64_t splits = 1, depth = 0;  // of k
  size_t bytes = 0;               // of the sums of the splits
};

}  // namespace fusedops
