#include "core/program/compiler.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <vector>

#include "core/program/kernel_cache.h"

namespace fusedops::program {
namespace {

struct Setting {
  std::vector<std::string> libraries;
  std::vector<std::string> names, texts;  // of headers
  std::string cache;                      // the folder of kernel_cache.h
};

std::mutex mutex;

Setting& setting() {
  static Setting& setting = *new Setting();
  return setting;
}

// NVRTC's functions, as in nvrtc.h.
struct Library {
  using Program = void*;
  int (*version)(int* major, int* minor);
  int (*create)(Program*, const char* source, const char* name, int headers, const char* const* texts,
                const char* const* names);
  int (*compile)(Program, int options, const char* const* texts);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*code_size)(Program, size_t*);
  int (*code)(Program, char*);
  int (*destroy)(Program*);
  int major = 0, minor = 0;
};

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool open(const std::string& path, Library* library) {
  // NVRTC opens this library by name, and finds it only if it is loaded already.
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("libnvrtc-builtins.so")) dlopen(entry.path().c_str(), RTLD_LAZY | RTLD_GLOBAL);
  }
  void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  return handle && find(handle, "nvrtcVersion", &library->version) &&
         find(handle, "nvrtcCreateProgram", &library->create) &&
         find(handle, "nvrtcCompileProgram", &library->compile) &&
         find(handle, "nvrtcGetProgramLogSize", &library->log_size) &&
         find(handle, "nvrtcGetProgramLog", &library->log) && find(handle, "nvrtcGetCUBINSize", &library->code_size) &&
         find(handle, "nvrtcGetCUBIN", &library->code) && find(handle, "nvrtcDestroyProgram", &library->destroy) &&
         library->version(&library->major, &library->minor) == 0;
}

// The newest library whose code the driver can load. All frameworks of a process or environment find the same one.
const Library* library_for(int driver) {
  static std::vector<Library>& libraries = *[] {
    auto* found = new std::vector<Library>();
    for (const std::string& path : setting().libraries)
      if (Library library; open(path, &library)) found->push_back(library);
    return found;
  }();
  const Library* newest = nullptr;
  for (const Library& library : libraries) {
    if (library.major > driver / 1000) continue;
    if (!newest || std::pair(library.major, library.minor) > std::pair(newest->major, newest->minor)) newest = &library;
  }
  return newest;
}

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  return pointers;
}

Status run(const Library& library, const std::string& source, const std::vector<std::string>& options,
           std::string* code) {
  Library::Program program;
  const Setting& given = setting();
  if (library.create(&program, source.c_str(), "fusedops.cu", static_cast<int>(given.names.size()),
                     pointers(given.texts).data(), pointers(given.names).data()))
    return Status::error("fusedops: NVRTC could not take a program");
  const int error = library.compile(program, static_cast<int>(options.size()), pointers(options).data());
  size_t size = 0;
  std::string log;
  if (error && library.log_size(program, &size) == 0 && size > 0) {
    log.resize(size);
    library.log(program, log.data());
  }
  if (!error && library.code_size(program, &size) == 0) {
    code->resize(size);
    library.code(program, code->data());
  }
  library.destroy(&program);
  if (code->empty()) return Status::error("fusedops: NVRTC could not compile a program: ", log.c_str());
  return {};
}

}  // namespace

Status compile(const std::string& source, int architecture, int driver, std::string* code) {
  const std::lock_guard lock(mutex);
  const Library* library = library_for(driver);
  if (!library)
    return Status::error(
        "fusedops: an expression on a GPU is compiled by NVRTC, and no libnvrtc.so was found that fits the driver, of "
        "CUDA ",
        std::to_string(driver / 1000), "; run: pip install nvidia-cuda-nvrtc");
  // Without contraction: a value computed in two stages must have the same bits in both.
  const std::vector<std::string> options = {"--gpu-architecture=sm_" + std::to_string(architecture), "--std=c++20",
                                            "--device-as-default-execution-space", "--fmad=false"};
  std::string key = "NVRTC " + std::to_string(library->major) + "." + std::to_string(library->minor) + "\n";
  for (const std::string& option : options) key += option + "\n";
  for (const std::string& text : setting().texts) key += text;
  key += source;
  const std::string& folder = setting().cache;
  *code = find_kernel(folder, key);
  if (!code->empty()) return {};
  FUSEDOPS_TRY(run(*library, source, options, code));
  keep_kernel(folder, key, *code);
  return {};
}

}  // namespace fusedops::program

void fusedops_use_compiler(const char* const* libraries, int32_t library_count, const FusedopsText* headers,
                           int32_t header_count, const char* cache) {
  const std::lock_guard lock(fusedops::program::mutex);
  auto& setting = fusedops::program::setting();
  setting.libraries.assign(libraries, libraries + library_count);
  setting.cache = cache;
  setting.names.clear();
  setting.texts.clear();
  for (int32_t i = 0; i < header_count; ++i) {
    setting.names.emplace_back(headers[i].name);
    setting.texts.emplace_back(headers[i].text);
  }
}
