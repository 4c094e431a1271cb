#include "text/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include "core/json.h"
#include "text/precompiled_normalizer.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace hone {
namespace {

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}

  void apply(AlignedText& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

/// Puts a fixed text before every text that is not empty.
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

/// Lower case character by character, without context (no final sigma).
class LowercaseNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    TextRewriter rewriter(text);
    const std::string_view source = text.text();
    for (size_t position = 0; position < source.size();) {
      const Utf8Step step = utf8_step(source, position);
      std::string lower;
      append_utf8(lower, char32_t(utf8proc_tolower(utf8proc_int32_t(step.code))));
      // The one character whose unconditional lower case is two, "i" and a dot (SpecialCasing.txt).
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

std::unique_ptr<Normalizer> make_step(const JsonCursor& json, StepCount& count);

std::unique_ptr<Normalizer> make_sequence(const JsonCursor& json, StepCount& count) {
  const JsonCursor list = json.at("normalizers");
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (size_t i = 0; i < list.array_size(); ++i) steps.push_back(make_step(list.element(i), count));
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

std::unique_ptr<Normalizer> make_step(const JsonCursor& json, StepCount& count) {
  count.add(json);
  const std::string& type = json.type();
  if (type == "NFC") return make_unicode_normalizer(UnicodeForm::kNfc);
  if (type == "NFD") return make_unicode_normalizer(UnicodeForm::kNfd);
  if (type == "NFKC") return make_unicode_normalizer(UnicodeForm::kNfkc);
  if (type == "NFKD") return make_unicode_normalizer(UnicodeForm::kNfkd);
  if (type == "Sequence") return make_sequence(json, count);
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
  return make_step(json, count);
}

}  // namespace hone
