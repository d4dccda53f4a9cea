// The handlers of XLA's custom call, which a framework registers under `kTarget` (call.h).
#pragma once

#include "core/declaration/operator.h"
#include "xla/ffi/api/c_api.h"

extern "C" {

FUSEDOPS_EXPORT XLA_FFI_Error* fusedops_xla_on_host(XLA_FFI_CallFrame* frame);
FUSEDOPS_EXPORT XLA_FFI_Error* fusedops_xla_on_cuda(XLA_FFI_CallFrame* frame);

}  // extern "C"
