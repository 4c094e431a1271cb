#include "weights/placed_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/checksum.h"
#include "core/durable_file.h"
#include "core/error.h"

namespace hone {

namespace {

[[noreturn]] void cannot_write(const std::filesystem::path& path) {
  throw UserError("the file cannot be written: " + std::string(std::strerror(errno)), path.string(),
                  "check the folder's permissions and free space; nothing that was saved before is lost");
}

}  // namespace

PlacedWriter::PlacedWriter(std::filesystem::path path, std::vector<SafetensorsWriter::Announced> tensors)
    : path_(std::move(path)), temporary_(temporary_beside(path_)) {
  const std::string header = safetensors_header(tensors);
  header_bytes_ = file_bytes_ = header.size();
  header_crc_ = crc32c(header);
  for (const SafetensorsWriter::Announced& tensor : tensors) {
    begins_.push_back(file_bytes_);
    file_bytes_ += static_cast<uint64_t>(tensor.bytes());
  }
  descriptor_ = create_new_file(temporary_);
  if (descriptor_ < 0) cannot_write(path_);
  try {
    if (ftruncate(descriptor_, static_cast<off_t>(file_bytes_)) != 0) cannot_write(path_);
    put(0, std::as_bytes(std::span(header)));
    written_.emplace(temporary_);
    for (const SafetensorsWriter::Announced& tensor : tensors) entries_.push_back(&written_->at(tensor.name));
  } catch (...) {
    close(descriptor_);
    unlink(temporary_.c_str());
    throw;
  }
}

PlacedWriter::~PlacedWriter() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void PlacedWriter::put(uint64_t offset, std::span<const std::byte> bytes) {
  constexpr size_t kMostAtOnce = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t count =
        pwrite(descriptor_, bytes.data(), std::min(bytes.size(), kMostAtOnce), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) cannot_write(path_);
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

void PlacedWriter::write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t begin = begins_[tensor] + offset;
  HONE_ASSERT(begin + bytes.size() <= (tensor + 1 < begins_.size() ? begins_[tensor + 1] : file_bytes_),
              path_.string());
  put(begin, bytes);
  // So that sync() has little left to do. Where the file system does not know this, it has more.
  sync_file_range(descriptor_, static_cast<off64_t>(begin), static_cast<off64_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
}

void PlacedWriter::read(size_t tensor, uint64_t offset, std::span<std::byte> bytes) const {
  written_->read(*entries_[tensor], offset, bytes.data(), bytes.size());
}

void PlacedWriter::sync() {
  if (!sync_file(descriptor_)) {
    throw UserError("the file cannot be synced to the disk: " + std::string(std::strerror(errno)), path_.string(),
                    "check the disk and the free space; nothing that was saved before is lost");
  }
  synced_ = true;
}

FileChecksum PlacedWriter::finish(uint32_t tensors) {
  HONE_ASSERT(synced_, path_.string());
  close(std::exchange(descriptor_, -1));
  written_.reset();
  std::filesystem::rename(temporary_, path_);
  return {file_bytes_, join_crc32c(header_crc_, tensors, file_bytes_ - header_bytes_)};
}

}  // namespace hone
