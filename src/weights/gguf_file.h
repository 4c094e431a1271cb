// GGUF files: "GGUF", u32 version, u64 number of tensors, u64 number of keys; then for each key its name, u32 type and
// value; for each tensor its name, u32 number of dimensions, u64 dimensions (the contiguous one first), u32 type, u64
// offset; then the tensors' bytes, each at a multiple of general.alignment. A string is u64 length and bytes; an array
// u32 type, u64 count and values. Little-endian. Source: ggml/docs/gguf.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "weights/gguf_blocks.h"

namespace hone {

/// A value of the metadata. In files integers have 8 to 64 bits, numbers 32 or 64; written are u32 (i32 in lists) and
/// f32.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<bool>, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;
/// Keys in the order of the file.
class GgufMetadata {
 public:
  void set(const std::string& key, GgufValue value);
  const std::vector<std::pair<std::string, GgufValue>>& all() const { return values_; }
  /// Null if there is none.
  const GgufValue* find(const std::string& key) const;
  /// The values of a key; none if the file does not have it. UserError with `file` for another type.
  std::optional<std::string> text(const std::string& key) const;
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  template <class T>
  const std::vector<T>* list(const std::string& key) const;

  std::string file;  ///< for messages

 private:
  template <class T>
  std::optional<T> value(const std::string& key, const char* what) const;
  [[noreturn]] void refuse(const std::string& key, const char* what) const;

  std::vector<std::pair<std::string, GgufValue>> values_;
  std::map<std::string, size_t> by_key_;
};

/// One tensor of a file.
struct GgufEntry {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;  ///< the contiguous dimension last, one to four
  uint64_t begin = 0;          ///< byte offset in the file

  int64_t numel() const;
  uint64_t bytes() const;  ///< in the file
};

/// Reads one file. Its header is fully validated: lengths, types, shapes, bounds, alignment, overlaps, repeated names.
/// UserError with the file and the tensor or key.
class GgufFile {
 public:
  explicit GgufFile(std::filesystem::path path);

  /// Whether the name of a file ends in .gguf, or a file begins as one.
  static bool is_one(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const GgufMetadata& metadata() const { return metadata_; }
  /// In the order of the file.
  const std::vector<GgufEntry>& entries() const { return entries_; }
  /// Null if the file does not have the tensor.
  const GgufEntry* find(const std::string& name) const;

  /// Elements [first, first + count) as float32. UserError for a number that is not finite. Thread-safe.
  void read_floats(const GgufEntry& entry, int64_t first, int64_t count, float* values) const;
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  class Reader;
  void parse();
  void check_places(uint64_t data_begin, uint64_t alignment);

  FileBytes file_;
  GgufMetadata metadata_;
  std::vector<GgufEntry> entries_;
  std::map<std::string, size_t> by_name_;
};

/// Writes one file under a temporary name: the header at construction, then the tensors one after another.
class GgufWriter {
 public:
  struct Announced {
    std::string name;
    GgufType type;
    std::vector<int64_t> shape;  ///< as in GgufEntry; the last one is a multiple of the type's block
  };

  /// UserError if the file cannot be created. Names are unique and at most kLongestGgufName bytes long.
  GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata, std::vector<Announced> tensors);

  const std::vector<Announced>& tensors() const { return tensors_; }
  /// Appends whole rows of the current tensor, encoded in its type. UserError with the tensor for a number that is not
  /// finite in it.
  void write_floats(std::span<const float> values);
  /// Syncs and closes the file, and returns its temporary name, which the caller renames or removes. Every tensor must
  /// be complete.
  const std::filesystem::path& complete();

 private:
  void pad();

  NewFile file_;
  std::string path_;
  std::vector<Announced> tensors_;
  size_t current_ = 0;
  int64_t left_ = 0;      ///< elements of the current tensor that are not written yet
  uint64_t written_ = 0;  ///< bytes
  std::vector<std::byte> bytes_;
};

/// The longest name of a tensor that ggml takes.
inline constexpr size_t kLongestGgufName = 63;

}  // namespace hone
