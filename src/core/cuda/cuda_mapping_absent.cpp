// The build without CUDA: these functions are never called.
#include "core/base/error.h"
#include "core/cuda/cuda_mapping.h"

namespace hone::cuda {

size_t mapping_granularity(int) { return 0; }
unsigned long long create_memory(int, size_t) { HONE_ASSERT(false, "built without CUDA"); }
void release_memory(unsigned long long) noexcept {}
int share_memory(unsigned long long) { return -1; }
unsigned long long import_memory(int, int, std::string&) { return 0; }
std::byte* reserve_addresses(int, size_t) { return nullptr; }
void free_addresses(int, std::byte*, size_t) noexcept {}
std::string map_memory(int, std::byte*, unsigned long long, size_t) { return ""; }
std::string allow_access(int, std::byte*, size_t) { return ""; }
void unmap_memory(int, std::byte*, size_t) noexcept {}

}  // namespace hone::cuda
