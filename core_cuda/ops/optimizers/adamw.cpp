#include "ops/optimizers/adamw.h"

#include "core/cpu/lists.h"

namespace fusedops {
namespace {

constexpr int kParams = input_of(kAdamw, "params"), kSteps = input_of(kAdamw, "steps");
constexpr int kStep = input_of(kAdamw, "step"), kMasters = input_of(kAdamw, "masters");

Status check_steps(Rule& rule) {
  const bool has_common_step = rule.inputs[kStep].present;
  if (has_common_step != (rule.counts[kSteps] > 0)) {
    if (has_common_step) return rule.one_element(kStep, kParams);
    FUSEDOPS_TRY(rule.one_element_each(kSteps, kParams));
    const DType dtype = rule.inputs[kSteps].dtype;
    return dtype == DType::f32 ? Status() : rule.must(kSteps, "be float32", name_of(dtype));
  }
  return rule.must(kSteps, "be given, or step in its place", has_common_step ? "both" : "neither");
}

Status check_masters(Rule& rule) {
  if (rule.counts[kMasters] == 0) return {};
  const DType params = rule.inputs[kParams].dtype, masters = rule.inputs[kMasters].dtype;
  if (size_of(params) != 2) return rule.must(kMasters, "be left out unless params have 16 bits", name_of(params));
  if (masters != DType::f32) return rule.must(kMasters, "be float32", name_of(masters));
  return rule.same_shapes(kMasters, kParams);
}

Status adamw_rule(Rule& rule) {
  constexpr int kFirst = input_of(kAdamw, "exp_avgs"), kSecond = input_of(kAdamw, "exp_avg_sqs");
  constexpr int kLargest = input_of(kAdamw, "max_exp_avg_sqs");
  FUSEDOPS_TRY(check_step<kAdamw>(rule));
  FUSEDOPS_TRY(check_state(rule, kFirst, kParams));
  FUSEDOPS_TRY(check_state(rule, kSecond, kParams));
  FUSEDOPS_TRY(rule.same_dtype(kSecond, kFirst));
  if (rule.counts[kLargest] > 0) {
    FUSEDOPS_TRY(rule.same_shapes(kLargest, kParams));
    FUSEDOPS_TRY(rule.same_dtype(kLargest, kFirst));
  }
  FUSEDOPS_TRY(check_steps(rule));
  FUSEDOPS_TRY(check_masters(rule));
  const DType states = rule.inputs[kFirst].dtype;
  if (rule.counts[kMasters] > 0 && states != DType::f32)
    return rule.must(kFirst, "be float32 beside masters", name_of(states));
  return {};
}

// Workspace for the factors: one set per parameter, or one for all.
size_t adamw_workspace(const Call& call) {
  const size_t sets = call.inputs[kStep] ? 1 : call.list(kParams).size();
  const bool wide = call.list(kParams)[0].dtype == DType::f64;
  return sets * (wide ? sizeof(AdamwFactors<double>) : sizeof(AdamwFactors<float>));
}

// Neighbours that have taken the same number of steps share the computation; most have.
template <class T>
void compute_factors(const Call& call, const AdamwOptions& options) {
  auto* const factors = static_cast<AdamwFactors<compute_t<T>>*>(call.workspace);
  if (call.inputs[kStep]) {
    factors[0] = options.factors<T>(scalar(call, kStep).get<T>());
    return;
  }
  const auto steps = call.list(kSteps);
  const auto step = [&](size_t place) { return static_cast<float*>(steps[place].data); };
  for (size_t place = 0; place < steps.size(); ++place) {
    const bool same = place > 0 && *step(place) == *step(place - 1);
    factors[place] = same ? factors[place - 1] : options.factors<T>(*step(place));
  }
}

Status adamw_cpu(const Call& call) {
  const AdamwOptions options(call);
  bool skipped = false;
  FUSEDOPS_TRY(dispatch(call.list(kParams)[0].dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    compute_factors<T>(call, options);
    skipped = options.scalars.skipped<T>();
    return {};
  }));
  FUSEDOPS_TRY(
      with_adamw_update(call, options, [&]<class Update>(const Update& update, const ListViews<Update>& lists) {
        return cpu::update_lists(call.context, update, lists);
      }));
  for (const View& step : call.list(kSteps)) *static_cast<float*>(step.data) += skipped ? 0 : 1;
  return {};
}

}  // namespace

Operator adamw() {
  return {kAdamw, {.rule = adamw_rule, .workspace = adamw_workspace, .cpu = adamw_cpu, .cuda = adamw_cuda}};
}

}  // namespace fusedops
