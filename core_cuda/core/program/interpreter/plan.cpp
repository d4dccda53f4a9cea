#include "core/program/interpreter/plan.h"

#include <algorithm>

#include "core/program/interpreter/fuse.h"
#include "core/program/interpreter/loops.h"

namespace fusedops::program::interpreter {
namespace {

// Marks the instructions that the marked ones depend on.
void mark_needed(const std::vector<Instruction>& code, std::vector<bool>& needed) {
  for (size_t i = code.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (int k = 0; k < operands_of(code[i].op); ++k) needed[operands(code[i])[k]] = true;
  }
}

// The instructions of each stage, and the reductions, that the wanted results need.
struct Needed {
  std::vector<std::vector<bool>> code;
  std::vector<bool> reductions;

  Needed(const Program& program, uint32_t wanted) : reductions(program.reductions.size()) {
    for (const auto& stage : program.stages) code.emplace_back(stage.size());
    const int last = static_cast<int>(program.stages.size()) - 1;
    for (size_t i = 0; i < program.results.size(); ++i)
      if (wanted >> i & 1) code[last][program.results[i].value] = true;
    for (int stage = last; stage >= 0; --stage) {
      for (size_t i = 0; i < reductions.size(); ++i)
        if (reductions[i] && program.reductions[i].stage == stage) code[stage][program.reductions[i].value] = true;
      mark_needed(program.stages[stage], code[stage]);
      for (size_t i = 0; i < code[stage].size(); ++i)
        if (code[stage][i] && program.stages[stage][i].op == Op::reduced) reductions[program.stages[stage][i].a] = true;
    }
  }
};

// Writes the steps of one stage.
class StageWriter {
 public:
  StageWriter(const Program& program, const Traits& traits, const Needed& needed, int number, Plan& plan)
      : program_(program), traits_(traits), plan_(plan), values_(program.stages[number].size()) {
    StageCode code{program.stages[number], needed.code[number], std::vector<Level>(values_.size())};
    for (size_t i = 0; i < values_.size(); ++i) {
      code.levels[i] = level_of(code.instructions[i], code.levels);
      values_[i].level = code.levels[i];
    }
    fuse(program, number, code);
    code_ = std::move(code.instructions);
    needed_ = std::move(code.needed);
    for (size_t i = 0; i < program.reductions.size(); ++i) {
      const Reduction& reduction = program.reductions[i];
      if (!needed.reductions[i] || reduction.stage != number) continue;
      stage_.reductions.push_back(static_cast<int>(i));
      add_sink(reduction.value, {.kind = StepKind::fold, .which = static_cast<int>(i)});
    }
    if (number + 1 == static_cast<int>(program.stages.size()))
      for (size_t i = 0; i < program.results.size(); ++i)
        if (traits.wanted >> i & 1)
          add_sink(program.results[i].value, {.kind = StepKind::store, .which = static_cast<int>(i)});
  }

  Stage write() {
    count_uses();
    for (size_t i = 0; i < code_.size(); ++i) {
      if (!needed_[i]) continue;
      write_value(static_cast<int>(i));
      for (const PlanStep& sink : values_[i].sinks) write_sink(static_cast<int>(i), sink);
    }
    return std::move(stage_);
  }

 private:
  struct Value {
    Level level = Level::call;
    int place = -1;
    int elements = -1;            // the place of its elements
    int uses = 0;                 // remaining uses of the elements
    std::vector<PlanStep> sinks;  // folds and results that read the value
  };

  std::vector<PlanStep>& steps(Level level) { return stage_.of_level[static_cast<int>(level)]; }
  int& count(Level level) { return plan_.places[static_cast<int>(level)]; }

  void add_sink(int value, PlanStep sink) { values_[value].sinks.push_back(sink); }

  Level level_of(const Instruction& instruction, const std::vector<Level>& levels) const {
    if (instruction.op == Op::input) return traits_.inputs[instruction.a];
    if (instruction.op == Op::reduced) return Level::row;
    Level level = Level::call;
    for (int k = 0; k < operands_of(instruction.op); ++k) level = std::max(level, levels[operands(instruction)[k]]);
    return level;
  }

