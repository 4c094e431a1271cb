// TokenCache: the encoded rows of one data set in a folder; valid while their inputs are unchanged.
//
//   ROOT/content_hashes.json         hashes of data and tokenizer files (ContentHashes)
//   ROOT/NAME-KEY/block-00000.bin    write_block; each is complete or absent
//   ROOT/NAME-KEY/manifest.json      written last; the cache is complete if it exists
//   ROOT/NAME-KEY/lock               held while the cache is built
//
// A stopped build continues after its last complete block. The manifest contains the inputs of a cache, so a program
// can report why the cache does not match.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "core/text/json_value.h"
#include "data/formats/token_block.h"

namespace hone {

// TokenBlocks as files: written completely, read as mapped files, verified with their checksum.

/// The identity of a block.
struct BlockPlace {
  std::string key;        ///< in its data set
  int64_t index = 0;      ///< the block's number in its data set
  int64_t first_row = 0;  ///< its first row in its data set
};

/// Writes `block` durably (core/files/durable_file.h): a header in JSON, then its records, tokens, labels, weights and
/// row lengths, each aligned to 64 bytes.
void write_block(const std::filesystem::path& path, const TokenBlock& block, const BlockPlace& place);

/// Maps a block and verifies its checksum. Throws UserError if it is not readable, damaged, or of another version or
/// identity.
TokenBlock read_block(const std::filesystem::path& path, const BlockPlace& place);

// Hashes of file contents, stored between runs with the state of the file in the file system.

/// Hashes the content of a file with all threads; the hash does not depend on their number. Throws UserError if the
/// file cannot be read.
std::string content_hash(const std::filesystem::path& path, ThreadPool& pool);

/// Stores content_hash in a file, with (path, size, mtime, ctime, inode). A file that was changed within the last
/// seconds is not stored: a second change in the same tick would not be visible.
class ContentHashes {
 public:
  /// `memory`: the file of the stored hashes; an absent or damaged file has none.
  ContentHashes(std::filesystem::path memory, ThreadPool& pool);
  /// Writes new hashes. Ignores a file that cannot be written: the next run computes the hashes again.
  ~ContentHashes();
  ContentHashes(const ContentHashes&) = delete;
  ContentHashes& operator=(const ContentHashes&) = delete;

  std::string of(const std::filesystem::path& path);

 private:
  std::filesystem::path memory_;
  ThreadPool& pool_;
  JsonObject known_;  // by path: {"state", "hash"}
  bool changed_ = false;
};

/// Increase when this program encodes rows or writes blocks differently than before.
inline constexpr int kEncodingVersion = 3;

/// Describes the differences between two objects: "max_length is 2048, was 4096; data/a.jsonl has changed". Members
/// with hashes end in "_hash" or are in an object of hashes by path.
std::string describe_differences(const Json& before, const Json& now);

class TokenCache {
 public:
  struct Contents {
    JsonValue about;  ///< the argument of finish()
    std::vector<TokenBlock> blocks;
  };

  /// The cache in `root` of the data set `name`, whose tokens depend only on `inputs` (an object).
  TokenCache(const std::filesystem::path& root, const std::string& name, const Json& inputs);
  ~TokenCache();
  TokenCache(const TokenCache&) = delete;
  TokenCache& operator=(const TokenCache&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

  /// The whole cache if it is complete and every byte is unchanged; else nothing, and problem() has the reason.
  std::optional<Contents> open(ThreadPool& pool);

  /// Why open() returned nothing: what is damaged, or which inputs of the last cache of this data set have changed;
  /// empty if there was none.
  const std::string& problem() const { return problem_; }

  /// Takes the lock, once; calls `waiting` if another process holds it. Throws UserError if the folder is not writable.
  void lock(const std::function<void()>& waiting);

  /// With the lock: the complete blocks of an earlier, stopped build, from the first row on. Removes the files after
  /// them.
  std::vector<TokenBlock> partial();

  /// With the lock: writes the next block.
  void add(const TokenBlock& block);
  /// With the lock, after the last block: writes the manifest.
  void finish(const Json& about);

 private:
  std::filesystem::path block_path(int64_t index) const;
  void explain_absence();

  std::filesystem::path root_, folder_;
  JsonValue inputs_;
  std::string key_, problem_;
  std::vector<int64_t> first_rows_;  // where each block written so far begins
  int64_t rows_ = 0;                 // in these blocks
  int lock_ = -1;
};

}  // namespace hone
