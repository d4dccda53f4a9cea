#include "ops/products/matmul_dispatch.h"

#include <algorithm>
#include <cmath>

#include "core/common/ceil_div.h"
#include "ops/products/matmul_gemv.h"

namespace fusedops::cuda {
namespace {

using K = ProductKernel;
using P = const ProductProblem&;
using G = const GpuProperties&;

bool is_16_byte_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
bool is_16_bit(const Matmul& product) { return size_of(product.dtype) == 2; }

// True if TMA can load a and b and store c and z.
bool has_large_tiles(const Matmul& product) {
  return can_tma_load_and_store(product) && is_16_byte_aligned(product.epilogue.z);
}

// Relative time of a product in tiles of m x n: a multiprocessor takes one tile at a time, and a partial last wave
// takes as long as a full one. It depends on the number of multiprocessors, so it may only choose among kernels with
// the same bits.
double tile_time(P p, int m, int n, G gpu) {
  const double rows = std::ceil(double(p.product.m) / m), columns = std::ceil(double(p.product.n) / n);
  return std::ceil(rows * columns * double(p.product.batch) / gpu.multiprocessors) * m * n;
}

// float32: the factors stand for different shared memory traffic.
double time_128x256(P p, G gpu) { return tile_time(p, 128, 256, gpu); }
double time_256x128(P p, G gpu) { return 1.02 * tile_time(p, 256, 128, gpu); }
double small_time(P p, G gpu) { return 1.28 * tile_time(p, 64, 64, gpu); }

// float64: small tiles have more shared memory traffic, but two small blocks fit on a multiprocessor of compute
// capability 8.0 and 9.0, where two large ones may not. Other GPUs compute float64 at a small fraction of their float32
// speed.
constexpr double kSmallTileFactor = 1.07, kTinyTileFactor = 1.4;  // relative time per element of c

bool is_f64_small(P p, G gpu) {
  constexpr int kSharedBytesOfTwoLarge = 184 << 10;  // including what the system reserves
  if (p.product.dtype != DType::f64) return false;
  if (gpu.shared_bytes < kSharedBytesOfTwoLarge) return true;
  return kSmallTileFactor * tile_time(p, 64, 64, gpu) < tile_time(p, 64, 128, gpu);
}

// float64: for a product, tiles of 32 x 32 read twice as many elements from shared memory as tiles of 64 x 64.
bool is_f64_tiny(P p, G gpu) {
  const double large = std::min(kSmallTileFactor * tile_time(p, 64, 64, gpu), tile_time(p, 64, 128, gpu));
  return p.product.dtype == DType::f64 && kTinyTileFactor * tile_time(p, 32, 32, gpu) < large;
}

// float32: True if so few tiles of 32 x 64 make up c. Their order of sums is their own: this must not depend on the
// GPU.
bool has_few_sliced_tiles(P p, int64_t most) {
  if (p.product.dtype != DType::f32 || p.product.m > most * 32 || p.product.n > most * 64) return false;
  return ceil_div(p.product.m, 32) * ceil_div(p.product.n, 64) <= most / p.product.batch;
}

// clang-format off
constexpr ProductEntry kProducts[] = {
  {K::none, "no kernel",
   [](P p, G) { return p.product.batch == 0 || p.product.m == 0 || p.product.n == 0; },
   "c is empty"},
  {K::fill, "fill",
   [](P p, G) { return p.product.k == 0; },
   "k is 0"},

  // float32 sums in halves: Matmul::to_halves.
  {K::sm90_halves, "sm90 halves 128x256",
   [](P p, G gpu) {
     return p.product.low && gpu.has_sm90_kernels && can_tma_load_and_store(p.product) && !is_small(p.product) &&
            p.product.a.transposed && !p.product.b.transposed && is_16_byte_aligned(p.product.low);
   },
   "sums in halves, aligned"},
  {K::blocks_of_halves, "blocks of halves",
   [](P p, G) { return p.product.low != nullptr; },
   "sums in halves"},
  {K::gemv, "simt GEMV",
   [](P p, G) { return p.is_gemv; },
   "at most four rows or columns"},
  {K::aligned_copies, "aligned copies",
   [](P p, G) { return p.is_copied; },
   "rows of a or b that TMA or 16-byte copies cannot read"},

  // A split of a split-K product.
  {K::sm90_split, "sm90 tiles 128x128",
   [](P p, G gpu) {
     return gpu.has_sm90_kernels && is_16_bit(p.product) && p.product.is_split && can_tma_load_and_store(p.product);
   },
   "sums of splits, aligned"},

  // A single 16-bit product on compute capability 9.x.
  {K::sm90_swap_ab, "sm90 swap-AB",
   [](P p, G) { return p.fastest == K::sm90_swap_ab; },
   "least modeled time"},
  {K::split_k, "split-K",
   [](P p, G) { return p.fastest == K::split_k; },
   "least modeled time"},
  {K::sm90_ping_pong, "sm90 ping-pong tiles 128x128",
   [](P p, G) { return p.fastest == K::sm90_ping_pong; },
   "least modeled time, aligned"},
  {K::sm90_large, "sm90 large tiles 128x256",
   [](P p, G) { return p.fastest == K::sm90_large; },
   "least modeled time, aligned"},
  {K::tma_parts, "parts by TMA",
   [](P p, G) { return p.is_mostly_tma; },
   "adjacent rows of a or columns of b, no multiple of 8"},

  // Other 16-bit products on compute capability 9.x, and all with splits.
  {K::split_k, "split-K",
   [](P p, G) { return p.product.splits > 0; },
   "few tiles and a long k"},
  {K::sm90_large, "sm90 large tiles 128x256",
   [](P p, G gpu) {
     return gpu.has_sm90_kernels && is_16_bit(p.product) && !p.product.is_split && has_large_tiles(p.product) &&
            !is_small(p.product);
   },
   "batch or sums, aligned"},

  // Kernels for every GPU. Without slices of k, all tile shapes of a dtype give the same bits.
  {K::f64_32x32, "sm80 float64 tiles 32x32",
   is_f64_tiny,
   "fewer idle multiprocessors"},
  {K::f64_small, "sm80 float64 tiles 64x64",
   is_f64_small,
   "fewer idle multiprocessors, or little shared memory"},
  {K::f64_large, "sm80 float64 tiles 64x128",
   [](P p, G) { return p.product.dtype == DType::f64; },
   "reads less shared memory"},
  {K::f32_32x32, "simt tiles 32x32, slices of k",
   [](P p, G) { return has_few_sliced_tiles(p, kMultiprocessors / 2); },
   "few tiles"},
  {K::f32_32x64, "simt tiles 32x64, slices of k",
   [](P p, G) { return has_few_sliced_tiles(p, 2 * kMultiprocessors); },
   "few tiles"},
  {K::f32_64x64, "simt tiles 64x64",
   [](P p, G gpu) {
     const double large = std::min(time_128x256(p, gpu), time_256x128(p, gpu));
     return p.product.dtype == DType::f32 && small_time(p, gpu) < large;
   },
   "fewer idle multiprocessors"},
  {K::f32_128x256, "simt tiles 128x256",
   [](P p, G gpu) { return p.product.dtype == DType::f32 && time_128x256(p, gpu) < time_256x128(p, gpu); },
   "reads less shared memory"},
  {K::f32_256x128, "simt tiles 256x128",
   [](P p, G) { return p.product.dtype == DType::f32; },
   "reads less shared memory"},
  {K::sm80_large, "sm80 tiles 128x128",
   [](P p, G) { return !p.product.has_compute_dtype_c && !is_small(p.product) && has_aligned_rows(p.product); },
   "aligned"},
  {K::sm80_large_unaligned, "sm80 tiles 128x128 through registers",
   [](P p, G) { return !p.product.has_compute_dtype_c && !is_small(p.product); },
   "misaligned"},
  {K::sm80_small, "sm80 tiles 64x64",
   [](P p, G) { return has_aligned_rows(p.product); },
   "few tiles or sums, aligned"},
  {K::sm80_small_unaligned, "sm80 tiles 64x64 through registers",
   [](P, G) { return true; },
   "few tiles or sums, misaligned"},
};

constexpr GatedLinearEntry kGatedLinears[] = {
  {GatedLinearKernel::sm90, "sm90 gated tiles 128x64",
   [](const GatedLinear& call, G gpu) {
     constexpr int64_t kMost = int64_t(1) << 30;  // TMA limit
     if (!gpu.has_sm90_kernels || size_of(call.dtype) != 2 || call.columns % kGatedColumns != 0) return false;
     if (call.rows >= kMost || call.columns >= kMost || call.depth >= kMost || call.depth == 0) return false;
     const Matmul gate = call.gate_product(call.y), up = call.up_product(call.y);
     const int64_t tiles = (call.rows + 127) / 128 * ((call.columns + 127) / 128);
     return gate.b.transposed == up.b.transposed && has_aligned_rows(gate) && has_aligned_rows(up) &&
            is_16_byte_aligned(call.y) && is_16_byte_aligned(call.gate) && is_16_byte_aligned(call.up) &&
            call.rows > 64 && tiles >= 64;
   },
   "aligned, enough tiles for a large GPU"},
  {GatedLinearKernel::calls, "calls of linear and gated_act",
   [](const GatedLinear&, G) { return true; },
   "few or misaligned rows, or no kernel that has both products"},
};
// clang-format on

// For fewer rows or columns, other kernels are faster than two more launches.
constexpr int64_t kMinTmaLines = 64;

// True if the product reads aligned copies. A matrix that is not copied must be aligned. Matrices with aligned lines
// are copied only for TMA.
bool are_copies_used(const AlignedCopies& copies, const Matmul& product, const GpuProperties& gpu) {
  return copies.any() && (copies.of_a || is_16_byte_aligned(product.a.data)) &&
         (copies.of_b || is_16_byte_aligned(product.b.data)) && (copies.is_misaligned || gpu.major == 9);
}

}  // namespace

bool has_aligned_rows(const Matmul& product) {
  const int64_t size = size_of(product.dtype);
  const auto aligned = [&](const Matmul::Matrix& matrix) {
    return is_16_byte_aligned(matrix.data) && matrix.stride * size % 16 == 0 && matrix.batch_stride * size % 16 == 0;
  };
  return aligned(product.a) && aligned(product.b);
}

bool can_tma_load(const Matmul& product) {
  constexpr int64_t kMost = int64_t(1) << 30;
  if ((product.a.transposed && product.m % 8) || (!product.b.transposed && product.n % 8)) return false;
  return has_aligned_rows(product) && product.m < kMost && product.n < kMost && product.k < kMost &&
         product.batch < kMost;
}

bool can_tma_load_and_store(const Matmul& product) {
  return can_tma_load(product) && product.n % 8 == 0 && product.c_stride % 8 == 0 && is_16_byte_aligned(product.c);
}

bool is_small(const Matmul& product) {
  const int64_t tiles_m = (product.m + 127) / 128, tiles_n = (product.n + 127) / 128;
  return product.m <= 64 || product.n <= 64 || tiles_m * tiles_n * product.batch < 128;
}

ProductProblem::ProductProblem(const Matmul& product, const GpuProperties& gpu)
    : product(product),
      copies(product),
      is_copied(are_copies_used(copies, product, gpu)),
      tma_rows(product.a.transposed ? product.m / 8 * 8 : product.m),
      tma_columns(product.b.transposed ? product.n : product.n / 8 * 8) {
  const bool is_single = product.batch == 1 && product.m > 0 && product.n > 0 && product.k > 0 && !product.is_split;
  const bool is_sm90 = gpu.has_sm90_kernels && is_16_bit(product) && is_single && !is_copied;
  if (is_sm90 && !product.has_compute_dtype_c && can_tma_load(product)) {
    few = SwapAbChoice::of(product);
    fastest = fastest_sm90(product, few, has_large_tiles(product));
  }
  is_gemv = Gemv(product).rows > 0 && !(fastest == ProductKernel::sm90_swap_ab && is_skinny(product));
  Matmul most = product;
  most.m = tma_rows, most.n = tma_columns;
  is_mostly_tma = is_sm90 && fastest == ProductKernel::none && product.epilogue.is_empty() &&
                  (tma_rows < product.m || tma_columns < product.n) && tma_rows >= kMinTmaLines &&
                  tma_columns >= kMinTmaLines &&
                  (product.has_compute_dtype_c ? can_tma_load_and_store(most) : can_tma_load(most));
}

const ProductEntry& choose_product(const ProductProblem& problem, const GpuProperties& gpu) {
  return first_that_accepts(kProducts, problem, gpu);
}

std::string kernel_name(const ProductEntry& entry, const ProductProblem& problem) {
  if (entry.kernel != ProductKernel::sm90_swap_ab) return entry.name;
  const auto& [rows, columns, k_splits, sharing] = problem.few;
  return std::string(entry.name) + " " + std::to_string(rows) + "x" + std::to_string(columns) +
         (k_splits > 1 ? ", " + std::to_string(k_splits) + " splits of k" : "");
}

const GatedLinearEntry& choose_gated_linear(const GatedLinear& call, const GpuProperties& gpu) {
  return first_that_accepts(kGatedLinears, call, gpu);
}

}  // namespace fusedops::cuda
