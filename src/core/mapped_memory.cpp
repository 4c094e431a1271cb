#include "core/mapped_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "core/cuda_device.h"
#include "core/cuda_mapping.h"
#include "core/error.h"
#include "core/planned_device.h"

namespace hone {

namespace {

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

bool on_gpu(Device device) { return device.kind == DeviceKind::kCuda; }

}  // namespace

size_t mapping_granularity(Device device) {
  constexpr size_t kUsual = size_t{2} << 20;
  if (is_planned(device)) return kUsual;
  return on_gpu(device) ? cuda::mapping_granularity(device.index) : page_size();
}

void Descriptor::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

MappableMemory::MappableMemory(Device device, size_t bytes) : device_(device), size_(bytes) {
  if (bytes == 0) return;
  if (on_gpu(device)) {
    handle_ = cuda::create_memory(device.index, bytes);
    AddressRange addresses(device, bytes);
    const std::string problem = addresses.map(0, *this, 0, bytes);
    HONE_ASSERT(problem.empty(), problem);
    cuda::clear(device.index, addresses.data(), bytes);
    return;
  }
  file_ = Descriptor(memfd_create("hone", MFD_CLOEXEC));
  if (file_.get() >= 0 && ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0) return;
  throw Error(ExitCode::kDeviceFailed,
              fmt::format("the machine has no {:.2f} GB of memory left", static_cast<double>(bytes) / 1e9), "",
              "`hone estimate` shows what needs it and what would make it fit");
}

std::unique_ptr<MappableMemory> MappableMemory::import(Device device, const Descriptor& shared, size_t bytes,
                                                       std::string& why_not) {
  auto memory = std::make_unique<MappableMemory>();
  memory->device_ = device;
  memory->size_ = bytes;
  if (on_gpu(device)) {
    memory->handle_ = cuda::import_memory(device.index, shared.get(), why_not);
    return memory->handle_ != 0 ? std::move(memory) : nullptr;
  }
  memory->file_ = Descriptor(dup(shared.get()));
  return memory;
}

MappableMemory::~MappableMemory() {
  if (handle_ != 0) cuda::release_memory(handle_);
}

Descriptor MappableMemory::share() const {
  return Descriptor(on_gpu(device_) ? cuda::share_memory(handle_) : dup(file_.get()));
}

void MappableMemory::swap(MappableMemory& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(size_, other.size_);
  std::swap(handle_, other.handle_);
  std::swap(file_, other.file_);
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
  for (const Piece& piece : mapped_) cuda::unmap_memory(device_.index, data_ + piece.at, piece.bytes);
  cuda::free_addresses(device_.index, data_, size_);
}

std::string AddressRange::map(size_t at, const MappableMemory& memory, size_t offset, size_t bytes) {
  HONE_ASSERT(at + bytes <= size_ && offset + bytes <= memory.size());
  if (bytes == 0) return "";
  if (on_gpu(device_)) {
    std::string problem = cuda::map_memory(device_.index, data_ + at, memory.handle_, offset, bytes);
    if (problem.empty()) mapped_.push_back({at, bytes});
    return problem;
  }
  const void* mapped = mmap(data_ + at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.file_.get(),
                            static_cast<off_t>(offset));
  return mapped != MAP_FAILED ? "" : "the system does not map it";
}

void AddressRange::swap(AddressRange& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
}

}  // namespace hone
