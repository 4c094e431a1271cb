// The manifest of a folder that Hone wrote: hone_manifest.json names its files with their sizes and CRC-32C. A
// checkpoint is resumed only if it is as its manifest says; a model's manifest says which files a later save may
// replace, and keeps nobody from editing them. It holds relative names and no times, so it survives copying.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/json_fwd.h"

namespace hone {

inline constexpr const char* kManifestName = "hone_manifest.json";

/// What a file's bytes sum up to.
struct FileChecksum {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;

  bool operator==(const FileChecksum&) const = default;
};

/// Name → checksum, as those who wrote the files computed them on the way.
using FileChecksums = std::map<std::string, FileChecksum>;

/// What has been read of the files of a folder, with its checksums. Safe to call from several threads.
class ReadLedger {
 public:
  void add(const std::string& file, uint64_t offset, std::span<const std::byte> bytes);

  /// All of it, neighbouring pieces joined: {file: [[begin, end, crc], …]}. For other ranks.
  Json pieces() const;
  /// Adds what another rank has read.
  void merge(const Json& pieces);

 private:
  friend class Manifest;
  struct Piece {
    uint64_t begin, end;
    uint32_t crc;
  };
  static std::vector<Piece> joined(std::vector<Piece> pieces);

  mutable std::mutex mutex_;
  std::map<std::string, std::vector<Piece>> files_;
};

class Manifest {
 public:
  /// Of every file of `folder`. Those that `known` has are not read again.
  static Manifest of(const std::filesystem::path& folder, const FileChecksums& known);
  /// The folder's; nothing if it has none. UserError if it cannot be read.
  static std::optional<Manifest> read(const std::filesystem::path& folder);

  void write(const std::filesystem::path& folder) const;
  const FileChecksums& files() const { return files_; }

  /// The first file that is missing or of another size: "model.safetensors has 5,000 bytes, not 81,920"; "" if none is.
  std::string sizes_problem(const std::filesystem::path& folder) const;

  /// The first file whose bytes are not those that were written; "" if none is. What `ledger` has is not read again;
  /// the files of `skip` are not looked at.
  std::string contents_problem(const std::filesystem::path& folder, const ReadLedger& ledger,
                               const std::set<std::string>& skip = {}) const;

 private:
  FileChecksums files_;
};

}  // namespace hone
