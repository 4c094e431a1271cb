// The build without CUDA: these functions are never called.
#include "core/base/error.h"
#include "core/memory/pinned_chunk.h"

namespace hone {

struct PinnedChunk::State {};

PinnedChunk::PinnedChunk(int, size_t) { HONE_ASSERT(false, "built without CUDA"); }
PinnedChunk::~PinnedChunk() = default;
PinnedChunk::PinnedChunk(PinnedChunk&& other) noexcept = default;
std::byte* PinnedChunk::data() const { return nullptr; }
size_t PinnedChunk::size() const { return 0; }
void PinnedChunk::start_upload(std::byte*, size_t) {}
void PinnedChunk::start_download(const std::byte*, size_t) {}
void PinnedChunk::wait() {}

}  // namespace hone
