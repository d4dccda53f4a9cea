#include "ops/optimizers/sgd.h"

#include "core/cpu/lists.h"

namespace fusedops {
namespace {

Status sgd_rule(Rule& rule) {
  constexpr int kParams = input_of(kSgd, "params"), kMomentums = input_of(kSgd, "momentums");
  FUSEDOPS_TRY(check_step<kSgd>(rule));
  if (rule.counts[kMomentums] > 0) FUSEDOPS_TRY(check_state(rule, kMomentums, kParams));
  return {};
}

Status sgd_cpu(const Call& call) {
  return with_sgd_update(call, [&]<class Update>(const Update& update, const ListViews<Update>& lists) {
    return cpu::update_lists(call.context, update, lists);
  });
}

}  // namespace

Operator sgd() { return {kSgd, {.rule = sgd_rule, .cpu = sgd_cpu, .cuda = sgd_cuda}}; }

}  // namespace fusedops
