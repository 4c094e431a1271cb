// Hashes of file contents, remembered between runs by what the file system says about a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/json.h"
#include "core/thread_pool.h"

namespace hone {

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

}  // namespace hone
