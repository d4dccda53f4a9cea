// NVTX injection library: NVTX loads it from NVTX_INJECTION64_PATH, as it loads Nsight Systems. Writes all ranges to
// $NVTX_LOG. Types and numbers are those of nvtx3/nvtxDetail/nvtxTypes.h, which a machine without the CUDA toolkit
// lacks.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

using Function = void (*)();
struct Callbacks {
  size_t size;
  int (*table_of)(int module, Function*** table, unsigned* entries);
};
constexpr uint32_t kCallbacks = 1;
constexpr int kCore = 1;
constexpr int kRangePush = 9, kRangePop = 11;

void write(const char* line) {
  std::FILE* log = std::fopen(std::getenv("NVTX_LOG"), "a");
  std::fprintf(log, "%s\n", line);
  std::fclose(log);
}

int push(const char* name) {
  write(name);
  return 0;
}

int pop() {
  write("end");
  return 0;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
  const auto* callbacks = static_cast<const Callbacks*>(export_table(kCallbacks));
  Function** table;
  unsigned entries;
  if (!callbacks->table_of(kCore, &table, &entries) || entries <= kRangePop) return 0;
  *table[kRangePush] = reinterpret_cast<Function>(push);
  *table[kRangePop] = reinterpret_cast<Function>(pop);
  return 1;
}
