// Entry points of the kernels for grouped products, with their preconditions. grouped_dispatch.h chooses among them.
// All read the list of tiles.
#pragma once

#include "ops/experts/experts.h"
#include "ops/experts/group_tiles.h"
#include "ops/experts/grouped_dispatch.h"

namespace fusedops::cuda {

// Any shape, stride and alignment; the result is not empty.
Status grouped_f64(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context);
Status grouped_f64(const GroupedGradient& product, const GroupTiles& tiles, const Context& context);
Status grouped_f32(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context);
Status grouped_f32(const GroupedGradient& product, const GroupTiles& tiles, const Context& context);
Status grouped_16(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context);
Status grouped_16(const GroupedGradient& product, const GroupTiles& tiles, const Context& context);

// Compute capability 9.x; TMA can load and store all matrices (can_tma_load_and_store).
Status grouped_sm90(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context);
Status grouped_sm90(const GroupedGradient& product, const GroupTiles& tiles, const Context& context);
Status experts_up_sm90(const ExpertsUp& step, const GroupTiles& tiles, const Context& context);

}  // namespace fusedops::cuda
