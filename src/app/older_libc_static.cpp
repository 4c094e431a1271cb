// What static libraries take from the C library and cannot in a release, which starts with glibc 2.34: with HONE_STATIC
// it is libhone's own.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

/// Says whether the process has one thread, for shared pointers. Distributions' yaml-cpp reads it as only programs can,
/// not libraries: in libhone it is this one, of more than one thread.
extern "C" char __libc_single_threaded = 0;

/// glibc has it since 2.36; std::random_device calls it.
extern "C" std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) std::abort();
  return value;
}

namespace {

struct Wanted {
  std::uintptr_t address;
  dl_find_object* result;
};

/// Fills the result and returns 1 if the object holds the address.
int fill(dl_phdr_info* object, size_t, void* data) {
  const Wanted& wanted = *static_cast<Wanted*>(data);
  std::uintptr_t begin = UINTPTR_MAX, end = 0;
  void* frames = nullptr;
  bool holds = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    const std::uintptr_t first = object->dlpi_addr + part.p_vaddr, last = first + part.p_memsz;
    if (part.p_type == PT_GNU_EH_FRAME) frames = reinterpret_cast<void*>(first);
    if (part.p_type != PT_LOAD) continue;
    begin = first < begin ? first : begin;
    end = last > end ? last : end;
    holds = holds || (wanted.address >= first && wanted.address < last);
  }
  if (!holds) return 0;
  *wanted.result = {};
  wanted.result->dlfo_map_start = reinterpret_cast<void*>(begin);
  wanted.result->dlfo_map_end = reinterpret_cast<void*>(end);
  wanted.result->dlfo_eh_frame = frames;
  return 1;
}

}  // namespace

/// glibc has it since 2.35; the unwinder of exceptions looks for the frames of an address with it. This one takes the
/// loader's lock.
extern "C" int _dl_find_object(void* address, dl_find_object* result) noexcept {
  Wanted wanted{reinterpret_cast<std::uintptr_t>(address), result};
  return dl_iterate_phdr(fill, &wanted) == 1 ? 0 : -1;
}
