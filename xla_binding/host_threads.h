#pragma once

#include "core/declaration/context.h"

namespace fusedops::xla_binding {

// Context::parallel on XLA's threads: `pool` is an xla::ffi::ThreadPool.
void parallel_for(void* pool, int64_t count, int64_t cost, Context::Body body, void* closure);

}  // namespace fusedops::xla_binding
