#include "ops/elementwise/add.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status add_cpu(const Call& call) { return cpu::elementwise<kAdd>(call, Add{}); }

}  // namespace

Operator add() {
  return {kAdd,
          {.derivative = {{.gradients = {{"x", "dsum"}, {"y", "dsum"}}}},
           .rule = elementwise_rule<kAdd>,
           .cpu = add_cpu,
           .cuda = add_cuda}};
}

}  // namespace fusedops
