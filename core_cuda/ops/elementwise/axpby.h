// axpby: y = a*x + b. Its gradient is one pass over dy and x: da = sum(dy * x), dx = a * dy; db is dy itself.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kAxpby{
    .name = "axpby",
    .inputs = {{"a", Kind::scalar}, {"x"}, {"b"}},
    .outputs = {{"y", "x"}},
    .axes = {{"1, ..., ... -> ..."}},
};

struct Axpby {
  Scalar a;

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    return [a = a.get<T>()](A x, A b) { return a * x + b; };
  }
};

Operator axpby();
FUSEDOPS_CUDA_KERNEL Status axpby_cuda(const Call& call);

// dx is returned empty if it is not needed.
inline constexpr Signature kAxpbyBackward{
    .name = "axpby_backward",
    .inputs = {{"dy"}, {"a", Kind::scalar}, {"x"}},
    .outputs = {{"da", "a"}, {"dx", "x"}},
    .attributes = {{"need_dx", Type::boolean, "true"}},
    .axes = {{"..., 1, ... -> 1/..., ..."}},
};

Operator axpby_backward();
FUSEDOPS_CUDA_KERNEL Status axpby_backward_cuda(const Call& call);

template <class T>
struct AxpbyBackward {
  explicit AxpbyBackward(const Call& call)
      : n(call.inputs[input_of(kAxpbyBackward, "x")]->numel()),
        dy(call.input<T>(input_of(kAxpbyBackward, "dy"))),
        x(call.input<T>(input_of(kAxpbyBackward, "x"))),
        a(scalar(call, input_of(kAxpbyBackward, "a"))),
        da(call.outputs[output_of(kAxpbyBackward, "da")]),
        dx(call.attributes[attribute_of<bool>(kAxpbyBackward, "need_dx")]
               ? call.output<T>(output_of(kAxpbyBackward, "dx"))
               : nullptr),
        partials(static_cast<compute_t<T>*>(call.workspace)) {}

  int64_t n;
  const T *dy, *x;
  Scalar a;
  View da;  // of x's dtype or float32
  T* dx;    // null: not needed
  compute_t<T>* partials;
};

}  // namespace fusedops
