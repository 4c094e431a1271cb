#include "data/block_file.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

#include "core/checksum.h"
#include "core/durable_file.h"
#include "core/error.h"
#include "core/untrusted_json.h"

namespace hone {

namespace {

constexpr std::array<char, 8> kMagic = {'h', 'o', 'n', 'e', 'b', 'l', 'k', '1'};
constexpr size_t kAlignment = 64;

struct Prefix {
  std::array<char, 8> magic = kMagic;
  uint64_t checksum = 0;  ///< of everything behind it
  uint64_t header_bytes = 0;
};

size_t aligned(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

/// The arrays of a block in the order of the file.
std::array<std::span<const std::byte>, 5> sections_of(const TokenBlock& block) {
  return {std::as_bytes(block.samples), std::as_bytes(block.input_ids), std::as_bytes(block.labels),
          std::as_bytes(block.weights), std::as_bytes(block.lengths)};
}

Json header_of(const TokenBlock& block, const BlockPlace& place) {
  return {{"key", place.key},
          {"index", place.index},
          {"first_row", place.first_row},
          {"samples", block.samples.size()},
          {"tokens", block.input_ids.size()},
          {"weights", block.weights.size()},
          {"lengths", block.lengths.size()},
          {"digest", hash_text(block.digest)},
          {"report", block.report.to_json()}};
}

/// Reads a mapped block from front to back.
class BlockReader {
 public:
  BlockReader(const std::filesystem::path& path, std::shared_ptr<const MappedFile> file)
      : path_(path), file_(std::move(file)), rest_(file_->bytes()) {}

  TokenBlock read(const BlockPlace& place) {
    const Json header = read_header();
    TokenBlock block;
    try {
      const bool same = header.at("key") == place.key && header.at("index") == place.index &&
                        header.at("first_row") == place.first_row;
      if (!same) fail("it is a block of other data");
      block.report = RowsReport::from_json(header.at("report"));
      const size_t tokens = header.at("tokens");
      block.samples = section<SampleRecord>(header.at("samples"));
      block.input_ids = section<int32_t>(tokens);
      block.labels = section<int32_t>(tokens);
      block.weights = section<float>(header.at("weights"));
      block.lengths = section<int32_t>(header.at("lengths"));
      block.digest = std::stoull(header.at("digest").get<std::string>(), nullptr, 16);
    } catch (const std::exception& error) {
      if (dynamic_cast<const UserError*>(&error)) throw;
      fail(std::string("its header is damaged: ") + error.what());
    }
    check(block);
    block.memory = file_;
    return block;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw UserError(what, path_.string()); }

  std::span<const std::byte> take(size_t bytes) {
    if (rest_.size() < bytes) fail("it is too short");
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }

  Json read_header() {
    Prefix prefix;
    std::memcpy(&prefix, take(sizeof(prefix)).data(), sizeof(prefix));
    if (prefix.magic != kMagic) fail("it is of another version, or no block");
    constexpr size_t kChecked = offsetof(Prefix, header_bytes);
    if (Xxh64().update(file_->bytes().subspan(kChecked)).digest() != prefix.checksum) fail("its checksum is wrong");
    const auto text = take(prefix.header_bytes);
    skip_padding();
    return parse_json(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
  }

  void skip_padding() {
    const size_t at = file_->bytes().size() - rest_.size();
    take(std::min(aligned(at) - at, rest_.size()));
  }

  template <class Element>
  std::span<const Element> section(size_t count) {
    if (count > rest_.size()) fail("it is too short");  // before a product that could overflow
    const auto bytes = take(count * sizeof(Element));
    skip_padding();
    return {reinterpret_cast<const Element*>(bytes.data()), count};
  }

  void check(const TokenBlock& block) const {
    if (!block.weights.empty() && block.weights.size() != block.input_ids.size()) fail("its arrays disagree");
    for (const SampleRecord& sample : block.samples) {
      const auto tokens = static_cast<int64_t>(block.input_ids.size());
      if (sample.begin < 0 || sample.length < 0 || sample.begin > tokens - sample.length) fail("its arrays disagree");
    }
  }

  const std::filesystem::path& path_;
  std::shared_ptr<const MappedFile> file_;
  std::span<const std::byte> rest_;
};

}  // namespace

void write_block(const std::filesystem::path& path, const TokenBlock& block, const BlockPlace& place) {
  static constexpr std::array<std::byte, kAlignment> kPadding{};
  const std::string header = header_of(block, place).dump();
  Prefix prefix;
  prefix.header_bytes = header.size();
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(&prefix, 1))};
  size_t at = sizeof(prefix);
  const auto add = [&](std::span<const std::byte> part) {
    parts.push_back(part);
    at += part.size();
    parts.push_back(std::span(kPadding).first(aligned(at) - at));
    at = aligned(at);
  };
  add(std::as_bytes(std::span(header)));
  for (const std::span<const std::byte> section : sections_of(block)) add(section);
  Xxh64 checksum;
  checksum.update(prefix.header_bytes);
  for (const std::span<const std::byte> part : std::span(parts).subspan(1)) checksum.update(part);
  prefix.checksum = checksum.digest();
  write_durably(path, parts);
}

TokenBlock read_block(const std::filesystem::path& path, const BlockPlace& place) {
  return BlockReader(path, std::make_shared<const MappedFile>(path)).read(place);
}

}  // namespace hone
