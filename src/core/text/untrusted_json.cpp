#include "core/text/untrusted_json.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/files/file_bytes.h"
#include "core/text/json.h"

namespace hone {

namespace {

/// The nesting depth, and the numbers of brackets and commas, outside strings.
struct Punctuation {
  int64_t deepest = 0;
  uint64_t values = 0, structures = 0;
};

Punctuation punctuation_of(std::string_view json) {
  Punctuation found;
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      const bool opens = c == '[' || c == '{';
      depth += opens - (c == ']' || c == '}');
      found.deepest = std::max(found.deepest, depth);
      found.structures += opens;
      found.values += c == ',';
    }
  }
  return found;
}

bool is_deep(const Punctuation& found) {
  constexpr int64_t kDeepest = 64;
  return found.deepest > kDeepest;
}

constexpr uint64_t kOfValue = 24, kOfStructure = 80;

uint64_t allowed_memory(size_t bytes) { return 10 * uint64_t{bytes} + (uint64_t{512} << 20); }

bool takes_much_memory(const Punctuation& found, size_t bytes) {
  return kOfValue * found.values + kOfStructure * found.structures > allowed_memory(bytes);
}

}  // namespace

std::optional<uint64_t> unsigned_number(const Json& json) {
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  const bool positive = json.is_number_integer() && json.get<int64_t>() >= 0;
  return positive ? std::optional(json.get<uint64_t>()) : std::nullopt;
}

std::optional<int64_t> negative_number(const Json& json) {
  const bool negative = json.is_number_integer() && !json.is_number_unsigned() && json.get<int64_t>() < 0;
  return negative ? std::optional(json.get<int64_t>()) : std::nullopt;
}

bool nested_deeply(std::string_view json) { return is_deep(punctuation_of(json)); }

bool takes_much_memory(std::string_view json) {
  // too short to use much memory with brackets alone
  if (kOfStructure * json.size() <= allowed_memory(json.size())) return false;
  return takes_much_memory(punctuation_of(json), json.size());
}

Json parse_json(std::string_view text) {
  const Punctuation found = punctuation_of(text);
  if (is_deep(found) || takes_much_memory(found, text.size())) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, false);
}

Json parse_json(std::istream& file) {
  std::string text;
  for (char piece[1 << 16]; file.read(piece, sizeof piece), file.gcount() > 0;) {
    text.append(piece, static_cast<size_t>(file.gcount()));
    if (text.size() > kMostTextBytes) return Json(Json::value_t::discarded);
  }
  return parse_json(std::string_view(text));
}

namespace {

/// The text with {"__float__": "Infinity"} in the place of each bare Infinity, -Infinity and NaN outside strings.
std::string with_named_floats(std::string_view json) {
  std::string named;
  bool in_string = false;
  for (size_t i = 0; i < json.size();) {
    size_t taken = 1;
    if (in_string && json[i] == '\\') {
      taken = std::min<size_t>(2, json.size() - i);
    } else if (json[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
        if (!json.substr(i).starts_with(word)) continue;
        named.append(R"({"__float__": ")").append(word).append(R"("})");
        i += word.size();
        taken = 0;
        break;
      }
    }
    named.append(json.substr(i, taken));
    i += taken;
  }
  return named;
}

Json parse_file(const std::string& text) {
  Json json = parse_json(std::string_view(text));
  // A second pass is needed only where the text is not valid JSON.
  return json.is_discarded() ? parse_json(std::string_view(with_named_floats(text))) : json;
}

}  // namespace

Json read_json(const std::filesystem::path& path) { return parse_file(read_whole_file(path)); }

std::optional<Json> read_json_if_there(const std::filesystem::path& path) {
  const std::optional<std::string> text = read_whole_file_if_there(path);
  return text ? std::optional(parse_file(*text)) : std::nullopt;
}

}  // namespace hone
