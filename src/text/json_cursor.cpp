#include "text/json_cursor.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "text/utf8.h"

namespace hone {

IndexedJson parse_json(std::string_view text, const std::string& file) {
  if (takes_much_memory(text)) throw UserError("the file has more lists and objects than fit into memory", file);
  try {
    return IndexedJson::parse(text.begin(), text.end());
  } catch (const IndexedJson::exception& error) {
    std::string detail = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, ...": the bracket is of no use to a user.
    if (const size_t end = detail.find("] "); end != std::string::npos) detail.erase(0, end + 2);
    throw UserError("not valid JSON: " + repair_utf8(detail), file, "copy the file again; it may be truncated");
  }
}

IndexedJson read_json_file(const std::filesystem::path& path, size_t max_bytes) {
  return parse_json(read_whole_file(path, max_bytes), path.string());
}

JsonCursor JsonCursor::child(const IndexedJson& value, std::string path) const {
  constexpr int kMaxDepth = 64;
  JsonCursor inner(value, file_, std::move(path));
  inner.depth_ = depth_ + 1;
  if (inner.depth_ > kMaxDepth) throw UserError(fmt::format("nested deeper than {} levels", kMaxDepth), file_);
  return inner;
}

std::string JsonCursor::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

bool JsonCursor::is_null() const { return value_->is_null(); }

void JsonCursor::expect_object() const {
  if (!value_->is_object()) fail(fmt::format("expected an object, found {}", value_->type_name()));
}

JsonCursor JsonCursor::at(std::string_view key) const {
  expect_object();
  const auto found = value_->find(key);
  if (found == value_->end()) fail(fmt::format("'{}' is missing", key));
  return child(*found, path_of(key));
}

std::optional<JsonCursor> JsonCursor::find(std::string_view key) const {
  expect_object();
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return child(*found, path_of(key));
}

size_t JsonCursor::array_size() const {
  if (!value_->is_array()) fail(fmt::format("expected an array, found {}", value_->type_name()));
  return value_->size();
}

JsonCursor JsonCursor::element(size_t index) const {
  return child((*value_)[index], fmt::format("{}[{}]", path_, index));
}

const std::string& JsonCursor::string() const {
  if (!value_->is_string()) fail(fmt::format("expected a string, found {}", value_->type_name()));
  return value_->get_ref<const std::string&>();
}

bool JsonCursor::boolean() const {
  if (!value_->is_boolean()) fail(fmt::format("expected true or false, found {}", value_->type_name()));
  return value_->get<bool>();
}

bool JsonCursor::boolean_or(std::string_view key, bool absent) const {
  const auto found = find(key);
  return found ? found->boolean() : absent;
}

int64_t JsonCursor::integer(int64_t min, int64_t max) const {
  if (!value_->is_number_integer()) fail(fmt::format("expected an integer, found {}", value_->type_name()));
  const bool too_large = value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t(INT64_MAX);
  if (too_large || value_->get<int64_t>() < min || value_->get<int64_t>() > max)
    fail(fmt::format("{} is not between {} and {}", value_->dump(), min, max));
  return value_->get<int64_t>();
}

void JsonCursor::fail(const std::string& what, const std::string& fix) const { throw UserError(what, where(), fix); }

}  // namespace hone
