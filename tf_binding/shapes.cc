// Runs the shape rules while a graph is being built, when ranks and dimensions may still be unknown.
#include "shapes.h"

#include <vector>

#include "attributes.h"

namespace fusedops::tf_binding {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// An unknown dimension is the symbol -1 - i, i being its place in `unknown_`.
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

  absl::Status read_input(int input, int position) {
    Shape& shape = inputs[input];
    tensorflow::DataType dtype;
    TF_RETURN_IF_ERROR(graph_->GetAttr(type_attribute(input_name(input)), &dtype));
    const ShapeHandle known = graph_->input(position);
    shape.present = true;
    shape.dtype = core_dtype(dtype);
    shape.ranked = graph_->RankKnown(known);
    if (!shape.ranked) return absl::OkStatus();
    shape.rank = graph_->Rank(known);
    if (const Status status = check_rank(input, shape.rank); !status.ok()) return invalid(status);
    for (int i = 0; i < shape.rank; ++i) shape.dims[i] = dim(graph_->Dim(known, i));
    return absl::OkStatus();
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
  Dim dim(DimensionHandle handle) {
    if (graph_->ValueKnown(handle)) return graph_->Value(handle);
    unknown_.push_back(handle);
    return -static_cast<Dim>(unknown_.size());
  }

  DimensionHandle handle(Dim dim) { return dim >= 0 ? graph_->MakeDim(dim) : unknown_[-1 - dim]; }

  InferenceContext* graph_;
  std::vector<DimensionHandle> unknown_;
};

}  // namespace

absl::Status infer_shapes(const Operator& op, InferenceContext* graph) {
  Value attributes[kMaxAttributes];
  TF_RETURN_IF_ERROR(read_attributes(*graph, op, attributes));
  GraphRule rule(op, attributes, graph);
  for (int i = 0, position = 0; i < static_cast<int>(op.inputs.size()); ++i) {
    bool present;
    TF_RETURN_IF_ERROR(read_presence(*graph, rule, i, &present));
    if (present) TF_RETURN_IF_ERROR(rule.read_input(i, position++));
  }
  if (const Status status = rule.infer(); !status.ok()) return invalid(status);
  for (int i = 0; i < static_cast<int>(op.outputs.size()); ++i) TF_RETURN_IF_ERROR(rule.write_output(i));
  return absl::OkStatus();
}

}  // namespace fusedops::tf_binding
