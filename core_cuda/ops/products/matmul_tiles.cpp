#include "ops/products/matmul_tiles.h"

#include <algorithm>
#include <limits>

#include "core/common/ceil_div.h"
#include "ops/products/matmul_dispatch.h"

namespace fusedops::cuda {
namespace {

// Analytical time model, fitted to an H200: over 129 products the selected kernel is on average 0.5 % slower than the
// fastest one.

constexpr int64_t kMaxGemvRows = 64;  // such products are bound by reading b

// Launch and prologue cost, per wave or per launch.
constexpr double kPersistentWaveNs = 2700;  // also of a single wave
constexpr double kNonPersistentWaveNs = 3300;
constexpr double kSplitStartNs = 4000, kLargeStartNs = 4000;
constexpr double kBytesPerNs = 3600;  // DRAM read bandwidth

// Alignment of the lines of a and b to the L2 cache (128-byte lines, 32-byte sectors). A copy of 128 bytes touches one
// cache line, two of them, or two of them and a fifth sector.
enum class Lines { aligned, sector, crossing };
Lines l2_alignment(const Matmul& product) {
  const auto divide = [&](int64_t bytes) {
    return product.a.stride * 2 % bytes == 0 && product.b.stride * 2 % bytes == 0;
  };
  return divide(128) ? Lines::aligned : divide(32) ? Lines::sector : Lines::crossing;
}

// Time of one k-tile of a block in matmul_swap_ab_sm90.cuh: the maximum of tensor-core time and L2 time for the lines
// that all blocks load. Clocks drop when a grid has several waves.
constexpr double kMultiWaveFactor = 1.15, kLargeMultiWaveFactor = 1.1;
double k_tile_ns(int64_t area, double loaded_lines, Lines lines, bool is_multi_wave) {
  const double line_ns = lines == Lines::aligned ? 1.05 : lines == Lines::sector ? 1.4 : 2.75;
  return std::max((60 + double(area) / 54.6) * (is_multi_wave ? kMultiWaveFactor : 1), loaded_lines * line_ns);
}

// Relative time of a k-tile in the other kernels, measured with 3000 to 5000 rows.
double alignment_factor(const Matmul& product) { return l2_alignment(product) == Lines::crossing ? 1.15 : 1; }

double read_ns(const Matmul& product) { return double(product.m + product.n) * double(product.k) * 2 / kBytesPerNs; }

// Split-K factor for up to kMaxGemvRows rows: about one block per multiprocessor of a large GPU, at least four k-tiles
// each. It depends on n and k only, so a row's bits do not depend on the number of rows.
int gemv_splits(int64_t n, int64_t k) {
  constexpr int64_t kMaxGemvSplits = 4, kMinDepth = 4 * kTileDepth, kColumns = 64;
  const int64_t tiles = ceil_div(n, kColumns);
  int k_splits = 1;
  while (k_splits < kMaxGemvSplits && tiles * k_splits * 2 <= kMultiprocessors && k >= k_splits * 2 * kMinDepth)
    k_splits *= 2;
  return k_splits;
}

// Blocks that run at the same time in clusters of k_splits, each of which must fit into one GPC.
int64_t max_concurrent_blocks(int k_splits) { return k_splits <= 2 ? kMultiprocessors : 96; }

}  // namespace

bool is_skinny(const Matmul& product) { return product.m <= kMaxGemvRows && !product.a.transposed; }

bool SwapAbChoice::is_persistent(const Matmul& product) const {
  const Epilogue& epilogue = product.epilogue;
  return columns > 64 && k_splits == 1 && epilogue.activation == 0 && !epilogue.z && product.c_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(product.c) % 16 == 0;
}

double SwapAbChoice::time_ns(const Matmul& product) const {
  const int64_t row_tiles = ceil_div(product.m, rows);
  const int64_t blocks = row_tiles * ceil_div(product.n, columns) * k_splits;
  const int64_t k_tiles = ceil_div(ceil_div(product.k, kTileDepth), k_splits);
  const auto copied = [&](int64_t lines, Sharing shared) { return double(lines) / (sharing == shared ? 2 : 1); };
  const double lines = copied(columns, Sharing::columns) + copied(ceil_div(product.m, row_tiles), Sharing::rows);
  const double waves = k_splits > 1 ? 1 : double(ceil_div(blocks, kMultiprocessors));
  const double multiply_ns = double(k_tiles) * k_tile_ns(rows * columns, lines, l2_alignment(product), waves > 1);
  if (k_splits > 1) {
    const double add_ns = double(rows * columns) * 0.15;
    return kSplitStartNs + std::max(multiply_ns + add_ns, read_ns(product));
  }
  const double wave_ns = is_persistent(product) || waves == 1 ? kPersistentWaveNs : kNonPersistentWaveNs;
  return waves * wave_ns + std::max(waves * multiply_ns, read_ns(product));
}

SwapAbChoice SwapAbChoice::of(const Matmul& product) {
  if (is_skinny(product)) {
    int rows = 8;
    while (rows < product.m) rows *= 2;
    return {rows, 64, gemv_splits(product.n, product.k)};
  }
  SwapAbChoice best;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const SwapAbChoice& choice) {
    const double time = choice.time_ns(product);
    if (time < least) best = choice, least = time;
  };
  const auto consider_all = [&](int rows, int columns) {
    const int64_t row_tiles = ceil_div(product.m, rows), column_tiles = ceil_div(product.n, columns);
    constexpr int64_t kMinDepth = 4 * kTileDepth;
    consider({rows, columns});
    for (int k_splits = 2; k_splits <= kMaxKSplits && columns <= kMaxSplitColumns; k_splits *= 2)
      if (row_tiles * column_tiles * k_splits <= max_concurrent_blocks(k_splits) && product.k >= k_splits * kMinDepth)
        consider({rows, columns, k_splits});
    // Clusters of two only: larger clusters do not fit into every GPC. With aligned lines multicast gains nothing,
    // since L2 serves both blocks equally fast, and the cluster barrier costs 1 %.
    if (l2_alignment(product) == Lines::aligned) return;
    if (row_tiles % 2 == 0 && product.n >= columns) consider({rows, columns, 1, Sharing::columns});
    if (column_tiles % 2 == 0 && (row_tiles > 1 || product.m % 8 == 0)) consider({rows, columns, 1, Sharing::rows});
  };
  for (const int rows : {128, 192})
    for (const int columns : {64, 128}) consider_all(rows, columns);
  consider_all(192, 192);
  if (product.a.transposed) return best;
  consider_all(160, 64);
  for (const int rows : {64, 160, 176, 224, 256}) consider_all(rows, 128);
  for (const int rows : {128, 160}) consider_all(rows, 192), consider_all(rows, 256);
  return best;
}

