#include "ops/normalization/norm.h"

#include "ops/elementwise/dropout.h"

namespace fusedops {

Status norm_forward_rule(Rule& rule, const NormForwardPlaces& at) {
  FUSEDOPS_TRY(rule.has_rows(at.x));
  if (at.residual != kNowhere) FUSEDOPS_TRY(rule.same_as(at.residual, at.x));
  FUSEDOPS_TRY(rule.has_rows(at.x));  // again, with what the residual says of x
  FUSEDOPS_TRY(rule.per_column(at.weight, at.x));
  if (at.bias != kNowhere) FUSEDOPS_TRY(rule.per_column(at.bias, at.x));
  if (at.seed != kNowhere) FUSEDOPS_TRY(check_seed(rule, at.seed));

  const Shape &x = rule.inputs[at.x], statistic = rule.row_shape(at.x, compute_dtype(x.dtype));
  rule.outputs[at.y] = x;
  if (at.s != kNowhere) rule.outputs[at.s] = x;
  if (at.mean != kNowhere) rule.outputs[at.mean] = statistic;
  if (at.rstd != kNowhere) rule.outputs[at.rstd] = statistic;
  return at.float8.are_there() ? float8_rule(rule, at.float8, x, at.x) : Status();
}

Status norm_backward_rule(Rule& rule, const NormBackwardPlaces& at) {
  FUSEDOPS_TRY(rule.has_rows(at.x));
  FUSEDOPS_TRY(rule.same_as(at.dy, at.x));
  FUSEDOPS_TRY(rule.has_rows(at.x));  // again, with what dy says of x
  FUSEDOPS_TRY(rule.per_column(at.weight, at.x));
  if (at.bias != kNowhere) FUSEDOPS_TRY(rule.per_column(at.bias, at.x));
  if (at.mean != kNowhere) FUSEDOPS_TRY(rule.per_row(at.mean, at.x));
  FUSEDOPS_TRY(rule.per_row(at.rstd, at.x));
  if (rule.inputs[at.ds].present) FUSEDOPS_TRY(rule.same_as(at.ds, at.x));
  if (at.seed != kNowhere) FUSEDOPS_TRY(check_seed(rule, at.seed));

  const Shape& x = rule.inputs[at.x];
  const auto gradient = [&](const Shape& input, AttributePlace<bool> need) {
    const bool needed = input.present && rule.attributes[need];
    return needed ? input : Shape::of(input.present ? input.dtype : x.dtype, {0});
  };
  rule.outputs[at.dx] = gradient(x, at.need_dx);
  if (at.dresidual != kNowhere) rule.outputs[at.dresidual] = gradient(x, at.need_dresidual);
  rule.outputs[at.dweight] = gradient(rule.inputs[at.weight], at.need_dweight);
  if (at.bias != kNowhere) rule.outputs[at.dbias] = gradient(rule.inputs[at.bias], at.need_dbias);
  return {};
}

}  // namespace fusedops
