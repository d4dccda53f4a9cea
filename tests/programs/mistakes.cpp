// A library with an author's mistakes: loop(x, cost, fails) = x by a loop of that cost, whose body may throw as if
// memory was exhausted; silent(x), whose infer sets no output; plain(x) = x, whose gradient is a formula.
#include <algorithm>
#include <new>

#include "core/common/numeric.h"
#include "core/declaration/library.h"

namespace fusedops {
namespace {

constexpr Signature kLoop{
    .name = "loop",
    .inputs = {{"x"}},
    .outputs = {{"y", "x"}},
    .attributes = {{"cost", Type::i64, "1"}, {"fails", Type::boolean, "false"}},
};
constexpr Signature kSilent{.name = "silent", .inputs = {{"x"}}, .outputs = {{"y", "x"}}};
constexpr Signature kPlain{.name = "plain", .inputs = {{"x"}}, .outputs = {{"y", "x"}}};

Status copied_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(0));
  rule.outputs[0] = rule.inputs[0];
  return {};
}

Status silent_rule(Rule&) { return {}; }

Status copy(const Call& call, int64_t cost, bool fails) {
  return dispatch(call.inputs[0]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* const x = call.input<T>(0);
    T* const y = call.output<T>(0);
    call.context.parallel_for(call.inputs[0]->numel(), cost, [&](int64_t begin, int64_t end) {
      if (fails) throw std::bad_alloc();
      std::copy(x + begin, x + end, y + begin);
    });
    return Status();
  });
}

Status loop_cpu(const Call& call) {
  return copy(call, call.attributes[attribute_of<int64_t>(kLoop, "cost")],
              call.attributes[attribute_of<bool>(kLoop, "fails")]);
}

Status plain_cpu(const Call& call) { return copy(call, 1, false); }

const Operator& loop() {
  static const Operator op{kLoop, {.rule = copied_rule, .cpu = loop_cpu}};
  return op;
}

const Operator& silent() {
  static const Operator op{kSilent, {.rule = silent_rule, .cpu = plain_cpu}};
  return op;
}

const Operator& plain() {
  static const Operator op{kPlain, {.rule = copied_rule, .cpu = plain_cpu}};
  return op;
}

}  // namespace
}  // namespace fusedops

FUSEDOPS_LIBRARY(&fusedops::loop(), &fusedops::silent(), &fusedops::plain())
