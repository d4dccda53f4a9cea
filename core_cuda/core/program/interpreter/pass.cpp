#include "core/program/interpreter/pass.h"

#include <algorithm>

#include "core/common/ceil_div.h"

namespace fusedops::program::interpreter {
namespace {

constexpr int64_t kShortRow = 48;
constexpr int64_t kHeldRow = 8 * kTile;
// Tiles in place need no room in the L1 cache, and the interpreter takes 35 ns for each. Their size changes no bits.
constexpr int64_t kTileInPlace = 4 * kTile;
constexpr int64_t kMinTiles = 64;  // enough for all threads

Sum sum_of(const Result& result, const Walk& walk) {
  if (result.like == kLikeRows) return Sum::row_value;
  if (walk.access == Access::full) return Sum::none;
  if (walk.access == Access::single) return Sum::total;
  return walk.along_columns ? Sum::columns : Sum::rows;
}

uint32_t dims_of(const Walk& walk, int dims) {
  uint32_t bits = 0;
  for (int i = 0; i < dims; ++i) bits |= uint32_t(walk.strides[i] != 0) << i;
  return bits;
}

Level level_of(const Walk& walk) {
  if (walk.access == Access::number || walk.access == Access::single) return Level::call;
  return walk.along_columns ? Level::element : Level::row;
}

}  // namespace

// Results summed over the same leading dimensions share a pass; results without such sums are in the first one.
void Pass::order_dims(const Geometry& geometry, uint32_t asked, uint32_t& left) {
  const auto& results = op.program.results;
  uint32_t kept_dims = 0;
  bool any = false;
  wanted = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!(left >> i & 1)) continue;
    const Walk& walk = geometry.of(results[i]);
    if (walk.access == Access::some) {
      const uint32_t dims = dims_of(walk, geometry.dims);
      if (any && dims != kept_dims) continue;
      kept_dims = dims;
      any = true;
    }
    wanted |= uint32_t(1) << i;
  }
  left &= ~wanted;
  wanted &= asked;

  int count = 0;
  kept = 1;
  for (const bool outer : {true, false})
    for (int i = 0; i < geometry.dims; ++i) {
      if ((kept_dims >> i & 1) != outer) continue;
      order_[count++] = i;
      if (outer) kept *= geometry.sizes[i];
    }
  folded = rows / kept;
}

RowOffsets Pass::row_offsets_of(const Walk& walk, const Geometry& geometry) const {
  RowOffsets offsets;
  offsets.dims = geometry.dims;
  for (int i = 0; i < offsets.dims; ++i) {
    offsets.sizes[i] = geometry.sizes[order_[i]];
    offsets.strides[i] = walk.strides[order_[i]];
  }
  offsets.linear = true;
  offsets.step = offsets.dims > 0 ? offsets.strides[offsets.dims - 1] : 0;
  int64_t stride = offsets.step;
  for (int i = offsets.dims - 1; i >= 0; stride *= offsets.sizes[i], --i)
    offsets.linear &= offsets.strides[i] == stride;
  return offsets;
}

void Pass::choose_tiles(int64_t most) {
  constexpr int64_t kRowChunks = 128, kLeast = 8, kMost = 64, kLongRow = 32 * kTile, kFewRows = 32;
  const int64_t width = std::max<int64_t>(cols, 1);  // an empty row also has a block
  tile = most;
  tile_rows = width >= tile ? 1 : std::min(tile / width, folded);
  blocks = ceil_div(width, tile);
  tiles = ceil_div(folded, tile_rows);
  bool columns = false;
  for (size_t i = 0; i < op.program.results.size(); ++i) columns |= (wanted >> i & 1) && results[i].sum == Sum::columns;
  chunk_tiles = columns ? std::clamp(ceil_div(kept * tiles, kRowChunks), kLeast, kMost) : 1;
  chunks = ceil_div(tiles, chunk_tiles);
  stagewise = cols >= kLongRow && rows < kFewRows;
}

