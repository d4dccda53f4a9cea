#include "core/program/geometry.h"

#include <algorithm>

namespace fusedops::program {
namespace {

// Neighbouring dimensions, merged into one.
struct Group {
  int64_t size;
  uint32_t inputs;  // one bit per input that has them
};

static_assert(kMaxInputs <= 32);

// The inputs that extend along a dimension of the broadcast shape.
uint32_t inputs_along(const Call& call, const Broadcast& shape, int dim) {
  uint32_t inputs = 0;
  for (int i = 0; i < static_cast<int>(call.op.inputs.size()); ++i) {
    const View* input = call.inputs[i];
    if (!input) continue;
    const int own = dim - (shape.rank - input->rank);
    if (own >= 0 && input->sizes[own] != 1) inputs |= uint32_t(1) << i;
  }
  return inputs;
}

int groups_of(const Call& call, Group* groups) {
  const Broadcast shape(call);
  const bool row_wise = !program_of(call.op).reductions.empty();
  int count = 0;
  for (int dim = 0; dim < shape.rank; ++dim) {
    const bool alone = row_wise && dim == shape.rank - 1;
    if (shape.sizes[dim] == 1 && !alone) continue;
    const uint32_t inputs = inputs_along(call, shape, dim);
    if (count > 0 && groups[count - 1].inputs == inputs && !alone)
      groups[count - 1].size *= shape.sizes[dim];
    else
      groups[count++] = {shape.sizes[dim], inputs};
  }
  if (count == 0) groups[count++] = {1, 0};
  return count;
}

// The walk of a tensor that has the groups with this bit.
Walk walk_of(const Group* groups, int dims, uint32_t bit) {
  const Group& columns = groups[dims];
  Walk walk{.access = Access::some, .along_columns = (columns.inputs & bit) != 0, .strides = {}};
  int64_t stride = walk.along_columns ? columns.size : 1;
  int extends = 0;
  for (int i = dims - 1; i >= 0; --i) {
    if (!(groups[i].inputs & bit)) continue;
    walk.strides[i] = stride;
    stride *= groups[i].size;
    ++extends;
  }
  if (extends == dims && dims > 0 && columns.size == 1) walk.along_columns = true;
  if (extends == dims && walk.along_columns)
    walk.access = Access::full;
  else if (extends == 0)
    walk.access = walk.along_columns ? Access::column : Access::single;
  else if (extends == dims)
    walk.access = Access::row;
  return walk;
}

}  // namespace

bool Geometry::has_work(const Program& program) const {
  if (rows == 0 || cols > 0) return rows > 0;
  return std::ranges::any_of(program.results, [](const Result& result) { return result.like == kLikeRows; });
}

Status Geometry::of(const Call& call, Geometry* geometry) {
  Group groups[kMaxRank];
  const int count = groups_of(call, groups);
  if (count > kMaxRowDims + 1)
    return Status::error("fusedops.", public_name(call.op), ": the inputs must broadcast along at most ",
                         std::to_string(kMaxRowDims + 1),
                         " groups of neighbouring dimensions, each of which an input has or lacks as a whole; got ",
                         std::to_string(count));
  geometry->dims = count - 1;
  geometry->rows = 1;
  geometry->cols = groups[count - 1].size;
  for (int i = 0; i < geometry->dims; ++i) geometry->rows *= geometry->sizes[i] = groups[i].size;
  for (int i = 0; i < static_cast<int>(call.op.inputs.size()); ++i) {
    if (call.inputs[i])
      geometry->inputs[i] = walk_of(groups, geometry->dims, uint32_t(1) << i);
    else
      geometry->inputs[i] = {.access = Access::number, .along_columns = false, .strides = {}};
  }
  constexpr uint32_t kAll = uint32_t(1) << kMaxInputs;
  for (int i = 0; i < count; ++i) groups[i].inputs |= kAll;
  geometry->all = walk_of(groups, geometry->dims, kAll);
  groups[count - 1].inputs &= ~kAll;
  geometry->all_rows = walk_of(groups, geometry->dims, kAll);
  return {};
}

}  // namespace fusedops::program
