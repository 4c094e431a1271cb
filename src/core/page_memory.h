// Memory of a thread's own workspace: whole pages that live as long as their owner.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace hone {

struct FreePages {
  void operator()(std::byte* pages) const { std::free(pages); }
};
using PageMemory = std::unique_ptr<std::byte, FreePages>;

/// At least `bytes`, uninitialised, at the beginning of a page. Throws std::bad_alloc.
inline PageMemory allocate_pages(size_t bytes) {
  constexpr size_t kPage = 4096;
  PageMemory memory(static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage)));
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace hone
