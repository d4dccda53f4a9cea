#include "core/program/interpreter/fuse.h"

#include "core/program/interpreter/loops.h"

namespace fusedops::program::interpreter {
namespace {

// The number of uses of each value in the whole program.
std::vector<int> uses_in(const Program& program, int stage) {
  const auto& code = program.stages[stage];
  std::vector<int> uses(code.size());
  for (const Instruction& instruction : code)
    for (int k = 0; k < operands_of(instruction.op); ++k) ++uses[operands(instruction)[k]];
  for (const Reduction& reduction : program.reductions)
    if (reduction.stage == stage) ++uses[reduction.value];
  if (stage + 1 == static_cast<int>(program.stages.size()))
    for (const Result& result : program.results) ++uses[result.value];
  return uses;
}

struct Pair {
  Op outer, inner;
  int operand;  // operand of the outer instruction that the inner one computes
  Op both;      // the fused operation: the inner one's operands, then the outer one's other operand
};

constexpr Pair kPairs[] = {
    {Op::mul, Op::mul, 0, kMulMul}, {Op::mul, Op::mul, 1, kMulMul}, {Op::mul, Op::add, 0, kAddMul},
    {Op::mul, Op::add, 1, kAddMul}, {Op::mul, Op::sub, 0, kSubMul}, {Op::mul, Op::sub, 1, kSubMul},
    {Op::add, Op::add, 0, kAddAdd}, {Op::add, Op::add, 1, kAddAdd},
};

}  // namespace

void fuse(const Program& program, int stage, StageCode& code) {
  const std::vector<int> uses = uses_in(program, stage);
  const auto alone = [&](int value) { return uses[value] == 1 && code.levels[value] == Level::element; };
  for (const Reduction& reduction : program.reductions) {
    if (reduction.stage != stage || reduction.fold == Fold::max || reduction.fold == Fold::min) continue;
    Instruction& terms = code.instructions[reduction.value];
    if (terms.op == Op::mul && alone(reduction.value) && code.levels[terms.a] == Level::element &&
        code.levels[terms.b] == Level::element)
      terms.op = kProduct;
  }
  for (size_t i = 0; i < code.instructions.size(); ++i) {
    Instruction& outer = code.instructions[i];
    if (!code.needed[i] || code.levels[i] != Level::element) continue;
    for (const Pair& pair : kPairs) {
      if (pair.outer != outer.op) continue;
      const int first = operands(outer)[pair.operand], other = operands(outer)[1 - pair.operand];
      const Instruction& inner = code.instructions[first];
      if (pair.inner != inner.op || !alone(first)) continue;
      outer = {pair.both, inner.a, inner.b, other, 0};
      code.needed[first] = false;
      break;
    }
  }
}

}  // namespace fusedops::program::interpreter
