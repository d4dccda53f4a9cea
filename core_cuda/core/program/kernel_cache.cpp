#include "core/program/kernel_cache.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

namespace fusedops::program {
namespace {

// Fowler, Noll and Vo's FNV-1a. It names files and finds damage; that a file is the right one, its whole key says.
std::string hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

// What a file starts with. The code follows.
std::string header(const std::string& key, std::string_view code) {
  return "fusedops kernel 1\n" + std::to_string(key.size()) + " " + std::to_string(code.size()) + " " + hash(code) +
         "\n" + key;
}

std::filesystem::path file(const std::string& folder, const std::string& key) {
  return std::filesystem::path(folder) / (hash(key) + ".cubin");
}

const char* set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value && *value ? value : nullptr;
}

}  // namespace

std::string kernel_cache_folder() {
  if (const char* own = set("FUSEDOPS_CACHE_DIR")) return own;
  if (const char* all = set("XDG_CACHE_HOME")) return std::string(all) + "/fusedops";
  if (const char* home = set("HOME")) return std::string(home) + "/.cache/fusedops";
  return "";
}

std::string find_kernel(const std::string& folder, const std::string& key) {
  if (folder.empty()) return "";
  std::ifstream stream(file(folder, key), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  // The length of the header depends on the code's size: the code begins behind the key.
  const size_t at = text.find(key);
  if (at == text.npos) return "";
  const std::string_view code = std::string_view(text).substr(at + key.size());
  return text.compare(0, at + key.size(), header(key, code)) == 0 ? std::string(code) : "";
}

void keep_kernel(const std::string& folder, const std::string& key, const std::string& code) {
  if (folder.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  // Written under another name first: a reader sees all of a file or none.
  std::string temporary = folder + "/writing-XXXXXX";
  const int descriptor = mkstemp(temporary.data());
  if (descriptor < 0) return;
  const std::string text = header(key, code) + code;
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(descriptor, text.data() + written, text.size() - written);
    if (count <= 0) break;
    written += static_cast<size_t>(count);
  }
  const bool complete = close(descriptor) == 0 && written == text.size();
  if (complete) std::filesystem::rename(temporary, file(folder, key), ignored);
  if (!complete || ignored) std::filesystem::remove(temporary, ignored);
}

}  // namespace fusedops::program
