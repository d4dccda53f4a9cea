#include "ops/elementwise/relu.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status relu_cpu(const Call& call) { return cpu::elementwise<kRelu>(call, Relu{}); }

Status relu_backward_cpu(const Call& call) { return cpu::elementwise<kReluBackward>(call, ReluBackward{}); }

}  // namespace

Operator relu() {
  return with_backward(kRelu, kReluBackward, {.rule = elementwise_rule<kRelu>, .cpu = relu_cpu, .cuda = relu_cuda});
}

Operator relu_backward() {
  return {kReluBackward,
          {.rule = elementwise_rule<kReluBackward>, .cpu = relu_backward_cpu, .cuda = relu_backward_cuda}};
}

}  // namespace fusedops
