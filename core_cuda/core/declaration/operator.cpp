#include "core/declaration/operator.h"

#include <charconv>
#include <cstdlib>

#include "core/cuda/nvtx.h"
#include "core/declaration/dispatch.h"
#include "core/declaration/parts.h"

namespace fusedops {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

template <class Number>
bool parse_number(std::string_view text, Number* number) {
  text = trimmed(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_list(std::string_view text, std::vector<double>* numbers) {
  text = trimmed(text);
  if (!text.starts_with('[') || !text.ends_with(']')) return false;
  text = trimmed(text.substr(1, text.size() - 2));
  numbers->clear();
  while (!text.empty()) {
    const size_t comma = text.find(',');
    double number;
    if (!parse_number(text.substr(0, comma), &number)) return false;
    numbers->push_back(number);
    text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
  }
  return true;
}

// Null if no NVTX ranges are requested. Read once, since a small operator takes a microsecond.
const auto run_traced = [] {
  const char* value = std::getenv("FUSEDOPS_NVTX");
  return value && std::string_view(value) == "1" ? run_in_range : nullptr;
}();

#ifdef FUSEDOPS_WITH_CUDA
constexpr const char* kNoKernel = "its library has no CUDA kernel of it";
#else
constexpr const char* kNoKernel = "this build has no CUDA kernels; install nvcc and run: make build";
#endif

Status run_kernel(const Operator& op, const Call& call) {
  const Kernel kernel = call.context.cuda ? op.cuda : op.cpu;
  if (kernel) return run_traced ? run_traced(op, kernel, call) : kernel(call);
  return Status::error("fusedops: ", op.name, " was called on a GPU, and ", kNoKernel);
}

}  // namespace

Status Rule::infer() {
  FUSEDOPS_TRY(check_attributes());
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (op.inputs[i].kind == Kind::list) FUSEDOPS_TRY(summarize(static_cast<int>(i)));
  FUSEDOPS_TRY(op.rule(*this));
  for (size_t i = 0; i < op.outputs.size(); ++i)
    if (outputs[i].dtype == DType::other)
      return Status::error("fusedops.", public_name(op), ": its rule must set the shape and dtype of the output ",
                           op.outputs[i].name, "; got no dtype");
  return {};
}

Status run(const Operator& op, const Call& call) {
  return kLogsDispatch ? run_logged(op, call, run_kernel) : run_kernel(op, call);
}

const Parts* parts_of(const Operator& op) {
  if (kLogsDispatch || run_traced) return nullptr;
  for (const Parts& parts : built_in_parts())
    if (parts.op == op.name) return &parts;
  return nullptr;
}

std::string out_of_memory(const Operator& op) {
  return std::string("fusedops.") + public_name(op) +
         ": CPU out of memory. The call could not allocate its scratch memory; give it smaller tensors";
}

bool parse(Type type, std::string_view text, Value* value) {
  switch (type) {
    case Type::f64:
      return parse_number(text, &value->f64);
    case Type::i64:
      return parse_number(text, &value->i64);
    case Type::boolean:
      value->i64 = text == "true";
      return text == "true" || text == "false";
    case Type::string:
      value->string = text;
      return true;
    case Type::f64s:
      return parse_list(text, &value->f64s);
  }
  return false;
}

std::string attribute_sentence(const Operator& op, int attribute, std::string_view got) {
  static constexpr const char* kExpected[] = {"a number", "an integer", "a bool", "a string", "a list of numbers"};
  const Attribute& declared = op.attributes[attribute];
  return Status::error("fusedops.", public_name(op), ": ", declared.name, " must be ",
                       kExpected[static_cast<int>(declared.type)], "; got ", got)
      .sentence();
}

}  // namespace fusedops
