#include "weights/shard_writer.h"

#include <fmt/format.h>

#include <span>

#include "core/json.h"

namespace hone {

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

}  // namespace hone
