// A library of operators loaded at run time, like a user's: triple(x), which is elementwise, and
// weigh(bias, x, s) = x * s + bias, where the optional bias comes first, and s has any shape that broadcasts to x's.
#include "core/cpu/elementwise.h"
#include "core/declaration/library.h"

namespace fusedops {
namespace {

struct Times {
  double factor;

  template <class T>
  auto prepared() const {
    using A = compute_t<T>;
    return [factor = static_cast<A>(factor)](A x) { return factor * x; };
  }
};

constexpr Signature kTriple{.name = "triple",
                            .inputs = {{"x"}},
                            .outputs = {{"y", "x"}},
                            .attributes = {{"factor", Type::f64, "3.0"}},
                            .axes = {{"... -> ..."}}};
constexpr Signature kTripleBackward{.name = "triple_backward",
                                    .inputs = {{"dy"}},
                                    .outputs = {{"dx", "dy"}},
                                    .attributes = {{"factor", Type::f64, "3.0"}},
                                    .axes = {{"... -> ..."}}};

Status same_shape(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(0));
  rule.outputs[0] = rule.inputs[0];
  return {};
}

template <const Signature& kSignature>
Status times(const Call& call) {
  return cpu::elementwise<kSignature>(call, Times{call.attributes[attribute_of<double>(kSignature, "factor")]});
}

const Operator& triple() {
  static const Operator op{
      kTriple,
      {.derivative = {{.op = "triple_backward", .inputs = {"dy"}, .gradients = {{"x", "dx"}}}},
       .rule = same_shape,
       .cpu = times<kTriple>},
  };
  return op;
}

const Operator& triple_backward() {
  static const Operator op{kTripleBackward, {.rule = same_shape, .cpu = times<kTripleBackward>}};
  return op;
}

constexpr Signature kFrozen{
    .name = "frozen", .inputs = {{"x"}}, .outputs = {{"y", "x"}}, .attributes = {{"factor", Type::f64, "3.0"}}};
constexpr Signature kQuadruple{
    .name = "quadruple", .inputs = {{"x"}}, .outputs = {{"y", "x"}}, .attributes = {{"factor", Type::f64, "4.0"}}};

const Operator& frozen() {
  static const Operator op{kFrozen, {.rule = same_shape, .cpu = times<kFrozen>}};
  return op;
}

const Operator& quadruple() {
  static const Operator op{
      kQuadruple,
      {.derivative = {{.op = "triple_backward", .inputs = {"dy"}, .gradients = {{"x", "dx"}}}},
       .rule = same_shape,
       .cpu = times<kQuadruple>},
  };
  return op;
}

constexpr Signature kWeigh{.name = "weigh",
                           .inputs = {{"bias", Kind::optional}, {"x"}, {"s", Kind::scalar}},
                           .outputs = {{"y", "x"}},
                           .axes = {{"..., ..., ~... -> ..."}}};
constexpr Signature kWeighBackward{
    .name = "weigh_backward", .inputs = {{"s", Kind::scalar}, {"x"}, {"dy"}}, .outputs = {{"ds", "s"}, {"dx", "x"}}};

Status broadcasts(Rule& rule, int s, int x) {
  FUSEDOPS_TRY(rule.floating(x));
  Shape &small = rule.inputs[s], &large = rule.inputs[x];
  if (!small.present) return {};
  FUSEDOPS_TRY(rule.same_dtype_or_f32(s, x));
  bool fits = small.rank <= large.rank;
  for (int i = 1; fits && i <= small.rank; ++i) {
    Dim dim = large.dims[large.rank - i];
    fits = rule.broadcast(dim, small.dims[small.rank - i]) && dim == large.dims[large.rank - i];
  }
  return fits ? Status() : rule.must(s, "broadcast to x's shape, " + rule.show(large), rule.show(small));
}

Status weigh_rule(Rule& rule) {
  constexpr int kX = input_of(kWeigh, "x"), kBias = input_of(kWeigh, "bias");
  FUSEDOPS_TRY(broadcasts(rule, input_of(kWeigh, "s"), kX));
  if (rule.inputs[kBias].present) FUSEDOPS_TRY(rule.same_as(kBias, kX));
  rule.outputs[0] = rule.inputs[kX];
  return {};
}

Status weigh_backward_rule(Rule& rule) {
  constexpr int kS = input_of(kWeighBackward, "s"), kX = input_of(kWeighBackward, "x");
  FUSEDOPS_TRY(broadcasts(rule, kS, kX));
  FUSEDOPS_TRY(rule.same_as(input_of(kWeighBackward, "dy"), kX));
  const Shape &s = rule.inputs[kS], &x = rule.inputs[kX];
  rule.outputs[output_of(kWeighBackward, "ds")] = s.present ? s : Shape::of(compute_dtype(x.dtype));
  rule.outputs[output_of(kWeighBackward, "dx")] = x;
  return {};
}

double at(const View& view, int64_t i) {
  double value = 0;
  (void)dispatch(view.dtype, [&](auto tag) {
    value = to_compute(static_cast<const typename decltype(tag)::type*>(view.data)[i]);
    return Status();
  });
  return value;
}

void put(const View& view, int64_t i, double value) {
  (void)dispatch(view.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    static_cast<T*>(view.data)[i] = from_compute<T>(static_cast<compute_t<T>>(value));
    return Status();
  });
}

