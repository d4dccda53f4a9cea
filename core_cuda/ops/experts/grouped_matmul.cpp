// Grouped products on the CPU: tiles of all groups are the items of one loop, each a product of ops/products.
#include "ops/experts/grouped_matmul.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "core/common/ceil_div.h"
#include "core/common/numeric.h"
#include "core/cpu/elementwise.h"
#include "core/cpu/offsets.h"
#include "core/cpu/scratch.h"
#include "ops/experts/group_tiles.h"
#include "ops/products/linear.h"

namespace fusedops {
namespace {

// A tile's operands take a few MB in float32, and its product is large enough for blocks of matmul_cpu.cpp.
constexpr int64_t kTileRows = 480, kTileColumns = 512, kGatheredRows = 1024;
constexpr int64_t kManyTiles = 32, kMinColumns = 128;  // with fewer tiles, they are made narrower

struct Places {
  int x, weights, offsets;
};

constexpr Places kForward{input_of(kGroupedMatmul, "x"), input_of(kGroupedMatmul, "weights"),
                          input_of(kGroupedMatmul, "offsets")};
constexpr Places kBackward{input_of(kGroupedMatmulBackward, "x"), input_of(kGroupedMatmulBackward, "weights"),
                           input_of(kGroupedMatmulBackward, "offsets")};
constexpr auto kTranspose = attribute_of<bool>(kGroupedMatmul, "transpose_weights");
constexpr auto kBackwardTranspose = attribute_of<bool>(kGroupedMatmulBackward, "transpose_weights");

// Checks the inputs that both operators have, and infers the shape of y.
Status grouped_rule(Rule& rule, const Places& at, bool transpose, Shape* y) {
  Shape &x = rule.inputs[at.x], &offsets = rule.inputs[at.offsets];
  FUSEDOPS_TRY(rule.has_rows(at.x));
  if (x.ranked && x.rank != 2) return rule.must(at.x, "have 2 dimensions", "shape " + rule.show(x));
  if (x.ranked && x.dims[0] > std::numeric_limits<int32_t>::max())
    return rule.must(at.x, "have less than 2147483648 rows", "shape " + rule.show(x));
  WeightDims dims;
  FUSEDOPS_TRY(weights_rule(rule, at.weights, at.x, transpose, x.ranked ? &x.dims[1] : nullptr, &dims));
  if (offsets.dtype != DType::i32) return rule.must(at.offsets, "be int32", name_of(offsets.dtype));
  if (offsets.ranked) {
    const bool fits = offsets.rank == 1 &&
                      (!dims.are_known || dims.groups < 0 || offsets.dims[0] < 0 || offsets.dims[0] == dims.groups + 1);
    if (!fits)
      return rule.must(at.offsets,
                       "have shape [" + (dims.are_known && dims.groups >= 0 ? rule.show(dims.groups + 1) : "E + 1") +
                           "], one number more than there are weights",
                       rule.show(offsets));
  }
  *y = x;
  y->ranked = x.ranked && dims.are_known;
  if (y->ranked) y->dims[1] = dims.out;
  return {};
}

Status forward_rule(Rule& rule) {
  return grouped_rule(rule, kForward, rule.attributes[kTranspose], &rule.outputs[output_of(kGroupedMatmul, "y")]);
}

Status backward_rule(Rule& rule) {
  constexpr int kDy = input_of(kGroupedMatmulBackward, "dy");
  Shape y;
  FUSEDOPS_TRY(grouped_rule(rule, kBackward, rule.attributes[kBackwardTranspose], &y));
  FUSEDOPS_TRY(matches_y(rule, kDy, y));
  rule.outputs[output_of(kGroupedMatmulBackward, "dweights")] = rule.inputs[kBackward.weights];
  return {};
}

size_t forward_workspace(const Call& call) {
  return call.context.cuda ? groups_workspace(GroupedMatmul::of(call).groups) : 0;
}

size_t backward_workspace(const Call& call) {
  return call.context.cuda ? groups_workspace(GroupedGradient::of(call).groups) : 0;
}

Groups groups_of(const Call& call, int of_offsets, int64_t count) {
  const View& offsets = *call.inputs[of_offsets];
  return {static_cast<const int32_t*>(offsets.data), offsets.sizes[0] - 1, count};
}

Status check(const char* op, const Groups& groups) {
  FUSEDOPS_TRY(cpu::check_ascending(op, "offsets", groups.offsets, groups.groups));
  if (groups.offsets[groups.groups] <= groups.count) return {};
  return cpu::offset_error(op, "offsets", "end with at most " + std::to_string(groups.count) + ", the rows of x",
                           groups.offsets, groups.groups);
}

template <class Product>
Status run_on_cpu(const Call& call) {
  const Product product = Product::of(call);
  FUSEDOPS_TRY(check(public_name(call.op), product.groups));
  return multiply_groups_cpu(product, call.context);
}

// Runs loops on the calling thread, within an item of the outer loop.
Context on_this_thread() {
  Context context;
  context.parallel = [](void*, int64_t count, int64_t, Context::Body body, void* closure) { body(closure, 0, count); };
  return context;
}

// Part of the result of a group: these rows and columns, counted from the group's first row, or from row 0 of c[e].
struct Tile {
  int64_t group, row, rows, column, columns;
};

// Tiles of a matrix per group; rows_of(group) is its height.
template <class RowsOf>
std::vector<Tile> tiles_of(int64_t groups, int64_t n, RowsOf rows_of) {
  int64_t row_tiles = 0;
  for (int64_t e = 0; e < groups; ++e) row_tiles += ceil_div(rows_of(e), kTileRows);
  int64_t width = kTileColumns;
  while (width > kMinColumns && row_tiles * ceil_div(n, width) < kManyTiles) width /= 2;
  std::vector<Tile> tiles;
  tiles.reserve(row_tiles * ceil_div(n, width));
  for (int64_t e = 0; e < groups; ++e)
    for (int64_t row = 0, rows = rows_of(e); row < rows; row += kTileRows)
      for (int64_t column = 0; column < n; column += width)
        tiles.push_back({e, row, std::min(kTileRows, rows - row), column, std::min(width, n - column)});
  return tiles;
}

int64_t tile_cost(const std::vector<Tile>& tiles, double products) {
  constexpr double kMultiplyAddsPerNs = 32;
  return static_cast<int64_t>(30 + products / kMultiplyAddsPerNs / double(std::max<size_t>(tiles.size(), 1)));
}

// Rows first to first + count of the groups, from `column` on: in place if they lie side by side, else as a copy.
template <class T>
class Gathered {
 public:
  Gathered(const GroupRows& from, int64_t most_rows, int64_t columns)
      : from_(from), columns_(columns), copy_(from.rows ? cpu::scratch<T>(most_rows * columns) : nullptr) {}

