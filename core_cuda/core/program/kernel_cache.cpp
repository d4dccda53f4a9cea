#include "core/program/kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

namespace fusedops::program {
namespace {

// Fowler, Noll and Vo's FNV-1a. It names files and detects damage; the whole key in the file identifies it.
std::string hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

// The header of a file. The code follows.
std::string header(const std::string& key, std::string_view code) {
  return "fusedops kernel 1\n" + std::to_string(key.size()) + " " + std::to_string(code.size()) + " " + hash(code) +
         "\n" + key;
}

std::filesystem::path file(const std::string& folder, const std::string& key) {
  return std::filesystem::path(folder) / (hash(key) + ".cubin");
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  int get() const { return number_; }

  bool close() {
    const int number = std::exchange(number_, -1);
    return number >= 0 && ::close(number) == 0;
  }

 private:
  int number_;
};

// True if only this user or root can have written the file: the rule of fault() in fusedops/cache.py.
bool is_trusted(const struct stat& facts) {
  return (facts.st_uid == geteuid() || facts.st_uid == 0) && !(facts.st_mode & (S_IWGRP | S_IWOTH));
}

// The contents of a trusted file, or empty.
std::string read_trusted(const std::filesystem::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts;
  if (file.get() < 0 || fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || !is_trusted(facts)) return "";
  std::string text(static_cast<size_t>(facts.st_size), '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = read(file.get(), text.data() + size, text.size() - size);
    if (count <= 0) break;
    size += static_cast<size_t>(count);
  }
  text.resize(size);
  return text;
}

}  // namespace

std::string find_kernel(const std::string& folder, const std::string& key) {
  if (folder.empty()) return "";
  const std::string text = read_trusted(file(folder, key));
  // The length of the header depends on the code's size: the code begins after the key.
  const size_t at = text.find(key);
  if (at == text.npos) return "";
  const std::string_view code = std::string_view(text).substr(at + key.size());
  return text.compare(0, at + key.size(), header(key, code)) == 0 ? std::string(code) : "";
}

void keep_kernel(const std::string& folder, const std::string& key, const std::string& code) {
  if (folder.empty()) return;
  // Written under another name and renamed, so readers see a whole file or none.
  std::string temporary = folder + "/writing-XXXXXX";
  Descriptor descriptor(mkstemp(temporary.data()));  // created with mode 0600
  if (descriptor.get() < 0) return;
  const std::string text = header(key, code) + code;
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(descriptor.get(), text.data() + written, text.size() - written);
    if (count <= 0) break;
    written += static_cast<size_t>(count);
  }
  const bool complete = descriptor.close() && written == text.size();
  std::error_code ignored;
  if (complete) std::filesystem::rename(temporary, file(folder, key), ignored);
  if (!complete || ignored) std::filesystem::remove(temporary, ignored);
}

}  // namespace fusedops::program
