// axpby: y = a*x + b. Its gradient is one pass over dy and x: da = sum(dy * x), dx = a * dy; db is dy itself.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

struct Axpby {
  enum : int { kA, kX, kB };
  Scalar a;

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    return [a = a.get<T>()](A x, A b) { return a * x + b; };
  }
};

// (a, x, b) -> y
const Operator& axpby();
FUSEDOPS_CUDA_KERNEL Status axpby_cuda(const Call& call);

// (dy, a, x, *, need_dx) -> (da, dx); a dx that is not needed is returned empty.
const Operator& axpby_backward();
FUSEDOPS_CUDA_KERNEL Status axpby_backward_cuda(const Call& call);

struct AxpbyBackwardPlaces {
  enum : int { kDy, kA, kX };
  enum : int { kDa, kDx };  // of the outputs
};

// The call of axpby_backward, its arguments by name.
template <class T>
struct AxpbyBackward : AxpbyBackwardPlaces {
  explicit AxpbyBackward(const Call& call)
      : n(call.inputs[kX]->numel()),
        dy(static_cast<const T*>(call.inputs[kDy]->data)),
        x(static_cast<const T*>(call.inputs[kX]->data)),
        a(scalar(call, kA)),
        da(call.outputs[kDa]),
        dx(call.attributes[0].i64 ? static_cast<T*>(call.outputs[kDx].data) : nullptr),
        partials(static_cast<compute_t<T>*>(call.workspace)) {}

  int64_t n;
  const T *dy, *x;
  Scalar a;
  View da;  // of x's dtype or float32
  T* dx;    // null: not needed
  compute_t<T>* partials;
};

}  // namespace fusedops
