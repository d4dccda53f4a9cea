// The table of operators: add a line here for a new one.
#include "core/operator.h"
#include "ops/add.h"
#include "ops/axpby.h"
#include "ops/bias_act.h"
#include "ops/cross_entropy.h"
#include "ops/gated_act.h"
#include "ops/layer_norm.h"
#include "ops/matmul.h"
#include "ops/matmul_backward.h"
#include "ops/polynomial_activation.h"
#include "ops/relu.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/scale.h"
#include "ops/softmax.h"

namespace fusedops {

std::span<const Operator* const> operators() {
  static const Operator* const table[] = {
      &add(),
      &add_layer_norm(),
      &add_rms_norm(),
      &axpby(),
      &axpby_backward(),
      &bias_act(),
      &bias_act_backward(),
      &cross_entropy(),
      &cross_entropy_backward(),
      &gated_act(),
      &gated_act_backward(),
      &layer_norm(),
      &layer_norm_backward(),
      &matmul(),
      &matmul_backward(),
      &polynomial_activation(),
      &polynomial_activation_backward(),
      &relu(),
      &relu_backward(),
      &rms_norm(),
      &rms_norm_backward(),
      &rope(),
      &scale(),
      &softmax(),
      &softmax_backward(),
  };
  return table;
}

}  // namespace fusedops
