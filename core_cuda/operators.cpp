// The built-in operators. A new operator gets a line here.
#include "core/declaration/operator.h"
#include "core/declaration/parts.h"
#include "ops/activations/bias_act.h"
#include "ops/activations/gated_act.h"
#include "ops/attention/attention.h"
#include "ops/attention/softmax.h"
#include "ops/elementwise/add.h"
#include "ops/elementwise/axpby.h"
#include "ops/elementwise/dropout.h"
#include "ops/elementwise/polynomial_activation.h"
#include "ops/elementwise/relu.h"
#include "ops/elementwise/scale.h"
#include "ops/experts/experts.h"
#include "ops/experts/grouped_matmul.h"
#include "ops/loss/cross_entropy.h"
#include "ops/loss/linear_cross_entropy.h"
#include "ops/loss/linear_kl_div.h"
#include "ops/loss/linear_log_prob.h"
#include "ops/normalization/norm.h"
#include "ops/normalization/rms_norm_rope.h"
#include "ops/optimizers/adamw.h"
#include "ops/optimizers/global_norm.h"
#include "ops/optimizers/sgd.h"
#include "ops/products/accumulate_matmul.h"
#include "ops/products/gated_linear.h"
#include "ops/products/gated_linear_backward.h"
#include "ops/products/linear.h"
#include "ops/products/matmul.h"
#include "ops/products/matmul_backward.h"
#include "ops/rotary/rope.h"

namespace fusedops {

std::span<const Operator> built_in_operators() {
  static const Operator table[] = {
      accumulate_matmul(),
      add(),
      add_layer_norm(),
      add_rms_norm(),
      add_rms_norm_float8(),
      adamw(),
      attention(),
      attention_backward(),
      attention_lse(),
      attention_varlen(),
      attention_varlen_backward(),
      attention_varlen_lse(),
      axpby(),
      axpby_backward(),
      bias_act(),
      bias_act_backward(),
      bias_act_float8(),
      cross_entropy(),
      cross_entropy_backward(),
      dropout(),
      dropout_add(),
      experts(),
      experts_backward(),
      gated_act(),
      gated_act_backward(),
      gated_act_float8(),
      gated_linear(),
      gated_linear_backward(),
      global_norm(),
      grouped_matmul(),
      grouped_matmul_backward(),
      layer_norm(),
      layer_norm_backward(),
      layer_norm_float8(),
      linear(),
      linear_backward(),
      linear_cross_entropy(),
      linear_cross_entropy_backward(),
      linear_kl_div(),
      linear_kl_div_backward(),
      linear_log_prob(),
      linear_log_prob_backward(),
      matmul(),
      matmul_backward(),
      polynomial_activation(),
      polynomial_activation_backward(),
      relu(),
      relu_backward(),
      rms_norm(),
      rms_norm_backward(),
      rms_norm_float8(),
      rms_norm_rope(),
      rms_norm_rope_backward(),
      rope(),
      scale(),
      sgd(),
      softmax(),
      softmax_backward(),
      softmax_bias_backward(),
  };
  return table;
}

std::span<const Parts> built_in_parts() {
  static const Parts table[] = {gated_linear_backward_parts()};
  return table;
}

}  // namespace fusedops
