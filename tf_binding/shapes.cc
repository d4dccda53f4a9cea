// Runs `infer` while a graph is being built, when ranks and dimensions may be unknown.
#include "shapes.h"

#include <vector>

#include "attributes.h"

namespace fusedops::tf_binding {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// An unknown dimension is the symbol -1 - i, where i is its index in `unknown_`.
class GraphRule : public Rule {
 public:
  GraphRule(const Operator& op, const Value* attributes, InferenceContext* graph)
      : Rule(op, attributes), graph_(graph) {}

  bool same(Dim& a, Dim b) override {
    if (a == b) return true;
    if (a >= 0 && b >= 0) return false;
    DimensionHandle merged;
    if (!graph_->Merge(handle(a), handle(b), &merged).ok()) return false;
    a = dim(merged);
    return true;
  }

  bool broadcast(Dim& a, Dim b) override {
    if ((a >= 0 && b >= 0) || a == b || a == 1 || b == 1) return Rule::broadcast(a, b);
    if (a < 0) a = b >= 0 ? b : dim(graph_->UnknownDim());  // an unknown dimension may be 1
    return true;
  }

  Dim half(Dim whole) override {
    DimensionHandle halved;
    return graph_->Divide(handle(whole), 2, true, &halved).ok() ? dim(halved) : dim(graph_->UnknownDim());
  }

  Dim blocks(Dim dim) override {
    DimensionHandle rounded_up, divided;
    const bool known = graph_->Add(handle(dim), kBlock - 1, &rounded_up).ok() &&
                       graph_->Divide(rounded_up, kBlock, false, &divided).ok();
    return this->dim(known ? divided : graph_->UnknownDim());
  }

  // An input with `count` tensors from this position on.
  absl::Status read_input(int input, int position, int64_t count) {
    const bool is_list = op.inputs[input].kind == Kind::list;
    positions_[input] = position;
    if (is_list) counts[input] = count;
    inputs[input].present = count > 0;
    TF_RETURN_IF_ERROR(graph_->GetAttr(type_attribute(input_name(input)), &dtypes_[input]));
    for (int64_t item = 0; item < count; ++item) {
      const ShapeHandle known = shape(input, item);
      const int rank = graph_->RankKnown(known) ? graph_->Rank(known) : 0;
      const Status status = check_rank(input, rank, is_list ? item : kNotInList);
      if (!status.ok()) return invalid(status);
    }
    if (!is_list && count > 0) read(input, 0, &inputs[input]);
    return absl::OkStatus();
  }

  void read(int input, int64_t item, Shape* result) override {
    const ShapeHandle known = shape(input, item);
    result->present = true;
    result->dtype = core_dtype(dtypes_[input]);
    result->ranked = graph_->RankKnown(known);
    if (!result->ranked) return;
    result->rank = graph_->Rank(known);
    for (int i = 0; i < result->rank; ++i) result->dims[i] = dim(graph_->Dim(known, i));
  }

  absl::Status write_output(int output) {
    const Shape& shape = outputs[output];
    tensorflow::DataType dtype;
    TF_RETURN_IF_ERROR(graph_->GetAttr(type_attribute(op, op.outputs[output]), &dtype));
    TF_RETURN_IF_ERROR(check_output_dtype(*this, output, dtype));
    if (!shape.ranked) {
      graph_->set_output(output, graph_->UnknownShape());
      return absl::OkStatus();
    }
    std::vector<DimensionHandle> dims;
    for (int i = 0; i < shape.rank; ++i) dims.push_back(handle(shape.dims[i]));
    graph_->set_output(output, graph_->MakeShape(dims));
    return absl::OkStatus();
  }

 private:
  // The shape of a tensor, or of a variable's value, if the graph knows it.
  ShapeHandle shape(int input, int64_t item) {
    const int position = positions_[input] + static_cast<int>(item);
    if (!op.inputs[input].updated) return graph_->input(position);
    const auto* values = graph_->input_handle_shapes_and_types(position);
    return values && values->size() == 1 ? (*values)[0].shape : graph_->UnknownShape();
  }

  Dim dim(DimensionHandle handle) {
    if (graph_->ValueKnown(handle)) return graph_->Value(handle);
    unknown_.push_back(handle);
    return -static_cast<Dim>(unknown_.size());
  }

  DimensionHandle handle(Dim dim) { return dim >= 0 ? graph_->MakeDim(dim) : unknown_[-1 - dim]; }

  InferenceContext* graph_;
  std::vector<DimensionHandle> unknown_;
  tensorflow::DataType dtypes_[kMaxInputs] = {};
  int positions_[kMaxInputs] = {};
};

}  // namespace

absl::Status infer_shapes(const Operator& op, InferenceContext* graph) {
  Value attributes[kMaxAttributes];
  TF_RETURN_IF_ERROR(read_attributes(*graph, op, attributes));
  GraphRule rule(op, attributes, graph);
  for (int i = 0, position = 0; i < static_cast<int>(op.inputs.size()); ++i) {
    int64_t count;
    TF_RETURN_IF_ERROR(read_count(*graph, rule, i, &count));
    TF_RETURN_IF_ERROR(rule.read_input(i, position, count));
    position += static_cast<int>(count);
  }
  if (const Status status = rule.infer(); !status.ok()) return invalid(status);
  for (int i = 0; i < static_cast<int>(op.outputs.size()); ++i) TF_RETURN_IF_ERROR(rule.write_output(i));
  return absl::OkStatus();
}

}  // namespace fusedops::tf_binding