ProductKernel fastest_sm90(const Matmul& product, const SwapAbChoice& few, bool can_use_large_tiles) {
  if (is_skinny(product)) return ProductKernel::sm90_swap_ab;
  const double k_tiles = double(ceil_div(product.k, kTileDepth)) * alignment_factor(product);
  // The time of a persistent kernel with clusters of two tiles.
  const auto persistent_ns = [&](int64_t rows, int64_t columns, double k_tile_ns, double multi_wave_factor) {
    const int64_t tiles = ceil_div(product.m, 2 * rows) * 2 * ceil_div(product.n, columns);
    const double waves = double(ceil_div(tiles, kMultiprocessors));
    const double multiply_ns = waves * k_tiles * k_tile_ns * (waves > 1 ? multi_wave_factor : 1);
    return kLargeStartNs + std::max(multiply_ns, read_ns(product));
  };
  constexpr double kNever = std::numeric_limits<double>::infinity();
  ProductKernel best = ProductKernel::sm90_swap_ab;
  double least = kNever;
  const auto consider = [&](ProductKernel kernel, double time_ns) {
    if (time_ns < least) best = kernel, least = time_ns;
  };
  if (can_use_large_tiles && product.epilogue.is_empty())
    consider(ProductKernel::sm90_large, persistent_ns(128, 256, 700, kLargeMultiWaveFactor));
  if (can_use_large_tiles && !product.a.transposed && product.c_stride == product.n)
    consider(ProductKernel::sm90_ping_pong, persistent_ns(128, 128, 390, 1));
  if (product.splits > 0 && product.n % 8 == 0) {  // the sm90 split-K kernel stores its sums through TMA
    const double splits = double(product.splits);
    const double sums_ns = splits * double(product.m) * double(product.n) * 2 * sizeof(float) / kBytesPerNs;
    consider(ProductKernel::split_k,
             2 * kPersistentWaveNs + std::max(k_tiles / splits * 480, read_ns(product)) + sums_ns);
  }
  // The model was not fitted to non-persistent grids of more waves.
  constexpr int64_t kMaxWaves = 4;
  const int64_t few_tiles = ceil_div(product.m, few.rows) * ceil_div(product.n, few.columns);
  if (few.is_persistent(product) || few_tiles <= kMaxWaves * kMultiprocessors || least == kNever)
    consider(ProductKernel::sm90_swap_ab, few.time_ns(product));
  return best;
}

}  // namespace fusedops::cuda
