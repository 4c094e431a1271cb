// column_mapping and ignore_columns: which columns of the data a format reads, where they have names of their own, and
// which it leaves alone.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_fwd.h"

namespace hone {

/// Names in the data by the names of ours. Three kinds share one mapping, since no name of ours is of two kinds:
///   columns       system, prompt, response, messages, tools, … (known_columns): {prompt: question}
///   message keys  role, content, reasoning_content, tool_calls, weight, …: {role: from, content: value}
///   speakers      {roles: {user: human, assistant: [gpt, model]}}
/// Names of other tools are read too: query, conversations, role_tag, user_tag, message_field_role, …
class ColumnMapping {
 public:
  ColumnMapping() = default;

  /// Maps nothing.
  static const ColumnMapping& none();

  /// Throws UserError at `where`: a name that is none of ours (with the nearest), one column for two purposes, images.
  static ColumnMapping parse(const Json& mapping, const std::string& where);

  /// ignore_columns: these columns of the data are as good as absent. Throws UserError at `where` if the mapping reads
  /// one of them.
  void ignore(const std::vector<std::string>& columns, const std::string& where);
  const std::vector<std::string>& ignored() const { return ignored_; }
  bool ignores(std::string_view column) const;

  /// Equal for mappings that read alike.
  Json to_json() const;

  /// The column that `name` is read from, or null if it is not mapped.
  const std::string* column(std::string_view name) const;
  /// Some name is read from this column, so that it does not stand for itself.
  bool takes(std::string_view column) const;
  /// Names of ours that are mapped to columns, in the order stated.
  std::vector<std::string_view> mapped_columns() const;

  /// The key of a message that holds `name` ("role", "content", …), or null if it is not mapped.
  const std::string* message_key(std::string_view name) const;
  /// Ours for a key of a message, or the key itself.
  std::string_view meaning_of_key(std::string_view key) const;
  /// user, assistant, system, tool or function_call for a speaker of the data, or null if it is not mapped.
  const std::string* role_of(std::string_view speaker) const;

  /// A row had the column that `name` is read from. May be called from many threads.
  void mark_found(std::string_view name) const;
  /// Columns that no row has had so far.
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

/// The names that columns can be mapped to.
const std::vector<std::string_view>& known_columns();

}  // namespace hone