// The element of `small`, which broadcasts to `large`, that corresponds to the i-th of it.
int64_t met(const View& small, const View& large, int64_t i) {
  int64_t place = 0, stride = 1;
  for (int k = 1; k <= large.rank; ++k) {
    const int64_t size = large.sizes[large.rank - k], index = i % size;
    i /= size;
    if (k > small.rank) continue;
    const int64_t own = small.sizes[small.rank - k];
    place += own == 1 ? 0 : index * stride;
    stride *= own;
  }
  return place;
}

Status weigh_cpu(const Call& call) {
  const View *bias = call.inputs[0], &x = *call.inputs[1], *s = call.inputs[2];
  for (int64_t i = 0; i < x.numel(); ++i)
    put(call.outputs[0], i, at(x, i) * (s ? at(*s, met(*s, x, i)) : call.scalars[2]) + (bias ? at(*bias, i) : 0.0));
  return {};
}

Status weigh_backward_cpu(const Call& call) {
  const View *s = call.inputs[0], &x = *call.inputs[1], &dy = *call.inputs[2], &ds = call.outputs[0];
  std::vector<double> sums(static_cast<size_t>(ds.numel()));
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t place = s ? met(*s, x, i) : 0;
    put(call.outputs[1], i, at(dy, i) * (s ? at(*s, place) : call.scalars[0]));
    sums[static_cast<size_t>(place)] += at(dy, i) * at(x, i);
  }
  for (size_t i = 0; i < sums.size(); ++i) put(ds, static_cast<int64_t>(i), sums[i]);
  return {};
}

const Operator& weigh() {
  static const Operator op{
      kWeigh,
      {.derivative = {{.op = "weigh_backward", .inputs = {"s", "x", "dy"}, .gradients = {{"s", "ds"}, {"x", "dx"}}},
                      {.gradients = {{"bias", "dy"}}}},
       .rule = weigh_rule,
       .cpu = weigh_cpu},
  };
  return op;
}

const Operator& weigh_backward() {
  static const Operator op{kWeighBackward, {.rule = weigh_backward_rule, .cpu = weigh_backward_cpu}};
  return op;
}

// Names that some frameworks lack, or that generated Python code uses.
constexpr AttributeList kMap = {{"map", Type::f64, "2.0"}};
constexpr Signature kNames{.name = "names", .inputs = {{"X"}, {"type"}}, .outputs = {{"Y", "X"}}, .attributes = kMap};
constexpr Signature kNamesBackward{
    .name = "names_backward", .inputs = {{"tuple"}}, .outputs = {{"list", "tuple"}}, .attributes = kMap};

Status first_times(const Call& call) {
  for (int64_t i = 0; i < call.outputs[0].numel(); ++i)
    put(call.outputs[0], i, at(*call.inputs[0], i) * call.attributes[attribute_of<double>(kNames, "map")]);
  return {};
}