  Matmul::Matrix at(int64_t first, int64_t count, int64_t column, int64_t columns) const {
    const T* const data = static_cast<const T*>(from_.data) + column;
    if (!from_.rows) return {data + first * from_.stride, false, from_.stride, 0};
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(data + from_.rows[first + i] * from_.stride, columns, copy_.get() + i * columns_);
    return {copy_.get(), false, columns_, 0};
  }

 private:
  GroupRows from_;
  int64_t columns_;
  cpu::Scratch<T> copy_;
};

template <class T>
void multiply(const GroupedMatmul& call, const Context& context) {
  const int32_t* const offsets = call.groups.offsets;
  T* const y = static_cast<T*>(call.y);
  const auto row_of_y = [&](int64_t r) { return y + (call.y_rows ? call.y_rows[r] : r) * call.n; };
  const auto tiles = tiles_of(call.groups.groups, call.n, [&](int64_t e) { return offsets[e + 1] - offsets[e]; });
  const double products = double(offsets[call.groups.groups]) * double(call.n) * double(call.k);
  const bool in_place = !call.y_rows && !call.bias;
  context.parallel_for(tiles.size(), tile_cost(tiles, products), [&](int64_t begin, int64_t end) {
    const Gathered<T> x(call.x, kTileRows, call.k);
    const cpu::Scratch<T> copy = in_place ? nullptr : cpu::scratch<T>(kTileRows * kTileColumns);
    for (int64_t i = begin; i < end; ++i) {
      const Tile& tile = tiles[i];
      const int64_t first = offsets[tile.group] + tile.row;
      Matmul::Matrix b = call.b.from(0, tile.column, call.dtype);
      b.data = static_cast<const T*>(b.data) + tile.group * b.batch_stride;
      Matmul product(call.dtype, 1, tile.rows, tile.columns, call.k, x.at(first, tile.rows, 0, call.k), b,
                     in_place ? row_of_y(first) + tile.column : copy.get());
      if (in_place) product.c_stride = call.n;
      if (call.bias) product.epilogue.bias = static_cast<const T*>(call.bias) + tile.group * call.n + tile.column;
      (void)multiply_cpu(product, on_this_thread());  // its dtype is a floating one: no error
      for (int64_t r = 0; !in_place && r < tile.rows; ++r)
        std::copy_n(copy.get() + r * tile.columns, tile.columns, row_of_y(first + r) + tile.column);
    }
  });
  const int64_t last = offsets[call.groups.groups];
  context.parallel_for(call.groups.count - last, 10 + call.n / 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = last + begin; r < last + end; ++r) std::fill_n(row_of_y(r), call.n, T());
  });
}

