#include "ops/products/matmul_tiles.h"

#include <algorithm>
#include <limits>

namespace fusedops::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Up to this many rows, the matrix is read as fast as memory allows, whatever else there is.
constexpr int64_t kFewRows = 64;

// What follows are measured times of an H200: the first a kernel takes whatever it computes.
constexpr double kStart = 2700, kStartOfWave = 3300, kStartOfParts = 4000, kStartOfLarge = 4000;
constexpr double kBytesInOne = 3600;  // read from memory in a nanosecond

// A step of a block in matmul_few_tiles_sm90.cuh: the tensor cores, and what each step costs beside them.
double nanoseconds_of_step(int64_t rows, int64_t columns) { return 60 + double(rows * columns) / 54.6; }

// How much longer a step takes if lines of a or b do not begin at multiples of 128 bytes, the unit of the L2 cache: its
// copies take one more. Measured with 1000 to 3000 rows: 1.22 where warpgroups take turns, 1.4 to 1.6 with few tiles.
double share_of_lines(const Matmul& product, double unaligned) {
  constexpr int64_t kElements = 128 / 2;
  return product.a.stride % kElements || product.b.stride % kElements ? unaligned : 1;
}

double nanoseconds_of_reading(const Matmul& product) {
  return double(product.m + product.n) * double(product.k) * 2 / kBytesInOne;
}

// Up to 64 rows: as many parts as give a large GPU about as many blocks as it has multiprocessors, with some steps for
// each. They follow from n and k alone, so that a row has the same bits among any of these numbers.
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

double FewTilesChoice::nanoseconds(const Matmul& product) const {
  const int64_t blocks = ceil_div(product.m, rows) * ceil_div(product.n, columns) * parts;
  const int64_t steps = ceil_div(ceil_div(product.k, kTileDepth), parts);
  const double multiplying = double(steps) * nanoseconds_of_step(rows, columns) * share_of_lines(product, 1.4);
  if (parts > 1) {
    const double adding = double(rows * columns) * 0.15;
    return kStartOfParts + std::max(multiplying + adding, nanoseconds_of_reading(product));
  }
  const double waves = double(ceil_div(blocks, kMultiprocessors));
  return (waves > 1 ? waves * kStartOfWave : kStart) + std::max(waves * multiplying, nanoseconds_of_reading(product));
}

FewTilesChoice FewTilesChoice::of(const Matmul& product) {
  if (has_few_rows(product)) {
    int rows = 8;
    while (rows < product.m) rows *= 2;
    return {rows, 64, parts_of_few_rows(product.n, product.k)};
  }
  FewTilesChoice best;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](int rows, int columns) {
    const int64_t tiles = ceil_div(product.m, rows) * ceil_div(product.n, columns);
    constexpr int64_t kLeastDepth = 4 * kTileDepth;
    for (int parts = 1; parts <= kMostParts; parts *= 2) {
      if (parts > 1 && (tiles * parts > most_blocks(parts) || product.k < parts * kLeastDepth)) break;
      const FewTilesChoice choice{rows, columns, parts};
      const double time = choice.nanoseconds(product);
      if (time < least) best = choice, least = time;
    }
  };
  const auto consider_both = [&](int rows) { consider(rows, 64), consider(rows, 128); };
  consider_both(128), consider_both(192);
  if (!product.a.transposed) consider_both(160), consider(256, 128);
  return best;
}

ProductKernel product_kernel(const Matmul& product, const FewTilesChoice& few, bool has_large) {
  if (has_few_rows(product)) return ProductKernel::few_tiles;
  const double steps = double(ceil_div(product.k, kTileDepth)) * share_of_lines(product, 1.22);
  // Of a kernel whose blocks stay and go from tile to tile. Tiles come in pairs, a cluster of two.
  const auto of_waves = [&](int64_t rows, int64_t columns, double nanoseconds_of_step) {
    const int64_t tiles = ceil_div(product.m, 2 * rows) * 2 * ceil_div(product.n, columns);
    const double multiplying = double(ceil_div(tiles, kMultiprocessors)) * steps * nanoseconds_of_step;
    return kStartOfLarge + std::max(multiplying, nanoseconds_of_reading(product));
  };
  constexpr double kNever = std::numeric_limits<double>::infinity();
  ProductKernel best = ProductKernel::few_tiles;
  double least = kNever;
  const auto consider = [&](ProductKernel kernel, double nanoseconds) {
    if (nanoseconds < least) best = kernel, least = nanoseconds;
  };
  if (has_large && product.epilogue.is_empty()) consider(ProductKernel::large, of_waves(128, 256, 690));
  if (has_large && !product.a.transposed && product.c_stride == product.n)
    consider(ProductKernel::turns, of_waves(128, 128, 360));
  if (product.splits > 0) {
    const double splits = double(product.splits);
    const double of_sums = splits * double(product.m) * double(product.n) * 2 * sizeof(float) / kBytesInOne;
    consider(ProductKernel::splits,
             2 * kStart + std::max(steps / splits * 480, nanoseconds_of_reading(product)) + of_sums);
  }
  // Its blocks do not stay, and what begins and ends them is lost in each wave: many of them were not measured.
  constexpr int64_t kMostWaves = 4;
  const int64_t few_tiles = ceil_div(product.m, few.rows) * ceil_div(product.n, few.columns);
  if (few_tiles <= kMostWaves * kMultiprocessors || least == kNever)
    consider(ProductKernel::few_tiles, few.nanoseconds(product));
  return best;
}

}  // namespace fusedops::cuda
