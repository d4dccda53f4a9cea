#include "ops/products/aligned_copies.h"

#include <algorithm>

#include "ops/products/matmul_gemv.h"

namespace fusedops {
namespace {

constexpr int64_t kPack = 8;   // 16-bit elements in 16 bytes
constexpr int64_t kLine = 64;  // 16-bit elements in an L2 cache line

// Measured on an H200. The product of misaligned lines is bound by operations, by its sequential k-tiles or by bytes.
constexpr double kFlopsPerNs = 155e3, kKTileNs = 1000, kBytesPerNs = 360;
constexpr int64_t kKTileDepth = 32;
// The product of aligned lines, the product of the lines that TMA cannot read, and a copy.
constexpr double kAlignedFlopsPerNs = 600e3, kAlignedBytesPerNs = 3600, kRemainderNs = 8000;
constexpr double kLaunchNs = 3000, kCopyBytesPerNs = 1750;

// The memory of a copy. A larger copy is made in chunks of at least kMinLines lines, one after the other in the same
// memory. A matrix of a batch is not divided.
constexpr int64_t kMaxBytes = 128 << 20, kMinLines = 64;

bool has_misaligned_lines(const Matmul::Matrix& matrix, int64_t batch) {
  return matrix.stride % kPack || (batch > 1 && matrix.batch_stride % kPack);
}

// True if TMA cannot read the last adjacent elements: see tma_rows in matmul_dispatch.h.
bool has_tma_remainder(bool lie_side_by_side, int64_t elements, int64_t batch) {
  return batch == 1 && lie_side_by_side && elements % kPack;
}

}  // namespace

AlignedCopies::AlignedCopies(const Matmul& product)
    : matrices(product.batch),
      rows(product.m),
      columns(product.n),
      a_is_shared(product.batch > 1 && product.a.batch_stride == 0),
      b_is_shared(product.batch > 1 && product.b.batch_stride == 0),
      stride((product.k + kLine - 1) / kLine * kLine) {
  const double operations = 2.0 * double(product.batch) * double(product.m) * double(product.n) * double(product.k);
  if (size_of(product.dtype) != 2 || !product.can_copy || operations == 0 || Gemv(product).rows) return;
  const bool is_misaligned_a = has_misaligned_lines(product.a, product.batch);
  const bool is_misaligned_b = has_misaligned_lines(product.b, product.batch);
  is_misaligned = is_misaligned_a || is_misaligned_b;

  const double bytes_of_one = double(product.k) * 2;
  const double bytes_a = double((a_is_shared ? 1 : product.batch) * product.m) * bytes_of_one;
  const double bytes_b = double((b_is_shared ? 1 : product.batch) * product.n) * bytes_of_one;
  // Compares with the product of the remainder that TMA cannot read, which reads all of the other matrix.
  const auto copy_takes_less = [&](double bytes, double bytes_of_other) {
    return (is_misaligned ? 0 : kLaunchNs) + bytes / kCopyBytesPerNs < kRemainderNs + bytes_of_other / kBytesPerNs;
  };
  of_a = is_misaligned_a ||
         (has_tma_remainder(product.a.transposed, product.m, product.batch) && copy_takes_less(bytes_a, bytes_b));
  of_b = is_misaligned_b ||
         (has_tma_remainder(!product.b.transposed, product.n, product.batch) && copy_takes_less(bytes_b, bytes_a));

  const int64_t most_lines = kMaxBytes / int64_t(bytes_of_line());
  if (product.batch > 1) {
    if (of_a && !a_is_shared) matrices = std::min(matrices, most_lines / product.m);
    if (of_b && !b_is_shared) matrices = std::min(matrices, most_lines / product.n);
  } else {
    const int64_t lines = most_lines / kMinLines * kMinLines;
    if (of_a) rows = std::min(rows, lines);
    if (of_b) columns = std::min(columns, lines);
  }
  const bool has_room =
      matrices > 0 && rows > 0 && columns > 0 && bytes_of_a() <= size_t(kMaxBytes) && bytes_of_b() <= size_t(kMaxBytes);

  const double k_tiles = double(product.k) / double(std::max(product.splits, int64_t(1)) * kKTileDepth);
  const double as_it_is = std::max({operations / kFlopsPerNs, k_tiles * kKTileNs, (bytes_a + bytes_b) / kBytesPerNs});
  // a is copied again for each chunk of b.
  const double times = rows < product.m ? double((product.n + columns - 1) / std::max(columns, int64_t(1))) : 1;
  const double copied = (of_a ? times * bytes_a : 0) + (of_b ? bytes_b : 0);
  const double of_copies =
      kLaunchNs + copied / kCopyBytesPerNs + operations / kAlignedFlopsPerNs + (bytes_a + bytes_b) / kAlignedBytesPerNs;
  if (!has_room || (is_misaligned && as_it_is < of_copies)) of_a = of_b = false;
}

}  // namespace fusedops
