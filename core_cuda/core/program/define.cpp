#include "core/program/define.h"

#include <deque>
#include <mutex>

#include "core/declaration/thread_local_text.h"

namespace fusedops::program {
namespace {

// Names are never freed, like the operators.
const char* interned(std::string text) {
  static std::deque<std::string>& texts = *new std::deque<std::string>();
  return texts.emplace_back(std::move(text)).c_str();
}

void declare_arguments(const FusedopsDefinition& given, ProgramOperator& op) {
  op.name = interned(given.name);
  for (int i = 0; i < given.inputs; ++i) {
    op.inputs.add({.name = interned(given.input[i].name), .kind = static_cast<Kind>(given.input[i].kind)});
  }
  for (int i = 0; i < given.results; ++i) {
    const int like = given.result[i].result.like;
    op.outputs.add({interned(given.result[i].name), like < 0 ? "common()" : op.inputs[like].name});
    if (given.needs) op.attributes.add({interned(std::string("need_") + given.result[i].name), Type::boolean, "true"});
  }
}

// All inputs broadcast. A gradient has the shape of its input, summed over the broadcast axes.
std::string axes(const FusedopsDefinition& given) {
  const std::string last = given.reductions > 0 ? "C" : "";
  const auto input = [&](int i) {
    return static_cast<Kind>(given.input[i].kind) == Kind::scalar ? std::string("1") : "~..." + last;
  };
  std::string text;
  for (int i = 0; i < given.inputs; ++i) text += (i ? ", " : "") + input(i);
  text += " -> ";
  for (int i = 0; i < given.results; ++i) {
    const int like = given.result[i].result.like;
    const std::string result = like == kLikeAll ? "..." + last : like == kLikeRows ? "...S" : input(like);
    text += (i ? ", " : "") + (result == "1" ? "1/..." : result);
  }
  return text;
}

// The backward takes the inputs and the upstream gradients, in this order.
Step derivative(const FusedopsDefinition& given, const ProgramOperator& op) {
  Step step{.op = interned(given.backward), .gradients = {}};
  for (int i = 0; i < given.inputs; ++i) {
    step.inputs.push_back(op.inputs[i].name);
    step.gradients.push_back({op.inputs[i].name, interned(given.gradients[i])});
  }
  for (const Output& output : op.outputs) step.inputs.push_back(interned(std::string("d") + output.name));
  return step;
}

void copy_program(const FusedopsDefinition& given, Program& program) {
  program.reductions.assign(given.reduction, given.reduction + given.reductions);
  for (int i = 0; i < given.results; ++i) program.results.push_back(given.result[i].result);
  const Instruction* code = given.code;
  for (int i = 0; i < given.stages; code += given.stage_size[i], ++i)
    program.stages.emplace_back(code, code + given.stage_size[i]);
  program.has_needs = given.needs != 0;
  program.source = given.source;
}

Status define(const FusedopsDefinition& given) {
  if (given.inputs > kMaxInputs || given.results > kMaxOutputs)
    return Status::error("fusedops.", given.name, ": a program must have at most ", std::to_string(kMaxInputs),
                         " inputs and ", std::to_string(kMaxOutputs), " results; got ", std::to_string(given.inputs),
                         " and ", std::to_string(given.results));
  auto op = std::make_unique<ProgramOperator>();
  declare_arguments(given, *op);
  copy_program(given, op->program);
  if (given.backward) op->derivative = {derivative(given, *op)};
  op->rule = rule;
  op->workspace = workspace;
  op->cpu = cpu;
  op->cuda = cuda;
  op->axes = {{interned(axes(given))}};
  const Operator* const added = op.get();
  FUSEDOPS_TRY(add_operators({&added, 1}));
  (void)op.release();  // owned by the table
  return {};
}

}  // namespace
}  // namespace fusedops::program

const char* fusedops_define(const FusedopsDefinition* definition) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const fusedops::Status status = fusedops::program::define(*definition);
  return status.ok() ? nullptr : fusedops::thread_local_text(status.sentence());
}
