#include "ops/products/matmul_tiles.h"

#include <algorithm>
#include <limits>

#include "core/common/ceil_div.h"
#include "ops/products/matmul_dispatch.h"

namespace fusedops::cuda {
namespace {

// Up to this many rows, the matrix is read as fast as memory allows, whatever else there is.
constexpr int64_t kFewRows = 64;

// Times measured on an H200: a kernel takes the first whatever it computes, or for each wave. They and those of k-tiles
// are fitted: over 129 products, the selected kernel is on average 0.5 % slower than the fastest one.
constexpr double kStartOfWave = 2700, kStartOfWaveOfBlocks = 3300;  // of blocks that stay, or of one wave; of others
constexpr double kStartOfParts = 4000, kStartOfLarge = 4000;
constexpr double kBytesInOne = 3600;  // read from memory in a nanosecond

// How lines of a and b lie in the L2 cache, which has lines of 128 bytes and sectors of 32: a copy of 128 bytes takes
// one line, or parts of two, or of two and five sectors.
enum class Lines { aligned, in_sectors, crossing };
Lines lines_of(const Matmul& product) {
  const auto divide = [&](int64_t bytes) {
    return product.a.stride * 2 % bytes == 0 && product.b.stride * 2 % bytes == 0;
  };
  return divide(128) ? Lines::aligned : divide(32) ? Lines::in_sectors : Lines::crossing;
}

// The time of one k-tile of a block in matmul_few_tiles_sm90.cuh, in ns: the maximum of tensor-core time and L2 time
// for the lines that all blocks load. Clocks drop when a grid has several waves.
constexpr double kShareOfWaves = 1.15, kShareOfWavesOfLarge = 1.1;
double k_tile_ns(int64_t area, double copied_lines, Lines lines, bool has_waves) {
  const double of_line = lines == Lines::aligned ? 1.05 : lines == Lines::in_sectors ? 1.4 : 2.75;
  return std::max((60 + double(area) / 54.6) * (has_waves ? kShareOfWaves : 1), copied_lines * of_line);
}

// The relative time of a k-tile in the other kernels, measured with 3000 to 5000 rows.
double share_of_lines(const Matmul& product) { return lines_of(product) == Lines::crossing ? 1.15 : 1; }

double nanoseconds_of_reading(const Matmul& product) {
  return double(product.m + product.n) * double(product.k) * 2 / kBytesInOne;
}

// Up to 64 rows: as many parts as give a large GPU about as many blocks as it has multiprocessors, with some k-tiles
// for each. They follow from n and k alone, so that a row has the same bits among any of these numbers.
int parts_of_few_rows(int64_t n, int64_t k) {
  constexpr int64_t kMostOfFewRows = 4, kLeastDepth = 4 * kTileDepth, kColumns = 64;
  const int64_t tiles = ceil_div(n, kColumns);
  int parts = 1;
  while (parts < kMostOfFewRows && tiles * parts * 2 <= kMultiprocessors && k >= parts * 2 * kLeastDepth) parts *= 2;
  return parts;
}

bool has_few_rows(const Matmul& product) { return product.m <= kFewRows && !product.a.transposed; }

// How many blocks run at once, if clusters of this many must find room in one part of the GPU.
int64_t most_blocks(int parts) { return parts <= 2 ? kMultiprocessors : 96; }

}  // namespace

bool FewTilesChoice::stays(const Matmul& product) const {
  const Epilogue& epilogue = product.epilogue;
  return columns > 64 && parts == 1 && epilogue.activation == 0 && !epilogue.z && product.c_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(product.c) % 16 == 0;
}

double FewTilesChoice::nanoseconds(const Matmul& product) const {
  const int64_t row_tiles = ceil_div(product.m, rows);
  const int64_t blocks = row_tiles * ceil_div(product.n, columns) * parts;
  const int64_t k_tiles = ceil_div(ceil_div(product.k, kTileDepth), parts);
  const auto copied = [&](int64_t lines, Sharing shared) { return double(lines) / (sharing == shared ? 2 : 1); };
  const double lines = copied(columns, Sharing::columns) + copied(ceil_div(product.m, row_tiles), Sharing::rows);
  const double waves = parts > 1 ? 1 : double(ceil_div(blocks, kMultiprocessors));
  const double multiplying = double(k_tiles) * k_tile_ns(rows * columns, lines, lines_of(product), waves > 1);
  if (parts > 1) {
    const double adding = double(rows * columns) * 0.15;
    return kStartOfParts + std::max(multiplying + adding, nanoseconds_of_reading(product));
  }
  const double of_wave = stays(product) || waves == 1 ? kStartOfWave : kStartOfWaveOfBlocks;
  return waves * of_wave + std::max(waves * multiplying, nanoseconds_of_reading(product));
}

FewTilesChoice FewTilesChoice::of(const Matmul& product) {
  if (has_few_rows(product)) {
    int rows = 8;
    while (rows < product.m) rows *= 2;
    return {rows, 64, parts_of_few_rows(product.n, product.k)};
  }
  FewTilesChoice best;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const FewTilesChoice& choice) {
    const double time = choice.nanoseconds(product);
    if (time < least) best = choice, least = time;
  };
  const auto consider_all = [&](int rows, int columns) {
    const int64_t row_tiles = ceil_div(product.m, rows), column_tiles = ceil_div(product.n, columns);
    constexpr int64_t kLeastDepth = 4 * kTileDepth;
    consider({rows, columns});
    for (int parts = 2; parts <= kMostParts && columns <= kMostColumnsOfParts; parts *= 2)
      if (row_tiles * column_tiles * parts <= most_blocks(parts) && product.k >= parts * kLeastDepth)
        consider({rows, columns, parts});
    // Of pairs, since more blocks of a cluster would find no room in all parts of the GPU. Lines that are aligned are
    // found in the L2 cache as fast, and the pairs' blocks wait for each other: 1 % slower.
    if (lines_of(product) == Lines::aligned) return;
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

ProductKernel fastest_sm90(const Matmul& product, const FewTilesChoice& few, bool has_large) {
  if (has_few_rows(product)) return ProductKernel::sm90_few_tiles;
  const double k_tiles = double(ceil_div(product.k, kTileDepth)) * share_of_lines(product);
  // Of a kernel whose blocks stay and go from tile to tile. Tiles come in pairs, a cluster of two.
  const auto of_waves = [&](int64_t rows, int64_t columns, double k_tile_ns, double share_of_waves) {
    const int64_t tiles = ceil_div(product.m, 2 * rows) * 2 * ceil_div(product.n, columns);
    const double waves = double(ceil_div(tiles, kMultiprocessors));
    const double multiplying = waves * k_tiles * k_tile_ns * (waves > 1 ? share_of_waves : 1);
    return kStartOfLarge + std::max(multiplying, nanoseconds_of_reading(product));
  };
  constexpr double kNever = std::numeric_limits<double>::infinity();
  ProductKernel best = ProductKernel::sm90_few_tiles;
  double least = kNever;
  const auto consider = [&](ProductKernel kernel, double nanoseconds) {
    if (nanoseconds < least) best = kernel, least = nanoseconds;
  };
  if (has_large && product.epilogue.is_empty())
    consider(ProductKernel::sm90_large, of_waves(128, 256, 700, kShareOfWavesOfLarge));
  if (has_large && !product.a.transposed && product.c_stride == product.n)
    consider(ProductKernel::sm90_ping_pong, of_waves(128, 128, 390, 1));
  if (product.splits > 0 && product.n % 8 == 0) {  // of 9.0: the kernel of the sums writes them through TMA
    const double splits = double(product.splits);
    const double of_sums = splits * double(product.m) * double(product.n) * 2 * sizeof(float) / kBytesInOne;
    consider(ProductKernel::split_k,
             2 * kStartOfWave + std::max(k_tiles / splits * 480, nanoseconds_of_reading(product)) + of_sums);
  }
  // What begins and ends blocks that do not stay is lost in each wave: many of them were not measured.
  constexpr int64_t kMostWaves = 4;
  const int64_t few_tiles = ceil_div(product.m, few.rows) * ceil_div(product.n, few.columns);
  if (few.stays(product) || few_tiles <= kMostWaves * kMultiprocessors || least == kNever)
    consider(ProductKernel::sm90_few_tiles, few.nanoseconds(product));
  return best;
}

}  // namespace fusedops::cuda
