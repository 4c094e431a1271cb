#include "core/memory/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "core/base/error.h"
#include "core/cpu/numa.h"
#include "core/cpu/page_memory.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/cuda_mapping.h"
#include "core/cuda/planned_device.h"
#include "core/memory/buffer.h"

namespace hone {

namespace {

bool on_gpu(Device device) { return device.kind == DeviceKind::kCuda; }

}  // namespace

size_t mapping_granularity(Device device) {
  constexpr size_t kUsual = size_t{2} << 20;
  if (is_planned(device)) return kUsual;
  return on_gpu(device) ? cuda::mapping_granularity(device.index) : page_size();
}

MappableMemory::MappableMemory(Device device, const std::vector<size_t>& pieces) : device_(device) {
  for (const size_t bytes : pieces) {
    Piece piece{.begin = size_, .bytes = bytes};
    if (on_gpu(device)) {
      piece.handle = cuda::create_memory(device.index, bytes);
    } else {
      piece.file = Descriptor(memfd_create("hone", MFD_CLOEXEC));
      const int file = piece.file.descriptor();
      if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) throw_out_of_host_memory(bytes);
    }
    pieces_.push_back(std::move(piece));
    size_ += bytes;
  }
  if (!on_gpu(device) || size_ == 0) return;
  AddressRange addresses(device, size_);
  const std::string problem = addresses.map(0, *this, 0, size_);
  HONE_ASSERT(problem.empty(), problem);
  cuda::clear(device.index, addresses.data(), size_);
}

std::string MappableMemory::import(const Descriptor& shared, size_t bytes) {
  Piece piece{.begin = size_, .bytes = bytes, .imported = true};
  if (on_gpu(device_)) {
    std::string why_not;
    piece.handle = cuda::import_memory(device_.index, shared.descriptor(), why_not);
    if (piece.handle == 0) return why_not;
  } else {
    piece.file = Descriptor(dup(shared.descriptor()));
  }
  pieces_.push_back(std::move(piece));
  size_ += bytes;
  return "";
}

MappableMemory::~MappableMemory() {
  for (const Piece& piece : pieces_) {
    if (on_gpu(device_)) cuda::release_memory(piece.handle);
  }
}

std::vector<size_t> MappableMemory::pieces() const {
  std::vector<size_t> sizes;
  for (const Piece& piece : pieces_) sizes.push_back(piece.bytes);
  return sizes;
}

std::vector<Descriptor> MappableMemory::share() const {
  std::vector<Descriptor> shared;
  for (const Piece& piece : pieces_) {
    shared.emplace_back(on_gpu(device_) ? cuda::share_memory(piece.handle) : dup(piece.file.descriptor()));
  }
  return shared;
}

void MappableMemory::swap(MappableMemory& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(size_, other.size_);
  std::swap(pieces_, other.pieces_);
}

AddressRange::AddressRange(Device device, size_t bytes) : device_(device), size_(bytes) {
  if (bytes == 0) return;
  if (on_gpu(device)) {
    data_ = cuda::reserve_addresses(device.index, bytes);
    return;
  }
  void* addresses = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  HONE_ASSERT(addresses != MAP_FAILED, "addresses");
  data_ = static_cast<std::byte*>(addresses);
}

AddressRange::~AddressRange() {
  if (data_ == nullptr) return;
  if (!on_gpu(device_)) {
    munmap(data_, size_);
    return;
  }
  for (const Mapping& mapping : mapped_) cuda::unmap_memory(device_.index, data_ + mapping.at, mapping.bytes);
  cuda::free_addresses(device_.index, data_, size_);
}

std::string AddressRange::map(size_t at, const MappableMemory& memory, size_t offset, size_t bytes) {
  HONE_ASSERT(at + bytes <= size_ && offset + bytes <= memory.size());
  size_t mapped = 0;
  for (const MappableMemory::Piece& piece : memory.pieces_) {
    if (piece.begin < offset || piece.begin >= offset + bytes) continue;
    HONE_ASSERT(piece.begin - offset == mapped && mapped + piece.bytes <= bytes, "whole pieces");
    std::byte* const address = data_ + at + mapped;
    if (on_gpu(device_)) {
      if (std::string problem = cuda::map_memory(device_.index, address, piece.handle, piece.bytes); !problem.empty()) {
        return problem;
      }
      mapped_.push_back({at + mapped, piece.bytes});
    } else if (mmap(address, piece.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, piece.file.descriptor(), 0) ==
               MAP_FAILED) {
      return "the system does not map it";
    } else {  // as memory of a Buffer
      madvise(address, piece.bytes, MADV_HUGEPAGE);
      if (!piece.imported) interleave_pages(address, piece.bytes);
    }
    mapped += piece.bytes;
  }
  HONE_ASSERT(mapped == bytes, "whole pieces");
  return bytes > 0 && on_gpu(device_) ? cuda::allow_access(device_.index, data_ + at, bytes) : "";
}

void AddressRange::swap(AddressRange& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
}

}  // namespace hone
