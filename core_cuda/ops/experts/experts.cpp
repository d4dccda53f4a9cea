// experts and its backward as sequences of the steps of experts.h, on CPU and GPU.
#include "ops/experts/experts.h"

#include <algorithm>
#include <limits>

#include "core/declaration/sub_call.h"
#include "ops/experts/copied_rows.h"
#include "ops/products/linear.h"

namespace fusedops {
namespace {

constexpr auto kKeep = attribute_of<bool>(kExperts, "keep");

// Indices of the arguments that both operators have.
struct Places {
  int x, index, weight, gate_up, down, gate_up_bias, down_bias;
  AttributeIndex<std::string> activation;
  AttributeIndex<bool> transpose, interleaved;
  AttributeIndex<double> limit, alpha, shift;

  explicit consteval Places(const Signature& op)
      : x(input_of(op, "x")),
        index(input_of(op, "index")),
        weight(input_of(op, "weight")),
        gate_up(input_of(op, "gate_up")),
        down(input_of(op, "down")),
        gate_up_bias(input_of(op, "gate_up_bias")),
        down_bias(input_of(op, "down_bias")),
        activation(attribute_of<std::string>(op, "activation")),
        transpose(attribute_of<bool>(op, "transpose_weight")),
        interleaved(attribute_of<bool>(op, "interleaved")),
        limit(attribute_of<double>(op, "limit")),
        alpha(attribute_of<double>(op, "alpha")),
        shift(attribute_of<double>(op, "shift")) {}
};

constexpr Places kForward(kExperts), kBackward(kExpertsBackward);

// ---- Rules ----

// Checks a tensor of one row for each of x: x's leading dimensions, then `last`.
Status has_slots(Rule& rule, int input, int of_x, const std::string& last) {
  Shape &got = rule.inputs[input], &x = rule.inputs[of_x];
  if (!got.ranked || !x.ranked) return {};
  bool equal = got.rank == x.rank;
  for (int i = 0; equal && i < x.rank - 1; ++i) equal = rule.same(x.dims[i], got.dims[i]);
  if (equal) return {};
  std::string expected = "[";
  for (int i = 0; i < x.rank - 1; ++i) expected += rule.show(x.dims[i]) + ", ";
  return rule.must(input, "have shape " + expected + last + "], the leading dimensions of x and the experts of a token",
                   rule.show(got));
}

Status check_bias(Rule& rule, int bias, int of_x, int of_weights, const WeightDims& dims) {
  Shape& got = rule.inputs[bias];
  if (!got.present) return {};
  FUSEDOPS_TRY(rule.same_dtype(bias, of_x));
  if (!got.ranked || !dims.are_known) return {};
  Dim groups = dims.groups, out = dims.out;
  if (got.rank == 2 && rule.same(groups, got.dims[0]) && rule.same(out, got.dims[1])) return {};
  return rule.must(bias,
                   "have shape [" + rule.show(dims.groups) + ", " + rule.show(dims.out) + "], the outputs of " +
                       rule.input_name(of_weights),
                   rule.show(got));
}

// Checks the inputs that both operators have, and infers the shapes of y and of a z that is kept.
Status experts_rule(Rule& rule, const Places& at, Shape* y, Shape* z) {
  FUSEDOPS_TRY(rule.has_rows(at.x));
  Shape &x = rule.inputs[at.x], &index = rule.inputs[at.index], &down = rule.inputs[at.down];
  if (x.ranked && x.rank == kMaxRank) return rule.must(at.x, "have less than 64 dimensions", "shape " + rule.show(x));
  if (index.dtype != DType::i32 && index.dtype != DType::i64)
    return rule.must(at.index, "be int32 or int64", name_of(index.dtype));
  FUSEDOPS_TRY(has_slots(rule, at.index, at.x, "K"));
  FUSEDOPS_TRY(x.dtype == DType::f32 ? rule.same_dtype(at.weight, at.x) : rule.same_dtype_or_f32(at.weight, at.x));
  if (!rule.same_shape(index, rule.inputs[at.weight]))
    return rule.must(at.weight, "have index's shape, " + rule.show(index), rule.show(rule.inputs[at.weight]));

  const bool transpose = rule.attributes[at.transpose];
  WeightDims up, out;
  const Dim* const columns = x.ranked ? &x.dims[x.rank - 1] : nullptr;
  FUSEDOPS_TRY(weights_rule(rule, at.gate_up, at.x, transpose, columns, &up));
  if (up.are_known && up.out >= 0 && up.out % 2 != 0)
    return rule.must(at.gate_up, "have an even number of outputs, gates and ups",
                     "shape " + rule.show(rule.inputs[at.gate_up]));
  const Dim half = up.are_known ? rule.half(up.out) : 0;
  FUSEDOPS_TRY(weights_rule(rule, at.down, at.x, transpose, up.are_known ? &half : nullptr, &out));
  if (up.are_known && out.are_known && !rule.same(up.groups, out.groups))
    return rule.must(at.down, "have gate_up's number of experts, " + rule.show(up.groups), "shape " + rule.show(down));
  FUSEDOPS_TRY(check_bias(rule, at.gate_up_bias, at.x, at.gate_up, up));
  FUSEDOPS_TRY(check_bias(rule, at.down_bias, at.x, at.down, out));

  *y = x;
  y->ranked = x.ranked && out.are_known;
  if (y->ranked) y->dims[y->rank - 1] = out.out;
  *z = index;
  z->dtype = x.dtype;
  z->ranked = index.ranked && up.are_known;
  if (z->ranked) z->dims[z->rank++] = up.out;
  return {};
}

Status forward_rule(Rule& rule) {
  Shape z;
  FUSEDOPS_TRY(experts_rule(rule, kForward, &rule.outputs[output_of(kExperts, "y")], &z));
  rule.outputs[output_of(kExperts, "z")] = rule.attributes[kKeep] ? z : Shape::of(z.dtype, {0});
  return {};
}

struct Gradient {
  int input, output;
  AttributeIndex<bool> need;

