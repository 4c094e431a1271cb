// The manifest of a folder that Hone wrote: hone_manifest.json lists its files with their sizes and CRC-32C. A
// checkpoint is resumed only if it matches its manifest. A model's manifest tells which files a later save may replace;
// users may edit the files. It has relative names and no times, so it stays valid in copies.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

inline constexpr const char* kManifestName = "hone_manifest.json";

/// Size and checksum of a file.
struct FileChecksum {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;

  bool operator==(const FileChecksum&) const = default;
};

/// File name → checksum, computed while the files were written.
using FileChecksums = std::map<std::string, FileChecksum>;

/// Records which parts of a folder's files have been read or written, with their checksums. Thread-safe.
class FileLedger {
 public:
  void add(const std::string& file, uint64_t offset, std::span<const std::byte> bytes);

  /// All records, adjacent pieces joined: {file: [[begin, end, crc], …]}, to be sent to other ranks.
  Json pieces() const;
  /// Adds the records of another rank.
  void merge(const Json& pieces);
  /// The CRC-32C of a file of `bytes` bytes; nothing unless the records cover all of them.
  std::optional<uint32_t> whole(const std::string& file, uint64_t bytes) const;

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
  /// Builds the manifest of all files of `folder` but its card. Files in `known` are not read again.
  static Manifest of(const std::filesystem::path& folder, const FileChecksums& known);
  /// Reads the folder's manifest; nothing if there is none. UserError if it cannot be read.
  static std::optional<Manifest> read(const std::filesystem::path& folder);

  void write(const std::filesystem::path& folder) const;
  const FileChecksums& files() const { return files_; }

  /// Describes the first file that is missing or has another size: "model.safetensors has 5,000 bytes, not 81,920"; ""
  /// if all match.
  std::string sizes_problem(const std::filesystem::path& folder) const;

  /// Describes the first file whose contents differ from the manifest; "" if all match. Parts recorded in `ledger` are
  /// not read again; files in `skip` are not checked.
  std::string contents_problem(const std::filesystem::path& folder, const FileLedger& ledger,
                               const std::set<std::string>& skip = {}) const;

 private:
  FileChecksums files_;
};

}  // namespace hone
