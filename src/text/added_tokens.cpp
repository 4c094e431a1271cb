#include "text/added_tokens.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "text/utf8.h"

namespace hone {
namespace {

/// The limit for the contents of all tokens together: search memory grows with it.
constexpr size_t kMostAddedBytes = size_t{16} << 20;

AddedToken read_token(const JsonCursor& json) {
  AddedToken token;
  json.at("id").integer(0, UINT32_MAX);  // checked, not used
  token.content = json.at("content").string();
  token.special = json.at("special").boolean();
  token.normalized = json.at("normalized").boolean();
  token.single_word = json.at("single_word").boolean();
  token.lstrip = json.at("lstrip").boolean();
  token.rstrip = json.at("rstrip").boolean();
  return token;
}

/// Word characters (UTS #18, \w): letters, marks, decimal digits, letter numbers, connectors and joiners.
bool is_word_character(char32_t code) {
  const bool circled_letter = (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
                              (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
  if (circled_letter || code == 0x200C || code == 0x200D) return true;
  switch (utf8proc_category(utf8proc_int32_t(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

size_t start_of_last_character(std::string_view text) {
  size_t position = text.size() - 1;
  while (position > 0 && (uint8_t(text[position]) & 0xC0) == 0x80) --position;
  return position;
}

bool starts_with_word(std::string_view text) { return !text.empty() && is_word_character(utf8_step(text, 0).code); }

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word_character(utf8_step(text, start_of_last_character(text)).code);
}

size_t start_of_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const size_t last = start_of_last_character(text);
    if (!is_white_space(utf8_step(text, last).code)) break;
    text = text.substr(0, last);
  }
  return text.size();
}

size_t end_of_leading_space(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const Utf8Step step = utf8_step(text, position);
    if (!is_white_space(step.code)) break;
    position += step.length;
  }
  return position;
}

/// Appends the tokens of the files beside tokenizer.json to those of that file.
void append_beside(const TokensBeside& more, const Vocabulary& vocabulary, std::vector<AddedToken>& tokens) {
  std::unordered_set<std::string_view> known;
  for (const auto* list : {&std::as_const(tokens), &more.tokens}) {
    for (const AddedToken& token : *list) known.insert(token.content);
  }
  std::vector<AddedToken> added = more.tokens;
  const auto add = [&](const std::string& content, bool special) {
    if (content.empty() || !known.insert(content).second) return;
    AddedToken& token = added.emplace_back();
    token.content = content;
    token.special = special;
  };
  for (const std::string& content : more.named) {
    if (vocabulary.id_of(content)) add(content, true);
  }
  for (const std::string& content : more.extra) add(content, true);
  for (const std::string& content : more.new_plain) add(content, false);
  for (const std::string& content : more.new_special) add(content, true);
  for (AddedToken& token : added) {
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
}

}  // namespace

AddedTokens::AddedTokens(const std::optional<JsonCursor>& json, const Vocabulary& vocabulary,
                         const Normalizer* normalizer, const TokensBeside& more) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; json && i < json->array_size(); ++i) {
    AddedToken token = read_token(json->element(i));
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  append_beside(more, vocabulary, tokens);
  int32_t next_id = int32_t(vocabulary.size());
  for (AddedToken& token : tokens) {
    const AddedToken* known = find(token.content);
    token.id = known ? known->id : vocabulary.id_of(token.content).value_or(-1);
    if (token.id < 0) token.id = next_id++;
    max_id_ = std::max(max_id_, token.id);
    ids_[token.content] = token.id;
    if (token.special) special_[token.content] = token.id;
    LengthBudget budget(token.content.size());
    AlignedText pattern(token.content, 0, &budget);
    if (token.normalized && normalizer) normalizer->apply(pattern);
    token.pattern = pattern.text();
    by_id_[token.id] = token;
  }
  std::vector<std::pair<std::string_view, int32_t>> original, normalized;
  size_t bytes = 0;
  for (const auto& [id, token] : by_id_) {
    (token.normalized ? normalized : original).emplace_back(token.pattern, id);
    bytes += token.pattern.size();
  }
  if (bytes > kMostAddedBytes) {
    throw UserError(fmt::format("the tokens have {} bytes, {} are allowed", bytes, kMostAddedBytes),
                    json ? json->where() : "tokenizer_config.json");
  }
  original_ = TokenSearch(original);
  normalized_ = TokenSearch(normalized);
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? nullptr : find(found->second);
}

std::vector<TextSection> AddedTokens::split(std::string_view text, const TokenSearch& search) const {
  std::vector<TextSection> sections;
  size_t covered = 0;
  const auto add_text = [&](size_t end) {
    if (covered < end) sections.push_back({{uint32_t(covered), uint32_t(end)}, std::nullopt});
  };
  size_t position = 0, end_of_space = 0;  // end_of_space: of the space after the last token with rstrip
  for (const TokenSearch::Match& match : search.matches(text)) {
    if (match.begin < position) continue;
    position = match.end();
    const AddedToken& token = *find(match.id);
    const std::string_view before = text.substr(0, match.begin), after = text.substr(position);
    if (token.single_word && (ends_with_word(before) || starts_with_word(after))) continue;
    size_t begin = match.begin, end = position;
    if (token.lstrip) begin = covered < begin ? covered + start_of_trailing_space(before.substr(covered)) : covered;
    if (token.rstrip) {
      if (end_of_space <= position) end_of_space = position + end_of_leading_space(after);
      end = end_of_space;
    }
    add_text(begin);
    sections.push_back({{uint32_t(begin), uint32_t(end)}, match.id});
    covered = end;
  }
  add_text(text.size());
  return sections;
}

namespace {

constexpr size_t kMostTokens = 1024;  // limit for the tokens before and after a text

/// Appends the ids of a special token of the template.
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