  consteval Gradient(const char* input, const char* output, const char* need)
      : input(input_of(kExpertsBackward, input)),
        output(output_of(kExpertsBackward, output)),
        need(attribute_of<bool>(kExpertsBackward, need)) {}

  bool is_needed(const Call& call) const { return call.attributes[need] && call.inputs[input]; }
  void* data(const Call& call) const { return call.outputs[output].data; }
};

constexpr Gradient kDx("x", "dx", "need_dx"), kDweight("weight", "dweight", "need_dweight"),
    kDgateUp("gate_up", "dgate_up", "need_dgate_up"), kDdown("down", "ddown", "need_ddown"),
    kDgateUpBias("gate_up_bias", "dgate_up_bias", "need_dgate_up_bias"),
    kDdownBias("down_bias", "ddown_bias", "need_ddown_bias");

Status backward_rule(Rule& rule) {
  Shape y, z;
  FUSEDOPS_TRY(experts_rule(rule, kBackward, &y, &z));
  FUSEDOPS_TRY(matches_y(rule, input_of(kExpertsBackward, "dy"), y));
  for (const Gradient& gradient : {kDx, kDweight, kDgateUp, kDdown, kDgateUpBias, kDdownBias})
    rule.outputs[gradient.output] = rule.gradient(gradient.input, rule.attributes[gradient.need], kBackward.x);
  return {};
}

// ---- Sequences of steps ----

// The arguments that both operators have, sorted slots, and the grouped products of the forward.
class Experts {
 public:
  Experts(const Call& call, const Places& at, void* workspace)
      : call_(call),
        memory_(workspace),
        x_(*call.inputs[at.x]),
        gate_up_(*call.inputs[at.gate_up]),
        down_(*call.inputs[at.down]),
        gate_up_bias_(call.input<char>(at.gate_up_bias)),
        down_bias_(call.input<char>(at.down_bias)),
        weight_(parameter(call, at.weight)),
        transpose_(call.attributes[at.transpose]) {
    const View& index = *call.inputs[at.index];
    rows_ = as_rows(x_);
    slots_ = index.numel(), experts_ = gate_up_.sizes[0], per_token_ = index.sizes[index.rank - 1];
    width_ = gate_up_.sizes[transpose_ ? 1 : 2], out_ = down_.sizes[transpose_ ? 1 : 2];
    index_ = {index.data, index.dtype == DType::i64, slots_, experts_};
    gate_ = {.activation = activations::index_of(call.attributes[at.activation]),
             .interleaved = call.attributes[at.interleaved],
             .limit = call.attributes[at.limit],
             .alpha = call.attributes[at.alpha],
             .shift = call.attributes[at.shift],
             .size = width_ / 2};
    const auto integers = [&](int64_t count) { return static_cast<int32_t*>(memory_.take(count * sizeof(int32_t))); };
    offsets_ = integers(experts_ + 1), order_ = integers(slots_), tokens_ = integers(slots_),
    slot_rows_ = integers(slots_);
    if (call.context.cuda) tiles_ = memory_.take(groups_workspace(groups()));
  }

  size_t workspace() const { return memory_.taken(); }

 protected:
  void* take(int64_t rows, int64_t columns) { return memory_.take(rows * columns * size_of(x_.dtype)); }

