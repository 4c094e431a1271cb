#include "core/untrusted_json.h"

#include <iterator>
#include <string>

namespace hone {

bool nested_deeply(std::string_view json) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size() && depth <= kDeepest; ++i) {
    const char c = json[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    }
  }
  return depth > kDeepest;
}

Json parse_json(std::string_view text) {
  if (nested_deeply(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, false);
}

Json parse_json(std::istream& file) {
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse_json(std::string_view(text));
}

}  // namespace hone