Pass::Pass(const Call& call, const Geometry& geometry, uint32_t asked, uint32_t& left)
    : call(call),
      op(program_operator(call.op)),
      compute(compute_dtype(element_dtype(call))),
      rows(geometry.rows),
      cols(geometry.cols) {
  order_dims(geometry, asked, left);
  for (size_t i = 0; i < op.program.results.size(); ++i) {
    if (!(wanted >> i & 1)) continue;
    const Walk& walk = geometry.of(op.program.results[i]);
    results[i].sum = sum_of(op.program.results[i], walk);
    results[i].all_rows = walk.access == Access::row || walk.access == Access::column;
    results[i].offsets = row_offsets_of(walk, geometry);
  }
  choose_tiles(kTile);

  Traits traits{.wanted = wanted, .short_rows = tile_rows > 1 && cols < kShortRow, .inputs = {}};
  for (size_t i = 0; i < op.inputs.size(); ++i) traits.inputs[i] = level_of(geometry.inputs[i]);
  plan = &Plan::of(op, traits);
  stagewise = stagewise && plan->reduces();
  for (const int i : plan->inputs) {
    inputs[i].offsets = row_offsets_of(geometry.inputs[i], geometry);
  }
  if (elements() >= kMinTiles * kTileInPlace && is_in_place()) choose_tiles(kTileInPlace);
}

bool Pass::is_in_place() const {
  if (plan->reduces()) return false;
  for (const int i : plan->inputs) {
    const RowOffsets& offsets = inputs[i].offsets;
    if (call.inputs[i]->dtype != compute || !offsets.linear || (offsets.step != 0 && offsets.step != cols))
      return false;
  }
  for (size_t i = 0; i < op.program.results.size(); ++i) {
    if (!(wanted >> i & 1)) continue;
    const PassResult& to = results[i];
    const bool adjoins = to.offsets.linear && (rows == 1 || to.offsets.step == cols);
    if (to.sum != Sum::none || call.outputs[i].dtype != compute || !adjoins) return false;
  }
  if (streamed(size_of(compute))) return false;
  const auto& steps = plan->stages.back().of_level[static_cast<int>(Level::element)];
  return std::none_of(steps.begin(), steps.end(), [](const PlanStep& step) {
    return step.kind == StepKind::expand || (step.kind == StepKind::compute && step.stored < 0);
  });
}

size_t Pass::place(const Geometry& geometry, void* memory) {
  size_t bytes = 0;
  const auto take = [&](int64_t elements, size_t size) {
    void* const at = memory ? static_cast<char*>(memory) + bytes : nullptr;
    bytes += (elements * size + 63) / 64 * 64;
    return at;
  };
  const size_t size = size_of(compute);
  for (const int i : plan->inputs) {
    const bool narrow = call.inputs[i]->dtype != compute;
    if (geometry.inputs[i].access == Access::column && (narrow || tile_rows > 1))
      inputs[i].copy = take(cols * tile_rows, size);
    inputs[i].held = narrow && (plan->read_again >> i & 1) && !inputs[i].copy && !stagewise && cols <= kHeldRow;
  }
  for (size_t i = 0; i < op.program.results.size(); ++i) {
    if (!(wanted >> i & 1)) continue;
    PassResult& result = results[i];
    if (result.sum == Sum::columns) result.partials = take(kept * chunks * cols, size);
    if (result.sum == Sum::total) result.partials = take(kept * tiles * blocks, size);
    if (result.sum == Sum::rows && !(result.all_rows && blocks == 1)) result.partials = take(rows * blocks, size);
  }
  if (stagewise) {
    const auto reductions = static_cast<int64_t>(op.program.reductions.size());
    block_folds = static_cast<double*>(take(reductions * rows * blocks, sizeof(double)));
    row_folds = take(reductions * rows, size);
  }
  return bytes;
}

}  // namespace fusedops::program::interpreter
