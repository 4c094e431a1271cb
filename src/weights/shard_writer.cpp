#include "weights/shard_writer.h"

#include <fmt/format.h>

#include <span>

namespace hone {

namespace {

void write_shard(const std::filesystem::path& path, std::span<const PlannedTensor> tensors) {
  std::vector<SafetensorsWriter::Announced> announced;
  for (const PlannedTensor& tensor : tensors) announced.push_back(tensor.announced);
  SafetensorsWriter writer(path, std::move(announced));
  for (const PlannedTensor& tensor : tensors) tensor.write(writer);
  writer.finish();
}

}  // namespace

void write_shards(const std::filesystem::path& directory, const std::vector<PlannedTensor>& tensors,
                  int64_t max_shard_size) {
  std::vector<size_t> begins = {0};  // of the shards
  int64_t shard_bytes = 0, total_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].announced.bytes();
    if (shard_bytes > 0 && shard_bytes + bytes > max_shard_size) {
      begins.push_back(i);
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    total_bytes += bytes;
  }
  if (begins.size() == 1) return write_shard(directory / "model.safetensors", tensors);
  Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", Json::object()}};
  for (size_t i = 0; i < begins.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, begins.size());
    const size_t end = i + 1 < begins.size() ? begins[i + 1] : tensors.size();
    const auto shard = std::span(tensors).subspan(begins[i], end - begins[i]);
    write_shard(directory / name, shard);
    for (const PlannedTensor& tensor : shard) index["weight_map"][tensor.announced.name] = name;
  }
  write_text_file(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace hone