// Sums a tile over the rows of its group in the compute type, kGatheredRows at a time: in c, unless several sums would
// each be rounded.
template <class T, class A = compute_t<T>>
void multiply(const GroupedGradient& call, const Context& context) {
  const int32_t* const offsets = call.groups.offsets;
  const auto tiles = tiles_of(call.groups.groups, call.n, [&](int64_t) { return call.m; });
  const double products = double(offsets[call.groups.groups]) * double(call.n) * double(call.m);
  context.parallel_for(tiles.size(), tile_cost(tiles, products), [&](int64_t begin, int64_t end) {
    const Gathered<T> a(call.a, kGatheredRows, kTileRows), b(call.b, kGatheredRows, kTileColumns);
    const cpu::Scratch<A> sums = cpu::scratch<A>(std::is_same_v<T, A> ? 0 : kTileRows * kTileColumns);
    for (int64_t i = begin; i < end; ++i) {
      const Tile& tile = tiles[i];
      const int64_t first = offsets[tile.group], last = offsets[tile.group + 1];
      const bool in_place = std::is_same_v<T, A> || last - first <= kGatheredRows;
      T* const c = static_cast<T*>(call.c) + (tile.group * call.m + tile.row) * call.n + tile.column;
      int64_t row = first;
      do {  // once for a group without rows, whose gradient is 0
        const int64_t count = std::min<int64_t>(kGatheredRows, last - row);
        Matmul product(call.dtype, 1, tile.rows, tile.columns, count, a.at(row, count, tile.row, tile.rows).turned(),
                       b.at(row, count, tile.column, tile.columns), in_place ? static_cast<void*>(c) : sums.get());
        if (in_place) product.c_stride = call.n;
        if (!in_place || row > first) product.to_sums(/*add=*/row > first);
        (void)multiply_cpu(product, on_this_thread());
        row += count;
      } while (row < last);
      if constexpr (!std::is_same_v<T, A>)
        for (int64_t r = 0; !in_place && r < tile.rows; ++r)
          cpu::narrow(sums.get() + r * tile.columns, c + r * call.n, tile.columns);
    }
  });
}

template <class Product>
Status dispatched(const Product& product, const Context& context) {
  return dispatch(product.dtype, [&](auto tag) {
    multiply<typename decltype(tag)::type>(product, context);
    return Status();
  });
}

}  // namespace

Status weights_rule(Rule& rule, int of_weights, int of_x, bool transpose, const Dim* in, WeightDims* dims) {
  FUSEDOPS_TRY(rule.same_dtype(of_weights, of_x));
  Shape& weights = rule.inputs[of_weights];
  dims->are_known = weights.ranked;
  if (!weights.ranked) return {};
  bool fits = weights.rank == 3;
  if (fits) {
    Dim& of_weight = weights.dims[transpose ? 2 : 1];
    fits = !in || rule.same(of_weight, *in);
    dims->groups = weights.dims[0], dims->out = weights.dims[transpose ? 1 : 2];
    dims->in = of_weight;
  }
  if (fits) return {};
  const std::string columns = in ? rule.show(*in) : "in";
  return rule.must(of_weights, "have shape " + (transpose ? "[E, out, " + columns + "]" : "[E, " + columns + ", out]"),
                   rule.show(weights));
}

GroupedMatmul GroupedMatmul::of(const Call& call) {
  const View &x = *call.inputs[kForward.x], &weights = *call.inputs[kForward.weights];
  const bool transpose = call.attributes[kTranspose];
  const Rows rows = as_rows(x);
  return {.dtype = x.dtype,
          .groups = groups_of(call, kForward.offsets, rows.count),
          .n = weights.sizes[transpose ? 1 : 2],
          .k = rows.size,
          .x = {x.data, rows.stride},
          .b = Matmul::Matrix::of(weights, transpose),
          .y = call.outputs[output_of(kGroupedMatmul, "y")].data};
}

GroupedGradient GroupedGradient::of(const Call& call) {
  const View &dy = *call.inputs[input_of(kGroupedMatmulBackward, "dy")], &x = *call.inputs[kBackward.x];
  const Rows of_dy = as_rows(dy), of_x = as_rows(x);
  const GroupRows dys{dy.data, of_dy.stride}, xs{x.data, of_x.stride};
  const bool transpose = call.attributes[kBackwardTranspose];
  return {.dtype = x.dtype,
          .groups = groups_of(call, kBackward.offsets, of_x.count),
          .m = transpose ? of_dy.size : of_x.size,
          .n = transpose ? of_x.size : of_dy.size,
          .a = transpose ? dys : xs,
          .b = transpose ? xs : dys,
          .c = call.outputs[output_of(kGroupedMatmulBackward, "dweights")].data};
}

Status multiply_groups_cpu(const GroupedMatmul& product, const Context& context) {
  return dispatched(product, context);
}

Status multiply_groups_cpu(const GroupedGradient& product, const Context& context) {
  return dispatched(product, context);
}

size_t groups_workspace(const Groups& groups) { return GroupTiles::bytes(groups); }

Operator grouped_matmul() {
  return {kGroupedMatmul,
          {.derivative = {{.op = "grouped_matmul",
                           .inputs = {"dy", "weights", "offsets"},
                           .gradients = {{"x", "y"}},
                           .attributes = {{"transpose_weights", "transpose_weights", /*negated=*/true}}},
                          call_of(kGroupedMatmulBackward)},
           .rule = forward_rule,
           .workspace = forward_workspace,
           .cpu = run_on_cpu<GroupedMatmul>,
           .cuda = grouped_matmul_cuda}};
}

Operator grouped_matmul_backward() {
  return {kGroupedMatmulBackward,
          {.rule = backward_rule,
           .workspace = backward_workspace,
           .cpu = run_on_cpu<GroupedGradient>,
           .cuda = grouped_matmul_backward_cuda}};
}

}  // namespace fusedops
