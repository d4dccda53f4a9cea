// Replaces operator new of a process that has this library in LD_PRELOAD, and makes one allocation of another library
// fail.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<const char*> part = nullptr;  // substring of that library's path; null: no allocation fails
std::atomic<long> left = 0, counted = 0;

bool fails(const void* caller) {
  const char* const library = part;
  Dl_info place;
  if (!library || !dladdr(caller, &place) || !place.dli_fname || !std::strstr(place.dli_fname, library)) return false;
  ++counted;
  return left-- == 0;
}

void* allocate(size_t size, size_t alignment, const void* caller) {
  if (fails(caller)) return nullptr;
  return alignment ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment) : std::malloc(size);
}

void* or_throw(void* memory) {
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Selects the allocation of the library that fails, counted from 0 at this call.
extern "C" void fail_allocation(const char* library, long number) {
  left = number;
  counted = 0;
  part = library;
}

// Returns the number of allocations since that call.
extern "C" long stop_failing() {
  part = nullptr;
  return counted;
}

#define CALLER __builtin_return_address(0)

void* operator new(size_t size) { return or_throw(allocate(size, 0, CALLER)); }
void* operator new[](size_t size) { return or_throw(allocate(size, 0, CALLER)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size, 0, CALLER); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return allocate(size, 0, CALLER); }
void* operator new(size_t size, std::align_val_t alignment) {
  return or_throw(allocate(size, static_cast<size_t>(alignment), CALLER));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return or_throw(allocate(size, static_cast<size_t>(alignment), CALLER));
}
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<size_t>(alignment), CALLER);
}
void* operator new[](size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<size_t>(alignment), CALLER);
}
