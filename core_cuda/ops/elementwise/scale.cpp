#include "ops/elementwise/scale.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status scale_cpu(const Call& call) {
  const Scalar factor = scalar(call, input_of(kScale, "factor"));
  const View& y = result_of<kScale>(call);
  if (call.inputs[input_of(kScale, "x")]->data != y.data) return cpu::elementwise<kScale>(call, Scale{factor});
  return dispatch(y.dtype, [&](auto tag) {
    const bool is_one = factor.get<typename decltype(tag)::type>() == 1;
    return is_one ? Status() : cpu::elementwise<kScale>(call, Scale{factor});
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