  // True if an instruction on elements reads an operand of this level as elements.
  bool read_as_elements(Level level) const {
    return level == Level::element || (level == Level::row && traits_.short_rows);
  }

  // True if a sink reads elements. Folds, and results of one element per row, read a row's value directly.
  bool read_as_elements(const PlanStep& sink, Level level) const {
    return level == Level::element || (sink.kind == StepKind::store && program_.results[sink.which].like != kLikeRows);
  }

  void count_uses() {
    for (size_t i = 0; i < code_.size(); ++i) {
      if (!needed_[i]) continue;
      if (code_[i].op != kProduct)
        for (const PlanStep& sink : values_[i].sinks) values_[i].uses += read_as_elements(sink, values_[i].level);
      if (values_[i].level != Level::element) continue;
      for (int k = 0; k < operands_of(code_[i].op); ++k) {
        Value& operand = values_[operands(code_[i])[k]];
        if (read_as_elements(operand.level)) ++operand.uses;
      }
    }
  }

  int new_place(Level level) {
    if (level == Level::element && !free_.empty()) {
      const int place = free_.back();
      free_.pop_back();
      return place;
    }
    if (level == Level::element) return kElements + elements_++;
    return (level == Level::row ? kRows : 0) + count(level)++;
  }

  void release(int value) {
    Value& of = values_[value];
    if (--of.uses == 0) free_.push_back(of.elements);
  }

  void load(int value) {
    const int input = code_[value].a;
    Value& of = values_[value];
    of.place = new_place(of.level);
    PlanStep step{.kind = StepKind::load, .which = input, .to = of.place};
    if (of.level == Level::element) of.elements = of.place;
    if (of.level != Level::call) {
      step.again = std::find(plan_.inputs.begin(), plan_.inputs.end(), input) != plan_.inputs.end();
      if (!step.again) plan_.inputs.push_back(input);
      if (step.again && of.level == Level::element) plan_.read_again |= uint32_t(1) << input;
    }
    steps(of.level).push_back(step);
  }

  // The place of a value's elements, which are loaded or expanded at the first use.
  int element_place(int value) {
    Value& of = values_[value];
    if (of.level == Level::element && of.place < 0) load(value);
    if (of.elements < 0) {
      of.elements = new_place(Level::element);
      steps(Level::element)
          .push_back({.kind = StepKind::expand, .a = of.place, .to = of.elements, .levels = {of.level}});
    }
    return of.elements;
  }

  void write_value(int i) {
    const Instruction& instruction = code_[i];
    Value& value = values_[i];
    if (instruction.op == kProduct) return;  // its sink reads the operands
    switch (instruction.op) {
      case Op::input:
        if (value.level != Level::element) load(i);
        break;
      case Op::constant:
        value.place = new_place(Level::call);
        steps(Level::call).push_back({.kind = StepKind::constant, .to = value.place, .value = instruction.value});
        break;
      case Op::reduced:
        value.place = plan_.reduced[instruction.a];
        break;
      default:
        write_compute(i);
    }
  }

  void write_sink(int value, PlanStep sink) {
    const Instruction& instruction = code_[value];
    sink.levels[0] = values_[value].level;
    if (instruction.op == kProduct) {
      sink.product = true;
      sink.a = element_place(instruction.a);
      sink.b = element_place(instruction.b);
      steps(Level::element).push_back(sink);
      release(instruction.a);
      release(instruction.b);
    } else if (read_as_elements(sink, sink.levels[0])) {
      sink.a = element_place(value);
      steps(Level::element).push_back(sink);
      release(value);
    } else {
      sink.a = values_[value].place;
      steps(Level::row).push_back(sink);
    }
  }