  Groups groups() const { return {offsets_, experts_, slots_, tiles_}; }
  GroupRows of_tokens(const View& view) const { return {view.data, as_rows(view).stride, tokens_}; }

  template <class Step>
  Status run_step(const Step& step) const {
    return call_.context.cuda ? run_cuda(step, call_.context) : run_cpu(step, call_.context);
  }

  template <class Product>
  Status multiply(const Product& product) const {
    return call_.context.cuda ? multiply_groups_cuda(product, /*workspace=*/nullptr, call_.context)
                              : multiply_groups_cpu(product, call_.context);
  }

  Status sort() const {
    if (slots_ > std::numeric_limits<int32_t>::max())
      return Status::error("fusedops.", public_name(call_.op), ": index must have less than 2147483648 elements; got ",
                           std::to_string(slots_));
    return run_step(ExpertOrder{index_, per_token_, offsets_, order_, tokens_, slot_rows_, tiles_});
  }

  // z of the slots.
  GroupedMatmul up_product(void* z) const {
    return {.dtype = x_.dtype,
            .groups = groups(),
            .n = width_,
            .k = rows_.size,
            .x = of_tokens(x_),
            .b = Matmul::Matrix::of(gate_up_, transpose_),
            .bias = gate_up_bias_,
            .y = z,
            .y_rows = order_};
  }

  const Call& call_;
  WorkspaceAllocator memory_;
  const View &x_, &gate_up_, &down_;
  const void *gate_up_bias_, *down_bias_;
  Parameter weight_;
  bool transpose_;
  Rows rows_;
  int64_t slots_, experts_, per_token_, width_, out_;  // width_: 2F
  ExpertIndex index_;
  ExpertGate gate_;
  int32_t *offsets_, *order_, *tokens_, *slot_rows_;
  void* tiles_ = nullptr;
};

class Forward : Experts {
 public:
  Forward(const Call& call, void* workspace) : Experts(call, kForward, workspace) {
    z_ = keeps_z() ? call.outputs[output_of(kExperts, "z")].data : take(slots_, width_);
    h_ = take(slots_, width_ / 2);
    results_ = take(slots_, out_);
  }

  using Experts::workspace;

  Status run() const {
    FUSEDOPS_TRY(sort());
    FUSEDOPS_TRY(run_step(ExpertsUp{up_product(z_), gate_, keeps_z(), h_}));
    FUSEDOPS_TRY(multiply(GroupedMatmul{.dtype = x_.dtype,
                                        .groups = groups(),
                                        .n = out_,
                                        .k = width_ / 2,
                                        .x = {h_, width_ / 2},
                                        .b = Matmul::Matrix::of(down_, transpose_),
                                        .bias = down_bias_,
                                        .y = results_,
                                        .is_listed = true}));
    return run_step(ExpertsSum{x_.dtype, index_, rows_.count, per_token_, out_, results_, slot_rows_, weight_,
                               call_.outputs[output_of(kExperts, "y")].data});
  }

 private:
  bool keeps_z() const { return call_.attributes[kKeep]; }

  void *z_, *h_, *results_;
};

class Backward : Experts {
 public:
  Backward(const Call& call, void* workspace)
      : Experts(call, kBackward, workspace), dy_(*call.inputs[input_of(kExpertsBackward, "dy")]) {
    const View* const saved = call.inputs[input_of(kExpertsBackward, "z")];
    has_z_ = saved && saved->numel() > 0;
    needs_dz_ = kDx.is_needed(call) || kDgateUp.is_needed(call) || kDgateUpBias.is_needed(call);
    z_ = has_z_ ? saved->data : take(slots_, width_);
    dh_ = take(slots_, width_ / 2);
    if (needs_dz_) dz_ = take(slots_, width_);
    if (kDdown.is_needed(call)) weighted_h_ = take(slots_, width_ / 2);
    // Copied rows have the memory of dx_rows_, one after the other.
    copies_rows_ = call.context.cuda && size_of(x_.dtype) == 2 && slots_ > kMaxGatheredRows * experts_ &&
                   width_ >= kMinCopiedWidth;
    const int64_t size = std::max(kDx.is_needed(call) ? rows_.size : 0, copies_rows_ ? std::max(rows_.size, out_) : 0);
    if (size > 0) dx_rows_ = take(slots_, size);
  }

  using Experts::workspace;

