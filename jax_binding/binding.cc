// The part of JAX's binding that is not XLA's: the size of a workspace, and the version of XLA's interface to handlers.
// JAX registers the handlers of xla_binding/ by their symbols.
#include <vector>

#include "workspace.h"
#include "xla/ffi/api/c_api.h"

namespace fusedops {
namespace {

using xla_binding::Tensor;

// Reads a dtype, a rank and the sizes.
Tensor read(const int64_t** words) {
  const int64_t* start = *words;
  const auto rank = static_cast<size_t>(start[1]);
  *words = start + 2 + rank;
  return {static_cast<DType>(start[0]), {start + 2, rank}};
}

}  // namespace
}  // namespace fusedops

// The workspace in bytes of a call that fusedops_infer has accepted. `inputs` and `attributes` are those of
// fusedops_infer; `outputs` holds the dtype, rank and sizes of each output.
extern "C" FUSEDOPS_EXPORT int64_t fusedops_jax_workspace(const char* name, const int64_t* inputs,
                                                          const char* const* attributes, const int64_t* outputs,
                                                          bool cuda) {
  using namespace fusedops;
  const Operator& op = *find_operator(name);
  Value values[kMaxAttributes];
  for (size_t i = 0; i < op.attributes.size(); ++i) parse(op.attributes[i].type, attributes[i], &values[i]);
  std::vector<int64_t> counts;
  std::vector<Tensor> operands, results;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    counts.push_back(*inputs++);
    for (int64_t item = 0; item < counts.back(); ++item) operands.push_back(read(&inputs));
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) results.push_back(read(&outputs));
  return xla_binding::workspace(op, values, cuda, counts, operands, results);
}

// The version of the headers that the handlers were compiled with. XLA takes handlers of its own version and of older
// minor ones.
extern "C" FUSEDOPS_EXPORT void fusedops_jax_api_version(int64_t* major, int64_t* minor) {
  *major = XLA_FFI_API_MAJOR;
  *minor = XLA_FFI_API_MINOR;
}
