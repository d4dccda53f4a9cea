#include "core/declaration/dispatch.h"

#include <cstdio>
#include <vector>

#include "core/declaration/numbers.h"

namespace fusedops {
namespace {

std::string list_text(const auto& items, auto&& text_of) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ", ") + text_of(item);
  return "[" + text + "]";
}

std::string sizes_text(const int64_t* sizes, int rank) {
  return list_text(std::span(sizes, size_t(rank)), [](int64_t size) { return std::to_string(size); });
}

std::string tensor_text(const View& view) {
  const std::string text = std::string(name_of(view.dtype)) + " " + shape_text(view);
  return has_layout(view, Layout::contiguous) ? text : text + " strides " + sizes_text(view.strides, view.rank);
}

std::string value_text(Type type, const Value& value) {
  switch (type) {
    case Type::f64:
      return spelled(value.f64);
    case Type::i64:
      return std::to_string(value.i64);
    case Type::boolean:
      return value.i64 ? "true" : "false";
    case Type::string:
      return value.string;
    case Type::f64s:
      return list_text(value.f64s, spelled);
  }
  return {};
}

// The inputs by name, without absent ones, and the attributes that differ from their defaults.
std::string arguments_text(const Operator& op, const Call& call) {
  std::string text;
  const auto add = [&](std::string_view name, const std::string& value) {
    text.append(text.empty() ? " " : ", ").append(name).append(" ").append(value);
  };
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Input& input = op.inputs[i];
    if (input.kind == Kind::list) {
      add(input.name, std::to_string(call.counts[i]) + " tensors");
    } else if (call.inputs[i]) {
      add(input.name, tensor_text(*call.inputs[i]));
    } else if (input.kind == Kind::scalar) {
      add(input.name, spelled(call.scalars[i]));
    }
  }
  for (size_t i = 0; i < op.attributes.size(); ++i) {
    const Attribute& attribute = op.attributes[i];
    Value by_default;
    parse(attribute.type, attribute.value, &by_default);
    const std::string value = value_text(attribute.type, call.attributes.at(int(i)));
    if (value != value_text(attribute.type, by_default)) add(attribute.name, value);
  }
  return text;
}

// The kernels of a call, in the order of their first launches. Calls nest.
struct Line {
  struct Entry {
    std::string kernel;
    int times = 1;
  };

  Line() { current = this; }
  ~Line() { current = outer; }
  Line(const Line&) = delete;

  std::string kernels(const char* otherwise) const {
    std::string text;
    for (const Entry& entry : entries)
      text += (text.empty() ? "" : "; ") + (entry.times > 1 ? std::to_string(entry.times) + " x " : "") + entry.kernel;
    return text.empty() ? otherwise : text;
  }

  static thread_local Line* current;
  Line* const outer = current;
  const int depth = outer ? outer->depth + 1 : 0;
  std::vector<Entry> entries;
};

thread_local Line* Line::current = nullptr;

}  // namespace

std::string shape_text(const View& view) { return sizes_text(view.sizes, view.rank); }

void log_kernel(const std::string& name, const char* reason, const GpuProperties& gpu) {
  const std::string kernel = name + " (compute capability " + std::to_string(gpu.major) + "." +
                             std::to_string(gpu.minor) + ", " + reason + ")";
  auto& entries = Line::current->entries;
  for (auto& entry : entries)
    if (entry.kernel == kernel) return void(++entry.times);
  entries.push_back({kernel});
}

Status run_logged(const Operator& op, const Call& call, Status (*run)(const Operator&, const Call&)) {
  Line line;
  Status status = run(op, call);
  const std::string result = status.ok() ? line.kernels(call.context.cuda ? "cuda" : "cpu") : status.sentence();
  const std::string text =
      std::string(2 * line.depth, ' ') + "fusedops: " + op.name + arguments_text(op, call) + " -> " + result + "\n";
  std::fputs(text.c_str(), stderr);
  return status;
}

}  // namespace fusedops
