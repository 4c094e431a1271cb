#include "data/jsonl_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/error.h"
#include "text/utf8.h"

namespace hone {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr int kMaxDepth = 256;
constexpr std::string_view kOneObjectALine =
    "write one JSON object on each line; a file that is one array of objects must be named .json";

bool is_blank(int byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

/// Kinds of data files that other tools read and this version does not.
void refuse_other_kinds(const std::filesystem::path& path) {
  static constexpr std::array<std::string_view, 11> kOther = {".parquet", ".arrow", ".csv", ".tsv", ".txt", ".gz",
                                                              ".zst",     ".bz2",   ".xz",  ".zip", ".tar"};
  const std::string extension = path.extension().string();
  if (std::find(kOther.begin(), kOther.end(), extension) == kOther.end()) return;
  throw UserError(fmt::format("{} files are not read in this version", extension), path.string(),
                  "convert the data to JSONL: one JSON object on each line");
}

std::vector<std::string> files_of_folder(const std::filesystem::path& folder) {
  std::vector<std::string> files, others;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    (entry.path().extension() == ".jsonl" ? files : others).push_back(entry.path().string());
  }
  if (error) throw UserError("cannot read the folder: " + error.message(), folder.string());
  if (files.empty()) {
    std::sort(others.begin(), others.end());
    std::string found;
    for (size_t i = 0; i < std::min<size_t>(others.size(), 5); ++i) {
      found += (i ? ", " : "") + std::filesystem::path(others[i]).filename().string();
    }
    throw UserError("the folder holds no .jsonl file", folder.string(),
                    others.empty() ? "the folder is empty" : fmt::format("it holds {}: name one of its files", found));
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// "parse error at line 1, column 5: syntax error while parsing value - ..." without its first part, and short.
std::string reason_of(std::string message) {
  const size_t bracket = message.find("] ");
  if (bracket != std::string::npos) message.erase(0, bracket + 2);
  const size_t column = message.find("column ");
  if (message.starts_with("parse error at ") && column != std::string::npos) {
    message.erase(0, std::min(message.size(), message.find(": ", column) + 2));
  }
  constexpr size_t kLongest = 200;
  if (message.size() > kLongest) message = repair_utf8(message.substr(0, kLongest)) + "…";
  return message;
}

/// The error of JSON that breaks at byte `at` of the row.
UserError broken_json(const RawRow& row, size_t at, const std::string& reason) {
  const std::string_view before = std::string_view(row.text).substr(0, std::min(at, row.text.size()));
  const auto line = row.line + std::count(before.begin(), before.end(), '\n');
  const size_t line_begin = before.rfind('\n');
  const size_t column = line_begin == std::string_view::npos ? before.size() : before.size() - line_begin - 1;
  return UserError(fmt::format("broken JSON at column {}: {}", std::max<size_t>(column, 1), reason),
                   fmt::format("{}:{}", row.file, line), std::string(kOneObjectALine));
}

}  // namespace

bool nested_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

std::string RawRow::where() const { return fmt::format("{}:{}", file, line); }

ByteReader::ByteReader(const std::string& path) : path_(path), in_(path, std::ios::binary) {
  if (!in_) throw UserError("cannot open the file", path, "check that it exists and that you may read it");
  fill();
  if (buffer_.starts_with("\xEF\xBB\xBF")) position_ = 3;
  if (buffer_.starts_with("\xFF\xFE") || buffer_.starts_with("\xFE\xFF")) {
    throw UserError("the file is UTF-16", path, "convert it to UTF-8");
  }
}

bool ByteReader::fill() {
  buffer_.resize(kBufferBytes);
  in_.read(buffer_.data(), static_cast<std::streamsize>(kBufferBytes));
  buffer_.resize(static_cast<size_t>(in_.gcount()));
  if (in_.bad()) throw UserError("cannot read the file", fmt::format("{}:{}", path_, line_));
  loaded_ += in_.gcount();
  position_ = 0;
  return !buffer_.empty();
}

int ByteReader::get() {
  const int byte = peek();
  if (byte < 0) return byte;
  ++position_;
  if (byte == '\n') ++line_;
  return byte;
}

JsonlReader::JsonlReader(const std::string& path, size_t max_row_bytes) : max_row_bytes_(max_row_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw UserError("there is no such file or folder", path,
                    "give the path of a local file; data sets are not downloaded");
  }
  if (std::filesystem::is_directory(status)) {
    files_ = files_of_folder(path);
  } else {
    refuse_other_kinds(path);
    files_ = {path};
  }
  for (const std::string& file : files_) {
    const auto size = std::filesystem::file_size(file, error);
    if (!error) bytes_total_ += static_cast<int64_t>(size);
  }
  open_next();
}

void JsonlReader::open_next() {
  if (open_) bytes_before_ += open_->bytes_read();
  const std::string& file = files_[next_file_++];
  open_.emplace(file);
  layout_ = Layout::kLines;
  array_closed_ = false;
  first_element_ = true;
  if (!file.ends_with(".json")) return;
  while (is_blank(open_->peek())) open_->get();
  if (open_->peek() != '[') return;
  open_->get();
  layout_ = Layout::kArray;
}

bool JsonlReader::next(RawRow& row) {
  while (true) {
    row.text.clear();
    row.file = files_[next_file_ - 1];
    if (layout_ == Layout::kLines ? next_line(row) : next_element(row)) return true;
    if (next_file_ == files_.size()) return false;
    open_next();
  }
}

void JsonlReader::append(RawRow& row, int byte) const {
  if (row.text.size() == max_row_bytes_) {
    throw UserError(fmt::format("the row is longer than {} bytes", max_row_bytes_), row.where(),
                    std::string(kOneObjectALine));
  }
  row.text.push_back(static_cast<char>(byte));
}

bool JsonlReader::next_line(RawRow& row) {
  while (is_blank(open_->peek())) open_->get();
  if (open_->peek() < 0) return false;
  row.line = open_->line();
  while (open_->peek() >= 0 && open_->peek() != '\n') append(row, open_->get());
  while (is_blank(static_cast<unsigned char>(row.text.back()))) row.text.pop_back();
  return true;
}

bool JsonlReader::next_element(RawRow& row) {
  while (is_blank(open_->peek())) open_->get();
  row.line = open_->line();
  if (array_closed_) {
    if (open_->peek() < 0) return false;
    throw UserError("there is text behind the end of the array", row.where(), "a .json file holds one array");
  }
  if (first_element_ && open_->peek() == ']') {
    open_->get();
    array_closed_ = true;
    return next_element(row);
  }
  first_element_ = false;
  int depth = 0;
  bool in_string = false;
  while (true) {
    const int byte = open_->get();
    if (byte < 0) throw UserError("the file ends before its array is closed", row.where(), "the file may be cut off");
    if (in_string) {
      append(row, byte);
      if (byte == '\\' && open_->peek() >= 0) append(row, open_->get());
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

Json parse_row(const RawRow& row) {
  const size_t valid = valid_utf8_prefix(row.text);
  if (valid != row.text.size()) {
    throw UserError(fmt::format("byte {} of the row is not UTF-8", valid + 1), row.where(),
                    "save the file as UTF-8, or repair the row");
  }
  if (nested_too_deep(row.text)) {
    throw UserError(fmt::format("the JSON is nested deeper than {} levels", kMaxDepth), row.where(),
                    "flatten the row, or remove it");
  }
  Json json;
  try {
    json = Json::parse(row.text);
  } catch (const Json::parse_error& error) {
    throw broken_json(row, error.byte, reason_of(error.what()));
  } catch (const Json::exception& error) {
    throw broken_json(row, 0, reason_of(error.what()));
  }
  if (!json.is_object()) {
    throw UserError(fmt::format("the row is a JSON {}, not an object", json.type_name()), row.where(),
                    std::string(kOneObjectALine));
  }
  return json;
}

}  // namespace hone
