#include "core/cuda/mma64.cuh"
#include "ops/experts/grouped_multistage.cuh"

namespace fusedops::cuda {
namespace {

using Tile64 = BlockTile<64, 64, 16, 32, 32, 4, 2, true>;

template <class Product>
Status run(const Product& product, const GroupTiles& tiles, const Context& context) {
  return has_aligned_rows(representative(product)) ? run_grouped<Mma64, Tile64, 16>(product, tiles, context)
                                                   : run_grouped<Mma64, Tile64, 8>(product, tiles, context);
}

}  // namespace

Status grouped_f64(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  return run(product, tiles, context);
}

Status grouped_f64(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  return run(product, tiles, context);
}

}  // namespace fusedops::cuda
