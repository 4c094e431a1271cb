// A file that arrives in pieces, in any order, and survives the end of its program: the pieces that are complete are
// noted after its bytes, so that one file is all there is of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/descriptor.h"
#include "hub/repository.h"

namespace hone {

class PartFile {
 public:
  /// Opens the unfinished file of a blob, or creates it: BLOB.HHHHHHHH.incomplete, with digits of the host's name, so
  /// that hosts without common locks never write the same file. Takes over what has not been written for a minute from
  /// other hosts, and BLOB.incomplete of older hub programs, which is the beginning of the file. With the lock of the
  /// blob. UserError if it cannot be written.
  PartFile(const std::filesystem::path& blob, uint64_t size);

  uint64_t size() const { return size_; }
  uint64_t piece_bytes() const { return piece_; }
  size_t pieces() const { return done_.size(); }
  uint64_t piece_begin(size_t piece) const { return piece * piece_; }
  uint64_t piece_end(size_t piece) const;
  /// Not thread-safe with mark().
  bool done(size_t piece) const { return done_[piece] != 0; }
  /// Bytes of the pieces that are done.
  uint64_t bytes_done() const;

  /// Thread-safe for pieces that are not done. UserError if it fails, with the space that is missing.
  void write(uint64_t offset, std::string_view bytes) const;
  /// Notes in the file that a piece is complete, and starts to bring it to the disk. Thread-safe as write().
  void note(size_t piece) const;
  /// What done() then says.
  void mark(size_t piece) { done_[piece] = 1; }
  /// Reads bytes that are written. UserError if it fails.
  std::string_view read(uint64_t offset, size_t count, std::string& buffer) const;

  /// Syncs the file and gives it the blob's name. All pieces are done.
  void finish();
  /// Removes it: its bytes are wrong.
  void discard();

 private:
  void adopt_another() const;
  void open();
  uint64_t whole_size() const;
  [[noreturn]] void fail(const char* what) const;

  const std::filesystem::path blob_, path_;
  const uint64_t size_;
  uint64_t piece_;
  std::vector<unsigned char> done_;
  Descriptor file_;
};

/// The hash of a blob's bytes, taken in order: the SHA-256 of a large file, else git's SHA-1.
class BlobHash {
 public:
  explicit BlobHash(const RepoFile& file);
  ~BlobHash();
  BlobHash(const BlobHash&) = delete;
  BlobHash& operator=(const BlobHash&) = delete;

  void update(std::string_view bytes);
  uint64_t bytes() const { return bytes_; }
  /// As hexadecimal digits. Call once.
  std::string digest();

 private:
  void* context_;
  uint64_t bytes_ = 0;
};

}  // namespace hone
