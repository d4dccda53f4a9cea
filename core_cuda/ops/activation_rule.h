// What the operators with an `activation` check of it: their first attribute.
#pragma once

#include "core/activations.h"
#include "core/operator.h"

namespace fusedops {

inline Status known_activation(const Rule& rule) {
  const std::string& name = rule.attributes[0].string;
  if (activations::index_of(name) < activations::kCount) return {};
  std::string names;
  for (const std::string_view known : activations::kNames) names.append(names.empty() ? "" : ", ").append(known);
  return Status::error("fusedops.", rule.op.name, ": activation must be one of ", names, "; got '", name, "'");
}

}  // namespace fusedops
