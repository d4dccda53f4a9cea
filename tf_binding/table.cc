// Registers every operator of the table with TensorFlow: the built-in ones while TensorFlow loads this library, and
// those that a process adds when fusedops.tf calls fusedops_tf_register_new.
#include "table.h"

#include "registration.h"

namespace fusedops::tf_binding {
namespace {

Status add(const Operator& op) {
  FUSEDOPS_TRY(register_schema(op));
  register_kernels(op);
  return {};
}

const char* register_new() {
  static NewOperators operators;
  return operators.registered(add);
}

// fusedops.tf reports a refusal when it looks for the operator.
[[maybe_unused]] const bool registered = (register_new(), true);

}  // namespace
}  // namespace fusedops::tf_binding

// Registers the operators that were added to the table. Returns null, or a sentence about the first one that TensorFlow
// refuses, which is valid until the thread's next call. Threads may call it concurrently.
extern "C" FUSEDOPS_EXPORT const char* fusedops_tf_register_new() { return fusedops::tf_binding::register_new(); }

// The OpDef of an operator in a serialized OpList of `bytes` bytes, which is valid until the thread's next call. Null
// if TensorFlow does not have it.
extern "C" FUSEDOPS_EXPORT const char* fusedops_tf_op_list(const char* name, int64_t* bytes) {
  using namespace fusedops;
  const Operator* op = find_operator(name);
  const tensorflow::OpDef* schema = op ? tf_binding::registered_schema(*op) : nullptr;
  if (!schema) return nullptr;
  tensorflow::OpList list;
  *list.add_op() = *schema;
  thread_local std::string text;
  text = list.SerializeAsString();
  *bytes = static_cast<int64_t>(text.size());
  return text.data();
}
