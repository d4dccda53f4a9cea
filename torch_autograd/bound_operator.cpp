#include "bound_operator.h"

#include <algorithm>
#include <string_view>

#include "core/declaration/names.h"

namespace fusedops::torch_autograd {
namespace {

c10::OperatorHandle find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow((std::string("fusedops::") + name).c_str(), "");
}

template <class Items>
std::optional<size_t> place_of(const Items& items, std::string_view name) {
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].name == name) return i;
  return std::nullopt;
}

size_t place_among_arguments(const c10::FunctionSchema& schema, const std::string& name) {
  const auto place = schema.argumentIndexWithName(name);
  TORCH_INTERNAL_ASSERT(place, schema.name(), " has no argument ", name);
  return static_cast<size_t>(*place);
}

// Resolves the names in one step of an operator's derivative.
class Binding {
 public:
  Binding(BoundOperator& bound, const Step& declared) : bound_(bound), declared_(declared) {}

  BoundStep bind() {
    if (declared_.if_wanted) step_.if_wanted = bit(*place_of(bound_.op.inputs, declared_.if_wanted));
    if (declared_.op) {
      step_.op = find(declared_.op);
      called_ = find_operator(declared_.op);
    }
    for (const auto& gradient : declared_.gradients) add(gradient);
    if (called_) bind_arguments();
    if (declared_.if_given) step_.if_given = save(declared_.if_given);
    return std::move(step_);
  }

 private:
  void add(const Step::Gradient& gradient) {
    const size_t input = *place_of(bound_.op.inputs, gradient.input);
    const size_t source = called_ ? *place_of(called_->outputs, gradient.source) : *upstream(gradient.source);
    step_.gradients.push_back({input, source});
    step_.gradient_mask |= bit(input);
    if (!called_) step_.required_upstream.push_back(source);
  }

  void bind_arguments() {
    const c10::FunctionSchema& schema = step_.op->schema();
    for (const c10::Argument& argument : schema.arguments())
      step_.arguments.push_back({.value = argument.default_value().value_or(c10::IValue())});
    for (size_t i = 0; i < called_->inputs.size(); ++i)
      if (declared_.inputs[i]) bind_input(i, declared_.inputs[i]);
    for (const Attribute& attribute : called_->attributes)
      bind_attribute(attribute, &step_.arguments[place_among_arguments(schema, attribute.name)]);
  }

  void bind_input(size_t place, const char* source) {
    const Input& input = called_->inputs[place];
    Argument& argument = step_.arguments[place];
    if (const auto output = upstream(source)) {
      argument = {.from = Argument::From::upstream, .place = *output};
      if (input.kind == Kind::tensor) step_.required_upstream.push_back(*output);
      return;
    }
    argument = {.from = Argument::From::saved, .place = save(source)};
    if (input.only_for) argument.inputs = given_by(input.only_for);
    const auto given = place_of(bound_.op.inputs, source);
    if (input.kind != Kind::scalar || !given || bound_.op.inputs[*given].kind != Kind::scalar) return;
    const size_t number = place_among_arguments(step_.op->schema(), std::string(input.name) + "_value");
    step_.arguments[number] = {.from = Argument::From::rest, .place = rest(std::string(source) + "_value")};
  }

  void bind_attribute(const Attribute& attribute, Argument* argument) {
    const std::string_view name = attribute.name;
    Step::Passed passed{attribute.name, attribute.name};
    for (const Step::Passed& declared : declared_.attributes)
      if (name == declared.attribute) passed = declared;
    if (place_of(bound_.op.attributes, passed.source)) {
      argument->from = passed.negated ? Argument::From::negated : Argument::From::rest;
      argument->place = rest(passed.source);
    } else if (name.starts_with("need_")) {
      argument->from = Argument::From::wanted;
      argument->inputs = given_by(name.substr(5));
    }
  }

  // The differentiable output whose gradient has this name.
  std::optional<size_t> upstream(std::string_view name) const {
    for (size_t i = 0; i < bound_.differentiable.size(); ++i)
      if (name == std::string("d") + bound_.op.outputs[bound_.differentiable[i]].name) return i;
    return std::nullopt;
  }

  // The inputs of the forward whose gradient is this output of the step's operator.
  Mask given_by(std::string_view output) const {
    Mask inputs = 0;
    for (const auto& gradient : step_.gradients)
      if (called_->outputs[gradient.source].name == output) inputs |= bit(gradient.input);
    return inputs;
  }

  size_t save(std::string_view name) {
    const auto input = place_of(bound_.op.inputs, name);
    const Saved wanted{input ? *input : *place_of(bound_.op.outputs, name), !input};
    const auto same = [&](const Saved& s) { return s.place == wanted.place && s.is_output == wanted.is_output; };
    const auto found = std::find_if(bound_.saved.begin(), bound_.saved.end(), same);
    if (found != bound_.saved.end()) return static_cast<size_t>(found - bound_.saved.begin());
    bound_.saved.push_back(wanted);
    return bound_.saved.size() - 1;
  }

  // The position among the forward's numbers and attributes.
  size_t rest(const std::string& name) const {
    return place_among_arguments(bound_.schema, name) - bound_.op.inputs.size();
  }

  BoundOperator& bound_;
  const Step& declared_;
  const Operator* called_ = nullptr;
  BoundStep step_;
};

// Marks the last read of each tensor in the steps' arguments.
void mark_last_reads(std::vector<BoundStep>& steps) {
  uint64_t saved = 0, upstream = 0;  // tensors that are read later
  const auto read = [](uint64_t& places, size_t place) {
    const bool is_last = !(places >> place & 1);
    places |= uint64_t(1) << place;
    return is_last;
  };
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    for (auto argument = step->arguments.rbegin(); argument != step->arguments.rend(); ++argument) {
      if (argument->from == Argument::From::saved) argument->is_last = read(saved, argument->place);
      if (argument->from == Argument::From::upstream) argument->is_last = read(upstream, argument->place);
    }
    if (step->if_given) read(saved, *step->if_given);
    for (const size_t output : step->required_upstream) read(upstream, output);
  }
}

}  // namespace

BoundOperator::BoundOperator(const Operator& op)
    : op(op),
      node(type_name(op.name) + "Backward"),
      schema(find(op.name).schema()),
      arguments(schema.arguments().size()),
      has_derivative(is_differentiable(op)) {
  for (size_t i = 0; i < op.outputs.size(); ++i)
    if (!op.outputs[i].saved) differentiable.push_back(i);
  for (const Step& step : op.derivative) {
    steps.push_back(Binding(*this, step).bind());
    gradient_mask |= steps.back().gradient_mask;
  }
  mark_last_reads(steps);
}

}  // namespace fusedops::torch_autograd
