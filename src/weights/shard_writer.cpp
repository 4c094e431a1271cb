#include "weights/shard_writer.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "core/checksum.h"
#include "core/durable_file.h"
#include "core/error.h"
#include "core/json.h"

namespace hone {
namespace {

/// A number is finite unless all bits of its exponent are set: then adding the lowest exponent bit to the exponent
/// carries into the sign bit. Processes eight bytes at a time; no carry crosses numbers.
template <class Bits>
bool none_lost(const std::byte* elements, int64_t count, Bits exponent) {
  constexpr uint64_t kEach = ~uint64_t{0} / static_cast<Bits>(~Bits{0});  // a one in each number's lowest bit
  const auto lowest = static_cast<Bits>(exponent & -static_cast<int64_t>(exponent));
  const uint64_t mask = kEach * exponent, one = kEach * lowest;
  uint64_t signs = 0, rest = 0;
  const size_t bytes = static_cast<size_t>(count) * sizeof(Bits), words = bytes / sizeof(uint64_t);
  for (size_t i = 0; i < words; ++i) {
    uint64_t word;
    std::memcpy(&word, elements + i * sizeof(word), sizeof(word));
    signs |= (word & mask) + one;
  }
  if (const size_t left = bytes - words * sizeof(rest)) std::memcpy(&rest, elements + (bytes - left), left);
  signs |= (rest & mask) + one;
  return (signs & (kEach << (8 * sizeof(Bits) - 1))) == 0;
}

}  // namespace

bool all_finite(DType dtype, const std::byte* elements, int64_t count) {
  return dtype == DType::kF32    ? none_lost<uint32_t>(elements, count, 0x7F800000u)
         : dtype == DType::kBF16 ? none_lost<uint16_t>(elements, count, 0x7F80)
         : dtype == DType::kF16  ? none_lost<uint16_t>(elements, count, 0x7C00)
                                 : true;
}

void require_finite(const std::string& name, DType dtype, const std::byte* elements, int64_t count) {
  if (all_finite(dtype, elements, count)) return;
  throw Error(ExitCode::kNumbersLost, "the last update left numbers in '" + name + "' that are not finite", name,
              "it was not saved; resume from the newest checkpoint with a lower learning_rate");
}

namespace {

void write_shard(const std::filesystem::path& path, std::span<const PlannedTensor> tensors, FileChecksums* checksums) {
  std::vector<SafetensorsWriter::Announced> announced;
  for (const PlannedTensor& tensor : tensors) announced.push_back(tensor.announced);
  SafetensorsWriter writer(path, std::move(announced));
  for (const PlannedTensor& tensor : tensors) tensor.write(writer);
  const FileChecksum checksum = writer.finish();
  if (checksums) (*checksums)[path.filename().string()] = checksum;
}

}  // namespace

std::vector<ShardRange> plan_shards(std::span<const SafetensorsWriter::Announced> tensors, int64_t max_shard_size) {
  std::vector<ShardRange> shards(1);
  int64_t shard_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].bytes();
    if (shard_bytes > 0 && shard_bytes + bytes > max_shard_size) {
      shards.push_back({"", i, i});
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    shards.back().end = i + 1;
  }
  shards.front().name = "model.safetensors";
  if (shards.size() == 1) return shards;
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

void write_index(const std::filesystem::path& directory, std::span<const ShardRange> shards,
                 std::span<const SafetensorsWriter::Announced> tensors) {
  if (shards.size() == 1) return;
  int64_t total_bytes = 0;
  Json weight_map = Json::object();
  for (const ShardRange& shard : shards) {
    for (size_t i = shard.begin; i < shard.end; ++i) {
      weight_map[tensors[i].name] = shard.name;
      total_bytes += tensors[i].bytes();
    }
  }
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(weight_map)}};
  write_text_file(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

void write_shards(const std::filesystem::path& directory, const std::vector<PlannedTensor>& tensors,
                  int64_t max_shard_size, FileChecksums* checksums) {
  std::vector<SafetensorsWriter::Announced> announced;
  for (const PlannedTensor& tensor : tensors) announced.push_back(tensor.announced);
  const std::vector<ShardRange> shards = plan_shards(announced, max_shard_size);
  for (const ShardRange& shard : shards) {
    write_shard(directory / shard.name, std::span(tensors).subspan(shard.begin, shard.end - shard.begin), checksums);
  }
  write_index(directory, shards, announced);
}

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
  // Start writeback, so that sync() waits less. If the file system does not support this, only sync() takes longer.
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
