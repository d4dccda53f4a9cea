// Scalar and parameter operands of kernels, and the dispatch from a DType to an element type.
#pragma once

#include "core/common/element.h"
#include "core/declaration/operator.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace fusedops {

// A scalar operand: a host number, or one element in device memory, of the tensor's dtype or float32.
struct Scalar {
  const void* data = nullptr;
  DType dtype = DType::f64;
  double number = 0;

  template <class T>
  FUSEDOPS_HD compute_t<T> get() const {
    if (!data) return compute_t<T>(number);
    if (dtype == DType::f32) return *static_cast<const float*>(data);
    return to_compute(*static_cast<const T*>(data));
  }
};

inline Scalar scalar(const Call& call, int input) {
  const View* view = call.inputs[input];
  if (view) return {view->data, view->dtype, 0};
  return {nullptr, DType::f64, call.scalars[input]};
}

// An optional vector of parameters, such as a weight: of the tensor's dtype or float32.
struct Parameter {
  const void* data = nullptr;  // null: absent
  bool is_f32 = false;

  template <class T>
  FUSEDOPS_HD compute_t<T> get(int64_t i) const {
    if constexpr (!std::is_same_v<T, float>)
      if (!is_f32) return to_compute(static_cast<const T*>(data)[i]);
    return static_cast<const float*>(data)[i];
  }
};

inline Parameter parameter(const Call& call, int input) {
  const View* view = call.find(input);
  if (!view) return {};
  return {view->data, view->dtype == DType::f32};
}

template <class T>
struct Tag {
  using type = T;
};

// Calls body(Tag<T>()) with the element type of a floating dtype.
template <class Body>
Status dispatch(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f64:
      return body(Tag<double>());
    case DType::f32:
      return body(Tag<float>());
    case DType::f16:
      return body(Tag<f16>());
    case DType::bf16:
      return body(Tag<bf16>());
    default:
      return Status::error("fusedops: no kernel computes in ", name_of(dtype));
  }
}

}  // namespace fusedops