  Status run() const {
    FUSEDOPS_TRY(sort());
    if (!has_z_) FUSEDOPS_TRY(multiply(up_product(z_)));
    GroupRows dy, x;
    FUSEDOPS_TRY(sorted(dy_, out_, &dy));
    FUSEDOPS_TRY(gate_backward(dy));
    const GroupRows dz{dz_, width_}, h{weighted_h_, width_ / 2};
    if (kDdown.is_needed(call_)) FUSEDOPS_TRY(multiply(weight_gradient(dy, out_, h, width_ / 2, kDdown.data(call_))));
    if (kDx.is_needed(call_)) FUSEDOPS_TRY(gradient_of_x());
    if (kDgateUp.is_needed(call_)) {
      FUSEDOPS_TRY(sorted(x_, rows_.size, &x));
      FUSEDOPS_TRY(multiply(weight_gradient(dz, width_, x, rows_.size, kDgateUp.data(call_))));
    }
    if (kDgateUpBias.is_needed(call_))
      FUSEDOPS_TRY(run_step(
          ExpertsBiasGradient{x_.dtype, groups(), dz, nullptr, Parameter(), width_, kDgateUpBias.data(call_)}));
    if (!kDdownBias.is_needed(call_)) return {};
    return run_step(
        ExpertsBiasGradient{x_.dtype, groups(), of_tokens(dy_), order_, weight_, out_, kDdownBias.data(call_)});
  }

 private:
  // Up to this average number of rows of an expert a product reads few rows, and gathers them itself.
  static constexpr int64_t kMaxGatheredRows = 32;
  // Each tile of columns gathers the rows anew. With a width of 1536 copies take 1.02 of the time, with 28 672 0.92.
  static constexpr int64_t kMinCopiedWidth = 8192;

  // The tokens' rows in sorted order: a copy, or rows to be gathered.
  Status sorted(const View& view, int64_t size, GroupRows* result) const {
    *result = of_tokens(view);
    if (!copies_rows_ || !prefers_copied_rows_cuda()) return {};
    const GroupRows from = *result;
    *result = {dx_rows_, size};
    return run_cuda(CopiedRows{x_.dtype, from, slots_, size, dx_rows_}, call_.context);
  }

  Status gate_backward(const GroupRows& dy) const {
    FUSEDOPS_TRY(multiply(GroupedMatmul{.dtype = x_.dtype,
                                        .groups = groups(),
                                        .n = width_ / 2,
                                        .k = out_,
                                        .x = dy,
                                        .b = Matmul::Matrix::of(down_, transpose_).turned(),
                                        .y = dh_}));
    return run_step(ExpertsGateBackward{.dtype = x_.dtype,
                                        .groups = groups(),
                                        .gate = gate_,
                                        .order = order_,
                                        .tokens = tokens_,
                                        .dh = dh_,
                                        .z_slots = z_,
                                        .weight = weight_,
                                        .down_bias = down_bias_,
                                        .dy = dy_.data,
                                        .dy_size = out_,
                                        .dy_stride = as_rows(dy_).stride,
                                        .dz = dz_,
                                        .weighted_h = weighted_h_,
                                        .dweight = kDweight.is_needed(call_) ? kDweight.data(call_) : nullptr});
  }

  Status gradient_of_x() const {
    FUSEDOPS_TRY(multiply(GroupedMatmul{.dtype = x_.dtype,
                                        .groups = groups(),
                                        .n = rows_.size,
                                        .k = width_,
                                        .x = {dz_, width_},
                                        .b = Matmul::Matrix::of(gate_up_, transpose_).turned(),
                                        .y = dx_rows_,
                                        .is_listed = true}));
    return run_step(ExpertsSum{x_.dtype, index_, rows_.count, per_token_, rows_.size, dx_rows_, slot_rows_, Parameter(),
                               kDx.data(call_)});
  }

  // The gradient of weights [E, out, in], or [E, in, out].
  GroupedGradient weight_gradient(const GroupRows& dy, int64_t out, const GroupRows& x, int64_t in, void* to) const {
    return {.dtype = x_.dtype,
            .groups = groups(),
            .m = transpose_ ? out : in,
            .n = transpose_ ? in : out,
            .a = transpose_ ? dy : x,
            .b = transpose_ ? x : dy,
            .c = to};
  }

  const View& dy_;
  bool has_z_, needs_dz_, copies_rows_;  // copies_rows_: where the GPU prefers it
  void *z_, *dh_, *dz_ = nullptr, *weighted_h_ = nullptr, *dx_rows_ = nullptr;
};

}  // namespace

Operator experts() {
  return with_backward(kExperts, kExpertsBackward, in_calls<Forward>(forward_rule, grouped_matmul()));
}

Operator experts_backward() { return {kExpertsBackward, in_calls<Backward>(backward_rule, grouped_matmul())}; }

}  // namespace fusedops
