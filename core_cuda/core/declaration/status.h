// The result of a core function: empty, or one full sentence for the user. Core functions throw only std::bad_alloc.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace fusedops {

class [[nodiscard]] Status {
 public:
  Status() = default;

  // Concatenates the parts of a sentence: Status::error("fusedops.", op, ": ...").
  template <class... Texts>
  static Status error(const Texts&... texts) {
    Status status;
    (status.sentence_.append(std::string_view(texts)), ...);
    return status;
  }

  bool ok() const { return sentence_.empty(); }
  const std::string& sentence() const { return sentence_; }

 private:
  std::string sentence_;
};

}  // namespace fusedops

// Returns from the calling function if `expression` is an error.
#define FUSEDOPS_TRY(expression) \
  if (::fusedops::Status status_ = (expression); !status_.ok()) return status_
