// scale: y = x * factor. It is axpby without b, and shares its backward.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kScale{
    .name = "scale",
    .inputs = {{"x"}, {"factor", Kind::scalar}},
    .outputs = {{"y", "x"}},
    .axes = {{"..., 1 -> ..."}},
};

struct Scale {
  Scalar factor;

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    return [factor = factor.get<T>()](compute_t<T> x) { return x * factor; };
  }
};

// True if y has the memory of x, as in a call of another operator. A factor of 1 then takes no time.
inline bool is_in_place(const Call& call) {
  return call.inputs[input_of(kScale, "x")]->data == call.outputs[output_of(kScale, "y")].data;
}

Operator scale();
FUSEDOPS_CUDA_KERNEL Status scale_cuda(const Call& call);

}  // namespace fusedops
