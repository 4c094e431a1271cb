#include "text/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <array>
#include <optional>

#include "core/text/json.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace hone {
namespace {

// SentencePiece's normalisation: a compiled table of replacements in tokenizer.json.

std::optional<std::string> base64_bytes(std::string_view text) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> values;
  values.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i) values[uint8_t(kDigits[i])] = int8_t(i);
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char digit : text) {
    const int8_t value = values[uint8_t(digit)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | uint32_t(value);
    count += 6;
    if (count >= 8) bytes += char(bits >> (count -= 8) & 0xFF);
  }
  return bytes;
}

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t(uint8_t(bytes[at + i])) << (8 * i);
  return value;
}

/// SentencePiece's table of replacements: a double-array trie (Aoe 1989; the units of the library Darts-clone) whose
/// values are offsets into zero-terminated texts.
class CharacterMap {
 public:
  explicit CharacterMap(const JsonCursor& json) {
    const auto bytes = base64_bytes(json.string());
    if (!bytes) json.fail("the table is not base64");
    if (bytes->size() < 4) json.fail("the table is too short");
    const size_t trie_bytes = little_endian(*bytes, 0);
    if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes->size() - 4)
      json.fail(fmt::format("the table has {1} bytes, but its trie has {0}", trie_bytes, bytes->size()));
    for (size_t at = 4; at < 4 + trie_bytes; at += 4) units_.push_back(little_endian(*bytes, at));
    texts_ = bytes->substr(4 + trie_bytes);
    if (valid_utf8_prefix(texts_) != texts_.size()) json.fail("the table's texts are not UTF-8");
  }

  /// The replacement of the shortest prefix of `text` that is in the table. It replaces all of `text`, as in Hugging
  /// Face tokenizers and SentencePiece.
  std::optional<std::string_view> replacement(std::string_view text) const {
    size_t node = offset(units_[0]);
    for (const char byte : text) {
      node ^= uint8_t(byte);
      if (byte == 0 || node >= units_.size()) return std::nullopt;
      const uint32_t unit = units_[node];
      if ((unit & 0x800000FFu) != uint8_t(byte)) return std::nullopt;
      node ^= offset(unit);
      if (unit >> 8 & 1) return text_at(node);
    }
    return std::nullopt;
  }

 private:
  static size_t offset(uint32_t unit) { return size_t{unit >> 10} << ((unit & 0x200u) >> 6); }

  std::optional<std::string_view> text_at(size_t leaf) const {
    if (leaf >= units_.size()) return std::nullopt;
    const size_t begin = units_[leaf] & 0x7FFFFFFFu;
    if (begin >= texts_.size() || (uint8_t(texts_[begin]) & 0xC0) == 0x80) return std::nullopt;  // inside a character
    return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
  }

  std::vector<uint32_t> units_;
  std::string texts_;
};

class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(const JsonCursor& json) : map_(json) {}

  void apply(AlignedText& text) const override {
    const std::string_view source = text.text();
    TextRewriter rewriter(text);
    size_t kept = 0;
    const auto replace = [&](size_t begin, size_t end) {
      const auto with = map_.replacement(source.substr(begin, end - begin));
      if (!with) return false;
      rewriter.copy(kept, begin);
      rewriter.replace(begin, end, *with);
      kept = end;
      return true;
    };
    for (size_t begin = 0; begin < source.size();) {
      const size_t end = grapheme_end(source, begin);
      // Only short graphemes are looked up as a whole; longer ones character by character.
      constexpr size_t kLongGrapheme = 6;
      if (end - begin >= kLongGrapheme || !replace(begin, end)) {
        for (size_t at = begin; at < end;) {
          const size_t next = at + utf8_step(source, at).length;
          replace(at, next);
          at = next;
        }
      }
      begin = end;
    }
    if (kept == 0) return;
    rewriter.copy(kept, source.size());
    text = rewriter.finish();
  }

 private:
  /// The end of the extended grapheme cluster (UAX #29) that starts at `begin`.
  static size_t grapheme_end(std::string_view text, size_t begin) {
    Utf8Step last = utf8_step(text, begin);
    size_t end = begin + last.length;
    utf8proc_int32_t state = 0;
    while (end < text.size()) {
      const Utf8Step step = utf8_step(text, end);
      const bool both_ascii = last.code < 0x80 && step.code < 0x80;
      if (both_ascii && !(last.code == '\r' && step.code == '\n')) break;
      if (utf8proc_grapheme_break_stateful(utf8proc_int32_t(last.code), utf8proc_int32_t(step.code), &state)) break;
      end += step.length;
      last = step;
    }
    return end;
  }

  CharacterMap map_;
};

