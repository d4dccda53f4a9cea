#include "core/cuda/mma64.cuh"
#include "ops/experts/grouped_multistage.cuh"

namespace fusedops::cuda {
namespace {

using Tile64 = BlockTile<64, 64, 16, 32, 32, 4, 2, true>;

}  // namespace

Status grouped_f64(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  return run_aligned<Mma64, Tile64>(product, tiles, context);
}

Status grouped_f64(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  return run_aligned<Mma64, Tile64>(product, tiles, context);
}

}  // namespace fusedops::cuda
