#include "ops/attention/attention_sm90_backward.cuh"

namespace fusedops::cuda {
namespace sm90 {

// kMasked, since the bits of pairs tell which rows see a key.
template <class T>
using BackwardKernel = Backward<T, 64, 128, 128, /*kMasked=*/true, Terms::bias_tiles>;

}  // namespace sm90

Status attention_bias_tiles_sm90_backward(const Attention& call, void* workspace, const Context& context) {
  return call.dtype == DType::f16 ? sm90::launch_backward<sm90::BackwardKernel<f16>>(call, workspace, context)
                                  : sm90::launch_backward<sm90::BackwardKernel<bf16>>(call, workspace, context);
}

}  // namespace fusedops::cuda
