// column_mapping and ignore_columns: which columns of the data a format reads if they have other names, and which it
// ignores.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

/// Maps Hone's names to names in the data. One mapping has three kinds of names, which do not overlap:
///   columns       system, prompt, response, messages, tools, … (known_columns): {prompt: question}
///   message keys  role, content, reasoning_content, tool_calls, weight, …: {role: from, content: value}
///   speakers      {roles: {user: human, assistant: [gpt, model]}}
/// Accepts the names of other tools too: query, conversations, role_tag, user_tag, message_field_role, …
class ColumnMapping {
 public:
  ColumnMapping() = default;

  /// An empty mapping.
  static const ColumnMapping& none();

  /// Throws UserError at `where` for an unknown name (with the nearest one), a column with two purposes, and images.
  static ColumnMapping parse(const Json& mapping, const std::string& where);

  /// ignore_columns: treats these columns of the data as absent. Throws UserError at `where` if the mapping reads one
  /// of them.
  void ignore(const std::vector<std::string>& columns, const std::string& where);
  const std::vector<std::string>& ignored() const { return ignored_; }
  bool ignores(std::string_view column) const;

  /// Equal for equivalent mappings.
  Json to_json() const;

  /// The column that `name` is read from, or null if it is not mapped.
  const std::string* column(std::string_view name) const;
  /// Whether some name is read from this column; the column is then not read under its own name.
  bool takes(std::string_view column) const;
  /// Hone's names that are mapped to columns, in the order of the mapping.
  std::vector<std::string_view> mapped_columns() const;

  /// The key of a message that holds `name` ("role", "content", …), or null if it is not mapped.
  const std::string* message_key(std::string_view name) const;
  /// Hone's name for a key of a message; the key itself if it is not mapped.
  std::string_view meaning_of_key(std::string_view key) const;
  /// user, assistant, system, tool or function_call for a speaker of the data, or null if it is not mapped.
  const std::string* role_of(std::string_view speaker) const;

  /// Records that a row had the column that `name` is read from. Thread-safe.
  void mark_found(std::string_view name) const;
  /// Mapped columns that no row has had so far.
  std::vector<std::string> never_found() const;

 private:
  struct Entry {
    std::string name, column;
    std::shared_ptr<std::atomic<bool>> found = std::make_shared<std::atomic<bool>>(false);
  };

  void add(std::string name, const Json& value, const std::string& where);
  void add_column(const std::string& name, const std::string& column, const std::string& where);
  void add_roles(const Json& roles, const std::string& where);
  void add_role(const std::string& role, const Json& speakers, const std::string& where);

  std::vector<Entry> columns_, keys_, speakers_;
  std::vector<std::string> ignored_;
};

/// Hone's names that columns can be mapped to.
const std::vector<std::string_view>& known_columns();

/// The usual names of columns with images, video and audio.
const std::vector<std::string_view>& media_columns();

}  // namespace hone
