#include "ops/elementwise/dropout.h"

#include "core/cpu/elementwise.h"
#include "core/declaration/numbers.h"

namespace fusedops {

Status check_seed(Rule& rule, int seed) {
  Shape& shape = rule.inputs[seed];
  if (shape.dtype != DType::i64) return rule.must(seed, "be int64", name_of(shape.dtype));
  const bool is_part = shape.ranked && shape.rank == 1 && shape.dims[0] == Dropout::kPartNumbers;
  if (shape.ranked && !is_part && (shape.rank != 1 || !rule.same(shape.dims[0], Dropout::kNumbers)))
    return rule.must(seed, "have shape [2], a key and an offset, or [5] for a part", rule.show(shape));
  return {};
}

Status check_dropout(Rule& rule, int seed, AttributeIndex<double> dropout) {
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
  FUSEDOPS_TRY(elementwise_rule<kOp>(rule));
  return check_seed(rule, input_of(kOp, "seed"));
}

}  // namespace

Operator dropout() {
  return {kDropout,
          {.derivative = {{.op = "dropout", .inputs = {"dy", "seed"}, .gradients = {{"x", "y"}}}},
           .rule = rule<kDropout>,
           .cpu = [](const Call& call) { return cpu::elementwise<kDropout>(call, dropout_of<kDropout>(call)); },
           .cuda = dropout_cuda}};
}

Operator dropout_add() {
  return {kDropoutAdd,
          {.derivative = {{.op = "dropout", .inputs = {"dy", "seed"}, .gradients = {{"x", "y"}}},
                          {.gradients = {{"residual", "dy"}}}},
           .rule = rule<kDropoutAdd>,
           .cpu =
               [](const Call& call) {
                 return cpu::elementwise<kDropoutAdd>(call, DropoutAdd{dropout_of<kDropoutAdd>(call)});
               },
           .cuda = dropout_add_cuda}};
}

}  // namespace fusedops
