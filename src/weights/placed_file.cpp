#include "weights/placed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/files/durable_file.h"

namespace hone {

namespace {

[[noreturn]] void cannot_write(const std::filesystem::path& path) {
  throw UserError("the file cannot be written: " + std::string(std::strerror(errno)), path.string(),
                  "check the folder's permissions and free space; nothing that was saved before is lost");
}

}  // namespace

PlacedLayout::PlacedLayout(std::span<const SafetensorsWriter::Announced> tensors)
    : header_(safetensors_header(tensors)), header_crc_(crc32c(header_)) {
  uint64_t end = header_.size();
  for (const SafetensorsWriter::Announced& tensor : tensors)
    ends_.push_back(end += static_cast<uint64_t>(tensor.bytes()));
}

PlacedFile PlacedFile::create(const std::filesystem::path& path, const PlacedLayout& layout,
                              const std::filesystem::path& shown) {
  Descriptor created(create_new_file(path));
  if (!created.open()) cannot_write(shown);
  PlacedFile file(std::move(created), shown);
  try {
    if (ftruncate(file.file_.descriptor(), static_cast<off_t>(layout.bytes())) != 0) cannot_write(shown);
    file.write(0, std::as_bytes(std::span(layout.header())));
  } catch (...) {
    unlink(path.c_str());
    throw;
  }
  return file;
}

PlacedFile PlacedFile::open(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.open()) {
    throw UserError("the first rank's file cannot be opened: " + std::string(std::strerror(errno)), path.string(),
                    "all hosts need the same output_dir, with write access");
  }
  return {std::move(file), path};
}

void PlacedFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  constexpr size_t kMostAtOnce = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t count =
        pwrite(file_.descriptor(), bytes.data(), std::min(bytes.size(), kMostAtOnce), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) cannot_write(shown_);
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

void PlacedFile::start_writing_back(uint64_t offset, uint64_t bytes) {
  sync_file_range(file_.descriptor(), static_cast<off64_t>(offset), static_cast<off64_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

void PlacedFile::sync() {
  if (sync_file(file_.descriptor())) return;
  throw UserError("the file cannot be synced to the disk: " + std::string(std::strerror(errno)), shown_.string(),
                  "check the disk and the free space; nothing that was saved before is lost");
}

}  // namespace hone
