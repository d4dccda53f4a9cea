#include "ops/elementwise/scale.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status scale_cpu(const Call& call) {
  const Scale scale{scalar(call, input_of(kScale, "factor"))};
  return dispatch(result_of<kScale>(call).dtype, [&](auto tag) {
    if (is_in_place(call) && scale.factor.get<typename decltype(tag)::type>() == 1) return Status();
    return cpu::elementwise<kScale>(call, scale);
  });
}

}  // namespace

Operator scale() {
  return {kScale,
          {.derivative = {{.op = "axpby_backward",
                           .inputs = {"dy", "factor", "x"},
                           .gradients = {{"factor", "da"}, {"x", "dx"}},
                           .if_wanted = "factor"},
                          {.op = "scale", .inputs = {"dy", "factor"}, .gradients = {{"x", "y"}}}},
           .rule = elementwise_rule<kScale>,
           .cpu = scale_cpu,
           .cuda = scale_cuda}};
}

}  // namespace fusedops
