#include "core/common/float8.h"

namespace fusedops {
namespace {

DType float8_dtype(std::string_view name) { return name == kFloat8s[1] ? DType::f8_e5m2 : DType::f8_e4m3fn; }

}  // namespace

Status float8_rule(Rule& rule, const Float8Places& at, const Shape& values, int like) {
  const std::string& scaling = rule.attributes[at.scaling];
  const DType scale_dtype = compute_dtype(rule.inputs[like].dtype);
  rule.outputs[at.y] = values;
  rule.outputs[at.y].dtype = float8_dtype(rule.attributes[at.dtype]);

  Shape scales = values;
  scales.dtype = scale_dtype;
  if (scaling == kScalings[0]) scales = Shape::of(scale_dtype);
  if (scaling == kScalings[1] && scales.ranked) scales.dims[scales.rank - 1] = 1;
  if (scaling == kScalings[2] && scales.ranked) {
    Dim& columns = scales.dims[scales.rank - 1];
    columns = rule.blocks(columns);
  }
  const Shape& given = rule.inputs[at.scale];
  rule.outputs[at.scales] = given.present ? Shape::of(scale_dtype, {0}) : scales;
  if (!given.present) return {};
  if (given.dtype != scale_dtype)
    return rule.must(at.scale, std::string("be ") + name_of(scale_dtype), name_of(given.dtype));
  if (scaling == kScalings[0]) return rule.has_one_element(at.scale, "have one element for scaling='tensor'");
  if (rule.same_shape(scales, given)) return {};
  return rule.must(at.scale, "have shape " + rule.show(scales) + " for scaling='" + scaling + "'", rule.show(given));
}

}  // namespace fusedops
