#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "core/error.h"
#include "text/unicode_stand_in.h"
#include "text/utf8.h"

namespace hone {
namespace {

/// A thousand times what any published tokenizer needs for a megabyte, a minute of a hostile one.
constexpr uint32_t kMatchLimit = 100'000'000;
constexpr size_t kMaxPatternBytes = 64 * 1024;

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

std::string escape_literal(std::string_view literal) {
  std::string pattern;
  for (const char c : literal) {
    const bool plain = (uint8_t(c) & 0x80) || std::isalnum(uint8_t(c)) || std::isspace(uint8_t(c));
    if (!plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void Regex::FreeContext::operator()(pcre2_real_match_context_8* context) const { pcre2_match_context_free(context); }
void RegexMatches::FreeData::operator()(pcre2_real_match_data_8* data) const { pcre2_match_data_free(data); }

Regex::Regex(std::string_view pattern, std::string where) : where_(std::move(where)) {
  if (pattern.size() > kMaxPatternBytes) throw UserError("the regular expression is too long", where_);
  const std::string translated = pcre2_from_oniguruma(pattern, where_);
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                            context.get()));
  if (!code_)
    throw UserError(fmt::format("cannot compile the regular expression '{}': {}", pattern, pcre2_message(error)),
                    where_);
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without JIT support the interpreter does the same
  limits_.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(limits_.get(), kMatchLimit);
}

Regex Regex::from_json(const JsonCursor& pattern) {
  if (const auto regex = pattern.find("Regex")) return Regex(regex->string(), regex->where());
  const JsonCursor literal = pattern.at("String");
  if (literal.string().empty()) literal.fail("the pattern is empty");
  return Regex(escape_literal(literal.string()), literal.where());
}

RegexMatches::RegexMatches(const Regex& regex) : regex_(regex), data_(pcre2_match_data_create(1, nullptr)) {}

void RegexMatches::start(std::string_view text) {
  text_ = substitute_new_characters(text, shadow_) ? std::string_view(shadow_) : text;
  position_ = 0;
  last_end_.reset();
}

int RegexMatches::match_at(size_t position) {
  const auto match = [&](uint32_t options) {
    return pcre2_match(regex_.code_.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), position,
                       options | PCRE2_NO_UTF_CHECK, data_.get(), regex_.limits_.get());
  };
  const int result = match(0);
  return result == PCRE2_ERROR_JIT_STACKLIMIT ? match(PCRE2_NO_JIT) : result;
}

std::optional<ByteRange> RegexMatches::next() {
  while (position_ <= text_.size()) {
    const int result = match_at(position_);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) throw UserError("the regular expression fails on a text: " + pcre2_message(result), regex_.where_);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_.get());
    const ByteRange found{uint32_t(range[0]), uint32_t(range[1])};
    if (found.begin == found.end && last_end_ == found.end) {
      position_ += position_ < text_.size() ? utf8_step(text_, position_).length : 1;
      continue;
    }
    position_ = found.end;
    last_end_ = found.end;
    return found;
  }
  position_ = text_.size() + 1;
  return std::nullopt;
}

}  // namespace hone
