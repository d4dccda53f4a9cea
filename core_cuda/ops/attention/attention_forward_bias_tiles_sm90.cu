#include "ops/attention/attention_sm90_forward.cuh"

namespace fusedops::cuda {
namespace sm90 {

// kMasked, since the bits of pairs tell which rows see a key.
template <class T>
using ForwardKernel = Forward<T, 128, 128, 128, 2, /*kMasked=*/true, Terms::bias_tiles>;

}  // namespace sm90

Status attention_bias_tiles_sm90(const Attention& call, void* workspace, const Context& context) {
  return call.dtype == DType::f16 ? sm90::launch_forward<sm90::ForwardKernel<f16>>(call, workspace, context)
                                  : sm90::launch_forward<sm90::ForwardKernel<bf16>>(call, workspace, context);
}

}  // namespace fusedops::cuda
