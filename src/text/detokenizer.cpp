#include "text/detokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace hone {
namespace {

std::string joined(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

/// Byte-level characters become bytes; invalid UTF-8 becomes U+FFFD. A token with other characters is unchanged.
class ByteLevelDecoder : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += byte_level_bytes(token).value_or(token);
    tokens = {repair_utf8(std::move(bytes))};
  }
};

/// Runs of "<0xNN>" tokens become the text of these bytes, or one U+FFFD per byte if that is not valid UTF-8.
class ByteFallbackDecoder : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> result;
    std::string bytes;
    const auto flush = [&] {
      if (valid_utf8_prefix(bytes) == bytes.size()) {
        if (!bytes.empty()) result.push_back(bytes);
      } else {
        result.insert(result.end(), bytes.size(), std::string(kReplacementUtf8));
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = fallback_byte(token)) {
        bytes += char(*byte);
      } else {
        flush();
        result.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(result);
  }

 private:
  static std::optional<uint8_t> fallback_byte(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
    const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10; };
    if (!std::isxdigit(uint8_t(token[3])) || !std::isxdigit(uint8_t(token[4]))) return std::nullopt;
    return uint8_t(digit(token[3]) * 16 + digit(token[4]));
  }
};

class FuseDecoder : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override { tokens = {joined(tokens)}; }
};

/// Marks become spaces; a mark at the start, which encoding added, is removed.
class MetaspaceDecoder : public TokenDecoder {
 public:
  MetaspaceDecoder(std::string mark, bool drop_first) : mark_(std::move(mark)), drop_first_(drop_first) {}

  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string text;
      for (size_t position = 0; position < tokens[i].size();) {
        if (std::string_view(tokens[i]).substr(position).starts_with(mark_)) {
          if (i != 0 || !drop_first_) text += ' ';
          position += mark_.size();
        } else {
          text += tokens[i][position++];
        }
      }
      tokens[i] = std::move(text);
    }
  }

 private:
  std::string mark_;
  bool drop_first_;
};

class ReplaceDecoder : public TokenDecoder {
 public:
  ReplaceDecoder(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(std::vector<std::string>& tokens) const override {
    constexpr size_t kMostBytes = size_t{64} << 20;
    RegexMatches matches(pattern_);
    size_t bytes = 0;
    for (std::string& token : tokens) {
      matches.start(token);
      std::string text;
      size_t kept = 0;
      while (const auto match = matches.next()) {
        text.append(token, kept, match->begin - kept).append(content_);
        kept = match->end;
        if (bytes + text.size() > kMostBytes)
          throw UserError("a text is lengthened too much", "tokenizer.json: decoder", "copy the tokenizer again");
      }
      token = text.append(token, kept);
      bytes += token.size();
    }
  }

 private:
  Regex pattern_;
  std::string content_;
};

/// Removes up to `start` leading and `stop` trailing copies of a character from every token.
class StripDecoder : public TokenDecoder {
 public:
  StripDecoder(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view text = token;
      for (size_t i = 0; i < start_ && text.starts_with(content_); ++i) text.remove_prefix(content_.size());
      for (size_t i = 0; i < stop_ && text.ends_with(content_); ++i) text.remove_suffix(content_.size());
      token = std::string(text);
    }
  }

 private:
  std::string content_;
  size_t start_, stop_;
};

class SequenceDecoder : public TokenDecoder {
 public:
  explicit SequenceDecoder(std::vector<std::unique_ptr<TokenDecoder>> steps) : steps_(std::move(steps)) {}

  void apply(std::vector<std::string>& tokens) const override {
    for (const auto& step : steps_) step->apply(tokens);
  }

 private:
  std::vector<std::unique_ptr<TokenDecoder>> steps_;
};

std::unique_ptr<TokenDecoder> make_decoder(const JsonCursor& json, StepCount& count);

std::unique_ptr<TokenDecoder> make_decoder_sequence(const JsonCursor& json, StepCount& count) {
  const JsonCursor list = json.at("decoders");
  std::vector<std::unique_ptr<TokenDecoder>> steps;
  for (size_t i = 0; i < list.array_size(); ++i) steps.push_back(make_decoder(list.element(i), count));
  return std::make_unique<SequenceDecoder>(std::move(steps));
}

std::unique_ptr<TokenDecoder> make_strip(const JsonCursor& json) {
  const JsonCursor content = json.at("content");
  const std::string& text = content.string();
  if (text.empty() || utf8_step(text, 0).length != text.size()) content.fail("expected one character");
  constexpr int64_t kMaxCopies = 1 << 20;
  return std::make_unique<StripDecoder>(text, size_t(json.at("start").integer(0, kMaxCopies)),
                                        size_t(json.at("stop").integer(0, kMaxCopies)));
}

std::unique_ptr<TokenDecoder> make_metaspace_decoder(const JsonCursor& json) {
  const JsonCursor mark = json.at("replacement");
  if (mark.string().empty()) mark.fail("the replacement is empty");
  const auto scheme = json.find("prepend_scheme");
  return std::make_unique<MetaspaceDecoder>(mark.string(), !scheme || scheme->string() != "never");
}

std::unique_ptr<TokenDecoder> make_decoder(const JsonCursor& json, StepCount& count) {
  count.add(json);
  const std::string& type = json.type();
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "Metaspace") return make_metaspace_decoder(json);
  if (type == "Replace")
    return std::make_unique<ReplaceDecoder>(Regex::from_json(json.at("pattern")), json.at("content").string());
  if (type == "Strip") return make_strip(json);
  if (type == "Sequence") return make_decoder_sequence(json, count);
  json.at("type").fail(fmt::format("decoder '{}' is not supported", type),
                       "supported: ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
}

}  // namespace

std::unique_ptr<TokenDecoder> make_decoder(const JsonCursor& json) {
  StepCount count;
  return make_decoder(json, count);
}

}  // namespace hone