const Operator& names() {
  static const Operator op{
      kNames,
      {.derivative = {{.op = "names_backward", .inputs = {"dY"}, .gradients = {{"X", "list"}}}},
       .rule = same_shape,
       .cpu = first_times},
  };
  return op;
}

const Operator& names_backward() {
  static const Operator op{kNamesBackward, {.rule = same_shape, .cpu = first_times}};
  return op;
}

// The maximum number of inputs, outputs and attributes: y0 = x0 + x12 and so on, each if its need_y0 is true.
Status wide_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(0));
  for (int i = 1; i < kMaxInputs; ++i) FUSEDOPS_TRY(rule.same_as(i, 0));
  for (int i = 0; i < kMaxOutputs; ++i)
    rule.outputs[i] = rule.attributes[AttributeIndex<bool>{i}] ? rule.inputs[0] : Shape::of(rule.inputs[0].dtype, {0});
  return {};
}

Status wide_cpu(const Call& call) {
  for (int k = 0; k < kMaxOutputs; ++k)
    for (int64_t i = 0; i < call.outputs[k].numel(); ++i)
      put(call.outputs[k], i, at(*call.inputs[k], i) + at(*call.inputs[k + kMaxOutputs], i));
  return {};
}

const Operator& wide() {
  static const Operator op = [] {
    const auto name = [](const char* text, int i) { return (new std::string(text + std::to_string(i)))->c_str(); };
    Operator result{{.name = "wide"}, {.rule = wide_rule, .cpu = wide_cpu}};
    for (int i = 0; i < kMaxInputs; ++i) result.inputs.add({name("x", i)});
    for (int i = 0; i < kMaxOutputs; ++i) result.outputs.add({name("y", i), "x0"});
    for (int i = 0; i < kMaxAttributes; ++i) result.attributes.add({name("need_y", i), Type::boolean, "true"});
    auto& axes = *new std::string("...");
    for (int i = 1; i < kMaxInputs; ++i) axes += ", ...";
    for (int i = 0; i < kMaxOutputs; ++i) axes += i ? ", ..." : " -> ...";
    result.axes = {{axes.c_str()}};
    return result;
  }();
  return op;
}
static_assert(kMaxInputs == 2 * kMaxOutputs && kMaxAttributes == kMaxOutputs);

// triple under another name, with an attribute of any name.
Operator like_triple(const char* name, const char* attribute) {
  Operator op = triple();
  op.name = (new std::string(name))->c_str();
  op.attributes = {{(new std::string(attribute))->c_str(), Type::f64, "3.0"}};
  op.derivative = {};
  return op;
}

template <class... Rows>
const Library* library_of(const Rows&... rows) {
  return new Library{{}, new const Operator* const[]{&rows...}, sizeof...(rows)};
}

}  // namespace
}  // namespace fusedops

using namespace fusedops;
FUSEDOPS_LIBRARY(&triple(), &triple_backward(), &weigh(), &weigh_backward(), &frozen())

extern "C" FUSEDOPS_EXPORT const Library* fusedops_quadruple() { return library_of(quadruple()); }
extern "C" FUSEDOPS_EXPORT const Library* fusedops_names() { return library_of(names(), names_backward()); }
extern "C" FUSEDOPS_EXPORT const Library* fusedops_wide() { return library_of(wide()); }

// Like FUSEDOPS_LIBRARY, for one operator.
extern "C" FUSEDOPS_EXPORT const Library* fusedops_like_triple(const char* name, const char* attribute) {
  return library_of(*new Operator(like_triple(name, attribute)));
}

