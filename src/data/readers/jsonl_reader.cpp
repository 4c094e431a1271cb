#include "data/readers/jsonl_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

namespace {

/// Lists of objects with these names are columns of a row, not the rows of a file.
constexpr std::array<std::string_view, 7> kListColumns = {"messages",   "conversations", "conversation", "prompt",
                                                          "completion", "tools",         "history"};

void skip_blanks(ByteReader& in) {
  while (is_blank(in.peek())) in.get();
}

/// Skips a string that starts with the next byte, its opening quote; returns up to 1000 bytes of it, with quotes.
std::string read_string(ByteReader& in) {
  constexpr size_t kLongest = 1000;
  std::string text;
  const auto keep = [&](int byte) {
    if (text.size() < kLongest && byte >= 0) text.push_back(static_cast<char>(byte));
    return byte;
  };
  keep(in.get());
  while (true) {
    const int byte = keep(in.get());
    if (byte < 0 || byte == '"') return text;
    if (byte == '\\') keep(in.get());
  }
}

/// Skips one value, well-formed or not, up to the comma or bracket after it.
void skip_value(ByteReader& in) {
  int depth = 0;
  while (in.peek() >= 0) {
    const int byte = in.peek();
    if (byte == '"') {
      read_string(in);
      continue;
    }
    if (depth == 0 && (byte == ',' || byte == '}' || byte == ']')) return;
    if (byte == '{' || byte == '[') ++depth;
    if (byte == '}' || byte == ']') --depth;
    in.get();
  }
}

/// Iterates over the members of an object whose opening brace has been read.
class MemberWalk {
 public:
  explicit MemberWalk(ByteReader& in) : in_(in) {}

  /// Advances to the value of the next member; returns false after the last one, and if the object is malformed.
  bool next() {
    skip_blanks(in_);
    if (!first_ && in_.peek() == ',') {
      in_.get();
      skip_blanks(in_);
    } else if (!first_ || in_.peek() == '}') {
      closed_ = in_.peek() == '}';
      if (closed_) in_.get();
      return false;
    }
    first_ = false;
    if (in_.peek() != '"') return false;
    const Json name = Json::parse(read_string(in_), nullptr, false);
    skip_blanks(in_);
    if (!name.is_string() || in_.get() != ':') return false;
    name_ = name.get<std::string>();
    skip_blanks(in_);
    return true;
  }
  const std::string& name() const { return name_; }
  bool closed() const { return closed_; }

 private:
  ByteReader& in_;
  std::string name_;
  bool first_ = true, closed_ = false;
};

/// Reads `[`; returns whether an object follows.
bool enters_list_of_objects(ByteReader& in) {
  if (in.peek() != '[') return false;
  in.get();
  skip_blanks(in);
  return in.peek() == '{';
}

}  // namespace

JsonOutline outline_of(const std::string& file) {
  JsonOutline outline;
  ByteReader in(file);
  skip_blanks(in);
  if (in.get() != '{') return outline;
  MemberWalk members(in);
  while (members.next()) {
    const bool list = in.peek() == '[';
    if (enters_list_of_objects(in)) outline.tables.push_back(members.name());
    if (!list) {
      skip_value(in);
      continue;
    }
    while (in.peek() >= 0 && in.peek() != ']') {
      skip_value(in);
      if (in.peek() == ',') in.get();
      if (in.peek() == '}') return {};
    }
    in.get();
  }
  skip_blanks(in);
  outline.single_object = members.closed() && in.peek() < 0;
  return outline;
}

JsonlReader::JsonlReader(const std::string& file, const Options& options)
    : file_(file), options_(options), in_(file, options.source) {
  choose_layout();
  const bool is_split = layout_ != Layout::kTable && !options_.table.empty() && options_.table != "train";
  if (is_split) {
    throw UserError(fmt::format("the file has no part '{}'", options_.table), file_,
                    "split selects a list in a .json file, or a file or folder in a folder");
  }
}

