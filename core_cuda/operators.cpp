// The table of operators: add a line here for a new one.
#include "core/operator.h"
#include "ops/add.h"
#include "ops/axpby.h"
#include "ops/matmul.h"
#include "ops/polynomial_activation.h"
#include "ops/relu.h"
#include "ops/scale.h"

namespace fusedops {

std::span<const Operator* const> operators() {
  static const Operator* const table[] = {
      &add(),
      &axpby(),
      &axpby_backward(),
      &matmul(),
      &polynomial_activation(),
      &polynomial_activation_backward(),
      &relu(),
      &relu_backward(),
      &scale(),
  };
  return table;
}

}  // namespace fusedops