/// Reads {"type": "Precompiled", "precompiled_charsmap": base64}. A malformed table is a UserError that contains the
/// key. Graphemes follow utf8proc's Unicode version.
std::unique_ptr<Normalizer> make_precompiled_normalizer(const JsonCursor& json) {
  return std::make_unique<PrecompiledNormalizer>(json.at("precompiled_charsmap"));
}

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}

  void apply(AlignedText& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

/// Adds a fixed text before every text that is not empty.
class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}

  void apply(AlignedText& text) const override {
    if (text.text().empty()) return;
    TextRewriter rewriter(text);
    rewriter.replace(0, 0, prefix_);
    rewriter.copy(0, text.text().size());
    text = rewriter.finish();
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(AlignedText& text) const override {
    RegexMatches matches(pattern_);
    matches.start(text.text());
    auto match = matches.next();
    if (!match) return;
    TextRewriter rewriter(text);
    size_t kept = 0;
    for (; match; match = matches.next()) {
      rewriter.copy(kept, match->begin);
      rewriter.replace(match->begin, match->end, content_);
      kept = match->end;
    }
    rewriter.copy(kept, text.text().size());
    text = rewriter.finish();
  }

 private:
  Regex pattern_;
  std::string content_;
};

/// Lowers character by character, without context (no final sigma).
class LowercaseNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    TextRewriter rewriter(text);
    const std::string_view source = text.text();
    for (size_t position = 0; position < source.size();) {
      const Utf8Step step = utf8_step(source, position);
      std::string lower;
      append_utf8(lower, char32_t(utf8proc_tolower(utf8proc_int32_t(step.code))));
      // The one character whose unconditional lower case is two characters, "i" and a dot (SpecialCasing.txt).
      if (step.code == 0x130) append_utf8(lower, 0x307);
      rewriter.replace(position, position + step.length, lower);
      position += step.length;
    }
    text = rewriter.finish();
  }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  void apply(AlignedText& text) const override {
    const std::string_view source = text.text();
    size_t begin = source.size(), end = 0;
    for (size_t position = 0; position < source.size();) {
      const Utf8Step step = utf8_step(source, position);
      if (!is_white_space(step.code)) {
        begin = std::min(begin, position);
        end = position + step.length;
      }
      position += step.length;
    }
    if (!left_) begin = 0;
    if (!right_) end = source.size();
    text = text.slice(begin, std::max(begin, end));
  }

 private:
  bool left_, right_;
};

std::unique_ptr<Normalizer> make_normalizer_step(const JsonCursor& json, StepCount& count);

std::unique_ptr<Normalizer> make_normalizer_sequence(const JsonCursor& json, StepCount& count) {
  const JsonCursor list = json.at("normalizers");
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (size_t i = 0; i < list.array_size(); ++i) steps.push_back(make_normalizer_step(list.element(i), count));
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

std::unique_ptr<Normalizer> make_normalizer_step(const JsonCursor& json, StepCount& count) {
  count.add(json);
  const std::string& type = json.type();
  if (type == "NFC") return make_unicode_normalizer(UnicodeForm::kNfc);
  if (type == "NFD") return make_unicode_normalizer(UnicodeForm::kNfd);
  if (type == "NFKC") return make_unicode_normalizer(UnicodeForm::kNfkc);
  if (type == "NFKD") return make_unicode_normalizer(UnicodeForm::kNfkd);
  if (type == "Sequence") return make_normalizer_sequence(json, count);
  if (type == "Prepend") return std::make_unique<PrependNormalizer>(json.at("prepend").string());
  if (type == "Replace")
    return std::make_unique<ReplaceNormalizer>(Regex::from_json(json.at("pattern")), json.at("content").string());
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "Strip")
    return std::make_unique<StripNormalizer>(json.at("strip_left").boolean(), json.at("strip_right").boolean());
  if (type == "Precompiled") return make_precompiled_normalizer(json);
  json.at("type").fail(fmt::format("normalizer '{}' is not supported", type),
                       "supported: NFC, NFD, NFKC, NFKD, Lowercase, Precompiled, Prepend, Replace, Strip, Sequence");
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonCursor& json) {
  StepCount count;
  return make_normalizer_step(json, count);
}

}  // namespace hone
