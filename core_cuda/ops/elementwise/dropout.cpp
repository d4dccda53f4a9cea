#include "ops/elementwise/dropout.h"

#include "core/cpu/elementwise.h"
#include "core/declaration/numbers.h"

namespace fusedops {

Status check_seed(Rule& rule, int seed) {
  Shape& shape = rule.inputs[seed];
  if (shape.dtype != DType::i64) return rule.must(seed, "be int64", name_of(shape.dtype));
  if (shape.ranked && (shape.rank != 1 || !rule.same(shape.dims[0], 2)))
    return rule.must(seed, "have shape [2], a key and an offset", rule.show(shape));
  return {};
}

Status check_dropout(Rule& rule, int seed, AttributePlace<double> dropout) {
  const double rate = rule.attributes[dropout];
  const bool is_given = rule.inputs[seed].present;
  if (is_given != (rate > 0))
    return rule.must(seed, "be given if and only if dropout is positive",
                     (is_given ? "a seed" : "none") + (" with a dropout of " + spelled(rate)));
  return is_given ? check_seed(rule, seed) : Status();
}

namespace {

template <const Signature& kOp>
Status rule(Rule& rule) {
  constexpr int kX = input_of(kOp, "x"), kResidual = find_input(kOp, "residual");
  FUSEDOPS_TRY(rule.floating(kX));
  if constexpr (kResidual != kNowhere) FUSEDOPS_TRY(rule.same_as(kResidual, kX));
  FUSEDOPS_TRY(check_seed(rule, input_of(kOp, "seed")));
  rule.outputs[output_of(kOp, "y")] = rule.inputs[kX];
  return {};
}

}  // namespace

const Operator& dropout() {
  static const Operator op{
      kDropout,
      {.derivative = {{.op = "dropout", .inputs = {"dy", "seed"}, .gradients = {{"x", "y"}}}},
       .rule = rule<kDropout>,
       .cpu = [](const Call& call) { return cpu::elementwise<kDropout>(call, dropout_of<kDropout>(call)); },
       .cuda = dropout_cuda},
  };
  return op;
}

const Operator& dropout_add() {
  static const Operator op{
      kDropoutAdd,
      {.derivative = {{.op = "dropout", .inputs = {"dy", "seed"}, .gradients = {{"x", "y"}}},
                      {.gradients = {{"residual", "dy"}}}},
       .rule = rule<kDropoutAdd>,
       .cpu =
           [](const Call& call) {
             return cpu::elementwise<kDropoutAdd>(call, DropoutAdd{dropout_of<kDropoutAdd>(call)});
           },
       .cuda = dropout_add_cuda},
  };
  return op;
}

}  // namespace fusedops
