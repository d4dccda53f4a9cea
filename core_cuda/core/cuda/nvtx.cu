#include "core/cuda/nvtx.h"

// The NVTX headers are a separate package, which some toolkit installations lack.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define FUSEDOPS_WITH_NVTX
#endif

#include <string>

#include "core/declaration/dispatch.h"

namespace fusedops {

#ifdef FUSEDOPS_WITH_NVTX
namespace {

std::string range_name(const Operator& op, const Call& call) {
  return std::string("fusedops.") + op.name + " " + shape_text(*call.inputs[first_tensor(op)]);
}

}  // namespace

Status run_in_range(const Operator& op, Kernel kernel, const Call& call) {
  nvtxRangePushA(range_name(op, call).c_str());
  Status status = kernel(call);
  nvtxRangePop();
  return status;
}
#else
Status run_in_range(const Operator&, Kernel kernel, const Call& call) { return kernel(call); }
#endif

}  // namespace fusedops
