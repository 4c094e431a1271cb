#include "weights/manifest.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "weights/card_file.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1;
constexpr uint64_t kChecksumPiece = 4 << 20;

uint32_t crc_of(const FileBytes& file, uint64_t begin, uint64_t end, std::vector<std::byte>& buffer) {
  uint32_t crc = 0;
  buffer.resize(std::min(kChecksumPiece, end - begin));
  for (uint64_t at = begin; at < end; at += buffer.size()) {
    const uint64_t count = std::min<uint64_t>(buffer.size(), end - at);
    file.read(at, buffer.data(), count);
    crc = extend_crc32c(crc, std::span(buffer).first(count));
  }
  return crc;
}

[[noreturn]] void damaged(const fs::path& path, const std::string& why) {
  throw UserError("the manifest is damaged: " + why, path.string(), "resume from an older checkpoint");
}

FileChecksum checksum_of(const Json& json) {
  const auto text = json.at("crc32c").get<std::string>();
  size_t used = 0;
  const unsigned long crc = std::stoul(text, &used, 16);
  if (used != text.size() || text.size() != 8)
    throw std::invalid_argument("a checksum is not eight hexadecimal digits");
  if (!json.at("bytes").is_number_unsigned()) throw std::invalid_argument("a size is not an unsigned integer");
  return {json.at("bytes").get<uint64_t>(), static_cast<uint32_t>(crc)};
}

}  // namespace

void FileLedger::add(const std::string& file, uint64_t offset, std::span<const std::byte> bytes) {
  const uint32_t crc = crc32c(bytes);
  const std::lock_guard lock(mutex_);
  files_[file].push_back({offset, offset + bytes.size(), crc});
}

/// Sorts pieces and removes overlaps, so that bytes that were read twice count once.
std::vector<FileLedger::Piece> FileLedger::joined(std::vector<Piece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::vector<Piece> runs;
  for (const Piece& piece : pieces) {
    if (!runs.empty() && piece.begin < runs.back().end) continue;
    if (!runs.empty() && piece.begin == runs.back().end) {
      runs.back().crc = join_crc32c(runs.back().crc, piece.crc, piece.end - piece.begin);
      runs.back().end = piece.end;
    } else {
      runs.push_back(piece);
    }
  }
  return runs;
}

Json FileLedger::pieces() const {
  const std::lock_guard lock(mutex_);
  Json json = Json::object();
  for (const auto& [file, pieces] : files_) {
    Json runs = Json::array();
    for (const Piece& run : joined(pieces)) runs.push_back({run.begin, run.end, run.crc});
    json[file] = std::move(runs);
  }
  return json;
}

void FileLedger::merge(const Json& pieces) {
  const std::lock_guard lock(mutex_);
  for (const auto& [file, runs] : pieces.items()) {
    for (const Json& run : runs) files_[file].push_back({run.at(0), run.at(1), run.at(2)});
  }
}

std::optional<uint32_t> FileLedger::whole(const std::string& file, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(file);
  if (found == files_.end()) return std::nullopt;
  const std::vector<Piece> runs = joined(found->second);
  const bool all = runs.size() == 1 && runs[0].begin == 0 && runs[0].end == bytes;
  return all ? std::optional(runs[0].crc) : std::nullopt;
}

Manifest Manifest::of(const fs::path& folder, const FileChecksums& known) {
  Manifest manifest;
  std::vector<std::byte> buffer;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name == kManifestName || name == kTemporaryMarker || name == kCardName;
    if (ours || !entry.is_regular_file()) continue;
    const auto found = known.find(name);
    if (found != known.end() && found->second.bytes == entry.file_size()) {
      manifest.files_[name] = found->second;
      continue;
    }
    const FileBytes file(entry.path());
    manifest.files_[name] = {file.size(), crc_of(file, 0, file.size(), buffer)};
  }
  return manifest;
}

std::optional<Manifest> Manifest::read(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  const std::optional<Json> read = read_json_if_there(path);
  if (!read) return std::nullopt;
  const Json& json = *read;
  Manifest manifest;
  try {
    if (json.at("version") != kVersion) damaged(path, "its version is " + json.at("version").dump());
    for (const auto& [name, checksum] : json.at("files").items()) {
      if (fs::path(name).has_parent_path() || name.empty() || name == "..")
        damaged(path, "it lists files of other folders");
      manifest.files_[name] = checksum_of(checksum);
    }
  } catch (const Json::exception& problem) {
    damaged(path, problem.what());
  } catch (const std::logic_error& problem) {  // thrown by stoul
    damaged(path, problem.what());
  }
  return manifest;
}

void Manifest::write(const fs::path& folder) const {
  Json files = Json::object();
  for (const auto& [name, checksum] : files_) {
    files[name] = {{"bytes", checksum.bytes}, {"crc32c", fmt::format("{:08x}", checksum.crc32c)}};
  }
  const Json json = {{"version", kVersion}, {"files", std::move(files)}};
  write_durably(folder / kManifestName, json.dump(1) + "\n");
}

std::string Manifest::sizes_problem(const fs::path& folder) const {
  for (const auto& [name, checksum] : files_) {
    std::error_code error;
    const fs::path path = folder / name;
    if (!fs::is_regular_file(path, error)) return name + " is missing";
    const uintmax_t bytes = fs::file_size(path, error);
    if (error || bytes != checksum.bytes) return fmt::format("{} has {} bytes, not {}", name, bytes, checksum.bytes);
  }
  return "";
}

std::string Manifest::contents_problem(const fs::path& folder, const FileLedger& ledger,
                                       const std::set<std::string>& skip) const {
  std::vector<std::byte> buffer;
  for (const auto& [name, checksum] : files_) {
    if (skip.contains(name)) continue;
    const FileBytes file(folder / name);
    if (file.size() != checksum.bytes) return fmt::format("{} has {} bytes, not {}", name, file.size(), checksum.bytes);
    std::vector<FileLedger::Piece> runs;
    {
      const std::lock_guard lock(ledger.mutex_);
      if (const auto read = ledger.files_.find(name); read != ledger.files_.end())
        runs = FileLedger::joined(read->second);
    }
    uint32_t crc = 0;
    uint64_t at = 0;
    const auto read_until = [&](uint64_t end) {
      if (end > at) crc = join_crc32c(crc, crc_of(file, at, end, buffer), end - at);
    };
    for (const FileLedger::Piece& run : runs) {
      if (run.end > checksum.bytes) break;
      read_until(run.begin);
      crc = join_crc32c(crc, run.crc, run.end - run.begin);
      at = run.end;
    }
    read_until(checksum.bytes);
    if (crc != checksum.crc32c) {
      return fmt::format("{} has other bytes than were written (CRC-32C {:08x}, not {:08x})", name, crc,
                         checksum.crc32c);
    }
  }
  return "";
}

}  // namespace hone
