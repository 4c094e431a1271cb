#include "weights/shard_writer.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"

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

PlacedWriter::PlacedWriter(std::filesystem::path path, const std::vector<SafetensorsWriter::Announced>& tensors)
    : path_(std::move(path)), temporary_(temporary_beside(path_)), layout_(tensors) {
  file_.emplace(PlacedFile::create(temporary_, layout_, path_));
  try {
    written_.emplace(temporary_);
    for (const SafetensorsWriter::Announced& tensor : tensors) entries_.push_back(&written_->at(tensor.name));
  } catch (...) {
    unlink(temporary_.c_str());
    throw;
  }
}

PlacedWriter::~PlacedWriter() {
  if (finished_) return;
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void PlacedWriter::write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t begin = layout_.offset(tensor) + offset;
  HONE_ASSERT(begin + bytes.size() <= layout_.end(tensor), path_.string());
  file_->write(begin, bytes);
  file_->start_writing_back(begin, bytes.size());
}

void PlacedWriter::read(size_t tensor, uint64_t offset, std::span<std::byte> bytes) const {
  written_->read(*entries_[tensor], offset, bytes.data(), bytes.size());
}

void PlacedWriter::sync() {
  file_->sync();
  synced_ = true;
}

FileChecksum PlacedWriter::finish(uint32_t tensors) {
  HONE_ASSERT(synced_, path_.string());
  file_.reset();
  written_.reset();
  std::filesystem::rename(temporary_, path_);
  finished_ = true;
  return {layout_.bytes(), join_crc32c(layout_.header_crc(), tensors, layout_.bytes() - layout_.header().size())};
}

}  // namespace hone
