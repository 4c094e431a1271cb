// A value inside a user's JSON file together with its path, which errors contain.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/text/json_fwd.h"

namespace hone {

/// JSON with std::map objects: ordered_json finds a key linearly, which is quadratic for a vocabulary of 150,000
/// entries.
using IndexedJson = nlohmann::json;

/// Reads and parses a file of at most `max_bytes`; a missing, oversized or malformed file is a UserError that contains
/// its path.
IndexedJson read_json_file(const std::filesystem::path& path, size_t max_bytes);

/// Parses `text`; the UserError for malformed JSON contains `file`.
IndexedJson parse_json(std::string_view text, const std::string& file);

/// A position in a parsed file. Accessors check the type and throw a UserError with file and path ("model.merges"). A
/// position deeper than 64 levels is an error too, so recursive readers are safe.
/// Borrows the value: the document must outlive the cursor.
class JsonCursor {
 public:
  JsonCursor(const IndexedJson& value, std::string file, std::string path = {})
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const IndexedJson& value() const { return *value_; }
  /// "tokenizer.json: model.merges"
  std::string where() const { return path_.empty() ? file_ : file_ + ": " + path_; }
  const std::string& file() const { return file_; }

  /// Member `key` of an object; throws if absent.
  JsonCursor at(std::string_view key) const;
  /// Member `key` of an object, or nothing when it is absent or null.
  std::optional<JsonCursor> find(std::string_view key) const;

  /// Number of elements; the value must be an array.
  size_t array_size() const;
  JsonCursor element(size_t index) const;

  const std::string& string() const;
  bool boolean() const;
  bool boolean_or(std::string_view key, bool absent) const;
  int64_t integer(int64_t min, int64_t max) const;
  /// The member "type" of an object.
  const std::string& type() const { return at("type").string(); }
  bool is_null() const;

  void expect_object() const;
  [[noreturn]] void fail(const std::string& what, const std::string& fix = {}) const;

 private:
  JsonCursor child(const IndexedJson& value, std::string path) const;

  std::string path_of(std::string_view key) const;

  const IndexedJson* value_;
  std::string file_, path_;
  int depth_ = 0;
};

/// Counts the steps of a normalizer, pre-tokenizer or decoder: each step processes the whole text.
class StepCount {
 public:
  /// Throws UserError at `json` if there are more steps than any published tokenizer has.
  void add(const JsonCursor& json) {
    constexpr int kMost = 256;
    if (++count_ > kMost) json.fail("there are more than 256 steps");
  }

 private:
  int count_ = 0;
};

}  // namespace hone
