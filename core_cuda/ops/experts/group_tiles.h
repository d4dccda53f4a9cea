// Tiles of rows of grouped products. A kernel lists them on the device, so that no launch waits for the offsets.
#pragma once

#include "core/common/ceil_div.h"
#include "core/common/element.h"
#include "ops/experts/grouped_matmul.h"

namespace fusedops {

// Rows [first, end) of a group. Tiles of rows without a group have the number of groups as their group.
struct alignas(16) GroupTile {
  int32_t first, end, group;
};

inline constexpr int kGroupTileRows = 128;

// The list, in memory of groups_workspace().
struct GroupTiles {
  explicit GroupTiles(const Groups& groups)
      : tiles(static_cast<GroupTile*>(groups.tiles)), bounds(reinterpret_cast<int32_t*>(tiles + max_count(groups))) {}

  // At most one tile is not full in every group, and before and past all groups.
  static int64_t max_count(const Groups& groups) { return groups.count / kGroupTileRows + groups.groups + 2; }

  static size_t bytes(const Groups& groups) {
    return max_count(groups) * sizeof(GroupTile) + (groups.groups + 2) * sizeof(int32_t);
  }

  // The number of tiles, which follows the bounds.
  FUSEDOPS_HD int32_t* count(int64_t groups) const { return bounds + groups + 1; }

  GroupTile* tiles;  // in the order of the groups
  int32_t* bounds;   // [groups + 1]: the offsets as kernels read them (Groups)
};

}  // namespace fusedops
