#include "text/post_processor.h"

#include <fmt/format.h>

#include "text/token_model.h"

namespace hone {
namespace {

constexpr size_t kMostTokens = 1024;  // a text gets them before and after it

/// The ids that a template's special token stands for.
void append_special(const JsonCursor& json, const std::string& name, std::vector<int32_t>& out) {
  const JsonCursor ids = json.at("special_tokens").at(name).at("ids");
  if (ids.array_size() > kMostTokens || out.size() > kMostTokens)
    ids.fail(fmt::format("more than {} tokens around a text", kMostTokens));
  for (size_t i = 0; i < ids.array_size(); ++i) out.push_back(int32_t(ids.element(i).integer(0, kMaxTokenId)));
}

SurroundingTokens read_template(const JsonCursor& json) {
  SurroundingTokens result;
  bool seen_text = false;
  const JsonCursor pieces = json.at("single");
  for (size_t i = 0; i < pieces.array_size(); ++i) {
    const JsonCursor piece = pieces.element(i);
    if (const auto special = piece.find("SpecialToken")) {
      append_special(json, special->at("id").string(), seen_text ? result.after : result.before);
      continue;
    }
    if (piece.at("Sequence").at("id").string() != "A" || seen_text)
      piece.fail("a template that does not hold the text exactly once is not supported");
    seen_text = true;
  }
  if (!seen_text) pieces.fail("a template that does not hold the text exactly once is not supported");
  return result;
}

void wrap(SurroundingTokens& inner, const SurroundingTokens& outer, const JsonCursor& json) {
  if (inner.before.size() + inner.after.size() > kMostTokens)
    json.fail(fmt::format("more than {} tokens around a text", kMostTokens));
  inner.before.insert(inner.before.begin(), outer.before.begin(), outer.before.end());
  inner.after.insert(inner.after.end(), outer.after.begin(), outer.after.end());
}

}  // namespace

SurroundingTokens read_post_processor(const std::optional<JsonCursor>& json) {
  if (!json) return {};
  const std::string& type = json->type();
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return read_template(*json);
  if (type != "Sequence")
    json->at("type").fail(fmt::format("post-processor '{}' is not supported", type),
                          "supported: ByteLevel, TemplateProcessing, Sequence");
  SurroundingTokens result;
  const JsonCursor list = json->at("processors");
  for (size_t i = 0; i < list.array_size(); ++i) wrap(result, read_post_processor(list.element(i)), *json);
  return result;
}

}  // namespace hone