void JsonlReader::choose_layout() {
  if (!without_compression(file_).ends_with(".json")) return;
  skip_blanks(in_);
  if (in_.peek() == '[') {
    in_.get();
    layout_ = Layout::kArray;
    return;
  }
  if (in_.peek() != '{') return;
  const JsonOutline outline = outline_of(file_);
  if (outline.single_object) choose_table(outline);
}

void JsonlReader::choose_table(const JsonOutline& outline) {
  const auto is_column = [&](const std::string& name) {
    return std::find(kListColumns.begin(), kListColumns.end(), name) != kListColumns.end() ||
           std::find(options_.columns.begin(), options_.columns.end(), name) != options_.columns.end();
  };
  const std::vector<std::string>& tables = outline.tables;
  layout_ = Layout::kOneRow;
  if (tables.empty() || std::any_of(tables.begin(), tables.end(), is_column)) return;
  layout_ = Layout::kTable;
  const bool named = std::find(tables.begin(), tables.end(), options_.table) != tables.end();
  if (!named && tables.size() == 1 && (options_.table.empty() || options_.table == "train")) {
    options_.table = tables.front();
  } else if (!named) {
    throw UserError(options_.table.empty() ? "the file is one object with several lists that could be its rows"
                                           : fmt::format("the file has no list '{}'", options_.table),
                    file_, fmt::format("set split: one of {}", fmt::join(tables, ", ")));
  }
  skip_to_table();
}

void JsonlReader::skip_to_table() {
  in_.get();
  MemberWalk members(in_);
  while (members.next() && members.name() != options_.table) skip_value(in_);
  in_.get();
}

bool JsonlReader::next(RawRow& row) {
  row = {};
  row.file = file_;
  switch (layout_) {
    case Layout::kLines:
      return next_line(row);
    case Layout::kArray:
    case Layout::kTable:
      return next_element(row);
    case Layout::kOneRow:
      break;
  }
  return whole_file(row);
}

void JsonlReader::append(RawRow& row, int byte) const {
  if (row.text.size() == options_.max_row_bytes) {
    throw UserError(fmt::format("the row is longer than {} bytes", options_.max_row_bytes), row.where(),
                    "write one JSON object on each line; a file that is one array of objects must be named .json");
  }
  row.text.push_back(static_cast<char>(byte));
}

bool JsonlReader::next_line(RawRow& row) {
  skip_blanks(in_);
  if (in_.peek() < 0) return false;
  row.line = in_.line();
  while (in_.peek() >= 0 && in_.peek() != '\n') append(row, in_.get());
  while (is_blank(static_cast<unsigned char>(row.text.back()))) row.text.pop_back();
  return true;
}

bool JsonlReader::next_element(RawRow& row) {
  skip_blanks(in_);
  row.line = in_.line();
  if (array_closed_) {
    if (in_.peek() < 0 || layout_ == Layout::kTable) return false;
    throw UserError("there is text after the end of the array", row.where(), "a .json file contains one array");
  }
  if (first_element_ && in_.peek() == ']') {
    in_.get();
    array_closed_ = true;
    return next_element(row);
  }
  first_element_ = false;
  int depth = 0;
  bool in_string = false;
  while (true) {
    const int byte = in_.get();
    if (byte < 0) throw UserError("the file ends before its array is closed", row.where(), "the file may be truncated");
    if (in_string) {
      append(row, byte);
      if (byte == '\\' && in_.peek() >= 0) append(row, in_.get());
      in_string = byte != '"';
      continue;
    }
    if (depth == 0 && (byte == ',' || byte == ']')) {
      array_closed_ = byte == ']';
      return true;
    }
    if (byte == '"') in_string = true;
    if (byte == '{' || byte == '[') ++depth;
    if (byte == '}' || byte == ']') --depth;
    append(row, byte);
  }
}

bool JsonlReader::whole_file(RawRow& row) {
  if (done_) return false;
  done_ = true;
  row.line = in_.line();
  while (in_.peek() >= 0) append(row, in_.get());
  return true;
}

}  // namespace hone
