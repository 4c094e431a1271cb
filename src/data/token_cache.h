// TokenCache: the encoded rows of one data set in a folder, as long as nothing they depend on has changed.
//
//   ROOT/content_hashes.json         hashes of data and tokenizer files (ContentHashes)
//   ROOT/NAME-KEY/block-00000.bin    write_block; each is whole or not there
//   ROOT/NAME-KEY/manifest.json      written last: with it the cache is complete
//   ROOT/NAME-KEY/lock               held while the cache is built
//
// A build that was stopped goes on behind its last whole block. What a cache depends on ("inputs") stands in its
// manifest, so that a program can say why it does not fit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/thread_pool.h"
#include "data/token_block.h"

namespace hone {

// TokenBlocks as files: written whole, read by mapping them, held against their checksum.

/// What a block belongs to.
struct BlockPlace {
  std::string key;        ///< of the cache
  int64_t index = 0;      ///< of the block in its data set
  int64_t first_row = 0;  ///< of its data set
};

/// Writes `block` durably (core/durable_file.h). Its records, tokens, labels, weights and row lengths follow a header
/// in JSON, each at a multiple of 64 bytes.
void write_block(const std::filesystem::path& path, const TokenBlock& block, const BlockPlace& place);

/// Maps a block, whose bytes are held against their checksum. Throws UserError: not readable, damaged, of another
/// version or another place.
TokenBlock read_block(const std::filesystem::path& path, const BlockPlace& place);

// Hashes of file contents, remembered between runs by what the file system says about a file.

/// The hash of a file's content, made by all threads; independent of their number. UserError if it cannot be read.
std::string content_hash(const std::filesystem::path& path, ThreadPool& pool);

/// content_hash, kept in a file under (path, size, times of the last changes of content and of attributes, inode). A
/// file that was changed within the last seconds is not remembered: another change in the same tick would not show.
class ContentHashes {
 public:
  /// `memory`: the file they are kept in; one that is absent or damaged is an empty one.
  ContentHashes(std::filesystem::path memory, ThreadPool& pool);
  /// Writes what is new. A file that cannot be written is left alone: the next run hashes again.
  ~ContentHashes();
  ContentHashes(const ContentHashes&) = delete;
  ContentHashes& operator=(const ContentHashes&) = delete;

  std::string of(const std::filesystem::path& path);

 private:
  std::filesystem::path memory_;
  ThreadPool& pool_;
  Json known_ = Json::object();  // by path: {"state", "hash"}
  bool changed_ = false;
};

/// Raised whenever this program would encode rows otherwise, or write other blocks, than before.
inline constexpr int kEncodingVersion = 2;

/// What differs between two objects, member by member: "max_length is 2048, was 4096; data/a.jsonl has changed".
/// Members that hold hashes end in "_hash" or stand in an object of hashes by path.
std::string describe_differences(const Json& before, const Json& now);

class TokenCache {
 public:
  struct Contents {
    Json about;  ///< what finish() was given
    std::vector<TokenBlock> blocks;
  };

  /// The cache below `root` of the data set `name` whose tokens depend on `inputs` (an object) and nothing else.
  TokenCache(const std::filesystem::path& root, const std::string& name, const Json& inputs);
  ~TokenCache();
  TokenCache(const TokenCache&) = delete;
  TokenCache& operator=(const TokenCache&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

  /// Everything, if it is complete and every byte is as it was written; else nothing, and problem() says why.
  std::optional<Contents> open(ThreadPool& pool);

  /// Why open() gave nothing: what is damaged, which inputs of the last cache of this data set have changed; empty if
  /// there was none.
  const std::string& problem() const { return problem_; }

  /// Takes the lock, once; `waiting` is called if another process holds it. UserError if the folder is not writable.
  void lock(const std::function<void()>& waiting);

  /// Under the lock: the whole blocks of an earlier build that was stopped, from the first row on; files behind them
  /// are removed.
  std::vector<TokenBlock> partial();

  /// Under the lock: the next block.
  void add(const TokenBlock& block);
  /// Under the lock, behind the last block.
  void finish(const Json& about);

 private:
  std::filesystem::path block_path(int64_t index) const;
  void explain_absence();

  std::filesystem::path root_, folder_;
  Json inputs_;
  std::string key_, problem_;
  std::vector<int64_t> first_rows_;  // of the blocks written so far
  int64_t rows_ = 0;                 // in them
  int lock_ = -1;
};

}  // namespace hone
