#include "ops/products/accumulate_matmul.h"

namespace fusedops {
namespace {

constexpr int kTotal = input_of(kAccumulateMatmul, "total"), kA = input_of(kAccumulateMatmul, "a"),
              kB = input_of(kAccumulateMatmul, "b");
constexpr auto kTransposeA = attribute_of<bool>(kAccumulateMatmul, "transpose_a");
constexpr auto kTransposeB = attribute_of<bool>(kAccumulateMatmul, "transpose_b");

Status total_rule(Rule& rule) {
  Shape product;
  FUSEDOPS_TRY(product_rule(rule, kA, kB, rule.attributes[kTransposeA], rule.attributes[kTransposeB], &product));
  Shape& total = rule.inputs[kTotal];
  const DType dtype = compute_dtype(product.dtype);
  if (total.dtype != dtype) return rule.must(kTotal, std::string("be ") + name_of(dtype), name_of(total.dtype));
  return rule.same_shape(product, total)
             ? Status()
             : rule.must(kTotal, "have the shape of the product, " + rule.show(product), rule.show(total));
}

size_t total_workspace(const Call& call) { return call.context.cuda ? accumulated_product(call).workspace() : 0; }

Status total_cpu(const Call& call) { return multiply_cpu(accumulated_product(call), call.context); }

}  // namespace

Matmul accumulated_product(const Call& call) {
  return Matmul::of(*call.inputs[kA], *call.inputs[kB], call.attributes[kTransposeA], call.attributes[kTransposeB],
                    *call.inputs[kTotal])
      .to_sums(/*add=*/true);
}

Operator accumulate_matmul() {
  return {kAccumulateMatmul,
          {.rule = total_rule, .workspace = total_workspace, .cpu = total_cpu, .cuda = accumulate_matmul_cuda}};
}

}  // namespace fusedops