namespace {

struct Faulty {
  Operator op;
  const char* sentence;
};

Operator faulty(const char* name, Signature signature = kTripleBackward, std::vector<Step> derivative = {}) {
  signature.name = name;
  return {signature, {.derivative = std::move(derivative), .rule = same_shape, .cpu = times<kTripleBackward>}};
}

const std::vector<Faulty> kFaulty = {
    {faulty("relu"), "fusedops: an operator is already named like relu"},
    {faulty("relu_"), "fusedops: an operator is already named like relu_"},
    {faulty("two words"),
     "fusedops: an operator's name must be a name of letters, digits and underscores; got 'two words'"},
    {{kTriple, {.rule = same_shape}}, "fusedops.triple: it must have a rule and a CPU kernel"},
    {faulty("no_output", {.inputs = {{"x"}}}), "fusedops.no_output: it must have an output, or update an input"},
    {faulty("no_tensor", {.inputs = {{"x", Kind::optional}}, .outputs = {{"y", "x"}}}),
     "fusedops.no_tensor: one of its inputs must be a tensor that is always given, or a list"},
    {faulty("overwrites", {.inputs = {{"x"}}, .outputs = {{.name = "y", .dtype = "x", .overwrites = "z"}}}),
     "fusedops.overwrites: y may overwrite only an input that is a tensor, and that it does not update"},
    {faulty("twice", {.inputs = {{"x"}, {"x"}}, .outputs = {{"y", "x"}}}),
     "fusedops.twice: x must stand for one thing, and stands for two"},
    {faulty("keyword", {.inputs = {{"lambda"}}, .outputs = {{"y", "lambda"}}}),
     "fusedops.keyword: 'lambda' must be a name of letters, digits and underscores"},
    {faulty("default", {.inputs = {{"x"}}, .outputs = {{"y", "x"}}, .attributes = {{"factor", Type::f64, "three"}}}),
     "fusedops.default: the default of factor must be a value that it can have; got three"},
    {faulty("axes", {.inputs = {{"x"}}, .outputs = {{"y", "x"}}, .axes = {{"..., ... -> ..."}}}),
     "fusedops.axes: its axes must be those of 1 inputs and 1 outputs; got '..., ... -> ...'"},
    {faulty("axes", {.inputs = {{"x"}}, .outputs = {{"y", "x"}}, .axes = {{"..."}}}),
     "fusedops.axes: its axes must be those of 1 inputs and 1 outputs; got '...'"},
    {faulty("step", kTriple, {{.op = "nothing", .inputs = {"dy"}, .gradients = {{"x", "dx"}}}}),
     "fusedops.step: its derivative calls nothing, which is no operator"},
    {faulty("step", kTriple, {{.op = "relu_backward", .inputs = {"dy"}, .gradients = {{"x", "dx"}}}}),
     "fusedops.step: its derivative must give relu_backward 2 inputs"},
    {faulty("step", kTriple, {{.op = "relu_backward", .inputs = {"dy", "z"}, .gradients = {{"x", "dx"}}}}),
     "fusedops.step: its derivative names z, which there is not"},
    {faulty("step", kTriple, {{.gradients = {{"x", "dz"}}}}),
     "fusedops.step: its derivative names dz, which there is not"},
    {faulty("step", kTriple, {{.op = "relu", .inputs = {"dy"}, .gradients = {{"x", "y"}}, .if_given = "z"}}),
     "fusedops.step: its derivative names z, which there is not"},
    {faulty("step", kTriple,
            {{.op = "relu", .inputs = {"dy"}, .gradients = {{"x", "y"}}, .attributes = {{"eps", "factor"}}}}),
     "fusedops.step: its derivative names eps, which there is not"},
    {faulty("step", kTriple,
            {{.op = "rms_norm",
              .inputs = {"dy", nullptr},
              .gradients = {{"x", "y"}},
              .attributes = {{"eps", "factor", /*negated=*/true}}}}),
     "fusedops.step: factor must be of the type that eps has in rms_norm"},
};

}  // namespace

// A library with an invalid operator, and the message that refuses it; null after the last.
extern "C" FUSEDOPS_EXPORT const Library* faulty_library(int64_t place, const char** sentence) {
  static Library library;
  static const Operator* op;
  if (place > static_cast<int64_t>(kFaulty.size())) return nullptr;
  if (place == static_cast<int64_t>(kFaulty.size())) {
    library.abi.version = -1;
    *sentence = "fusedops: the library of operators was compiled for another version of fusedops; compile it again";
    return &library;
  }
  op = &kFaulty[static_cast<size_t>(place)].op;
  library = {{}, &op, 1};
  *sentence = kFaulty[static_cast<size_t>(place)].sentence;
  return &library;
}