  void write_compute(int i) {
    const Instruction& instruction = code_[i];
    Value& value = values_[i];
    const bool elements = value.level == Level::element;
    PlanStep step{.kind = StepKind::compute};
    int* const places[] = {&step.a, &step.b, &step.c};
    int pattern = 0;
    for (int k = 0; k < operands_of(instruction.op); ++k) {
      const int operand = operands(instruction)[k];
      const Level level = values_[operand].level;
      const bool as_elements = elements && read_as_elements(level);
      *places[k] = as_elements ? element_place(operand) : values_[operand].place;
      step.levels[k] = as_elements ? Level::element : level;
      if (step.levels[k] != value.level) pattern |= 1 << k;
    }
    if (elements)
      for (int k = 0; k < operands_of(instruction.op); ++k)
        if (step.levels[k] == Level::element) release(operands(instruction)[k]);
    value.place = new_place(value.level);
    step.to = value.place;
    step.which = loop_index(instruction.op, pattern);
    if (elements) {
      value.elements = value.place;
      plan_.cost += cost_of(instruction.op);
      for (const PlanStep& sink : value.sinks)
        if (sink.kind == StepKind::store && step.stored < 0) step.stored = sink.which;
      for (const Level level : step.levels) step.by_row |= level == Level::row;
    }
    steps(value.level).push_back(step);
  }

 public:
  // Places are counted per level first; Plan::of concatenates them.
  static constexpr int kRows = 1 << 20, kElements = 2 << 20;
  int elements() const { return elements_; }

 private:
  const Program& program_;
  const Traits& traits_;
  Plan& plan_;
  Stage stage_;
  std::vector<Value> values_;
  std::vector<Instruction> code_;
  std::vector<bool> needed_;
  std::vector<int> free_;
  int elements_ = 0;
};

void put_in_order(Plan& plan) {
  const auto move = [&](int& place) {
    if (place >= StageWriter::kElements)
      place += plan.places[0] + plan.places[1] - StageWriter::kElements;
    else if (place >= StageWriter::kRows)
      place += plan.places[0] - StageWriter::kRows;
  };
  for (int& place : plan.reduced) move(place);
  for (Stage& stage : plan.stages)
    for (std::vector<PlanStep>& steps : stage.of_level)
      for (PlanStep& step : steps)
        for (int* place : {&step.a, &step.b, &step.c, &step.to}) move(*place);
}

Plan* make_plan(const Program& program, const Traits& traits) {
  auto plan = std::make_unique<Plan>();
  const Needed needed(program, traits.wanted);
  plan->reduced.resize(program.reductions.size(), -1);
  for (size_t i = 0; i < program.reductions.size(); ++i)
    if (needed.reductions[i]) plan->reduced[i] = StageWriter::kRows + plan->places[1]++;
  const int last = static_cast<int>(program.stages.size()) - 1;
  for (int i = 0; i <= last; ++i) {
    StageWriter writer(program, traits, needed, i, *plan);
    Stage stage = writer.write();
    plan->places[2] = std::max(plan->places[2], writer.elements());
    if (i == last || !stage.reductions.empty()) plan->stages.push_back(std::move(stage));
  }
  plan->cost += 100 * static_cast<int64_t>(plan->stages.size() + plan->inputs.size());
  put_in_order(*plan);
  return plan.release();
}

// All traits packed into one integer.
uint64_t key_of(const ProgramOperator& op, const Traits& traits) {
  static_assert(kMaxOutputs + 1 + 2 * kMaxInputs <= 64);
  uint64_t key = traits.wanted << 1 | uint32_t(traits.short_rows);
  for (size_t i = 0; i < op.inputs.size(); ++i) key = key << 2 | static_cast<uint64_t>(traits.inputs[i]);
  return key;
}

}  // namespace

const Plan& Plan::of(const ProgramOperator& op, const Traits& traits) {
  const uint64_t key = key_of(op, traits);
  const Plan* const first = op.plans.load(std::memory_order_acquire);
  for (const Plan* plan = first; plan; plan = plan->next)
    if (plan->key == key) return *plan;
  Plan* const made = make_plan(op.program, traits);
  made->key = key;
  made->next = first;
  while (!op.plans.compare_exchange_weak(made->next, made, std::memory_order_acq_rel)) {
  }
  return *made;
}

}  // namespace fusedops::program::interpreter
