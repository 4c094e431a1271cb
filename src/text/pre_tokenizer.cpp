#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include "core/text/json.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace hone {
namespace {

/// How a split treats the delimiters.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct TextSpan {
  ByteRange range;
  bool is_match;
};

/// Merges adjacent spans into pieces. A delimiter joins one neighbour only, so of several in a row only the first
/// (previous) or the last (next) joins.
void join_spans(const std::vector<TextSpan>& spans, SplitBehavior behavior, std::vector<ByteRange>& pieces) {
  bool previous_match = false;
  bool first = true;
  for (const TextSpan& span : spans) {
    bool joins = false;
    if (behavior == SplitBehavior::kContiguous) joins = span.is_match == previous_match;
    if (behavior == SplitBehavior::kMergedWithPrevious) joins = span.is_match && !previous_match;
    if (behavior == SplitBehavior::kMergedWithNext) joins = !span.is_match && previous_match;
    previous_match = span.is_match;
    if (behavior == SplitBehavior::kRemoved && span.is_match) continue;
    if (joins && !first) {
      pieces.back().end = span.range.end;
    } else {
      pieces.push_back(span.range);
    }
    first = false;
  }
}

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(Regex pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(PreTokenized& split) const override {
    RegexMatches matches(pattern_);
    std::vector<ByteRange> pieces;
    std::vector<TextSpan> spans;
    for (const ByteRange piece : split.pieces) {
      spans.clear();
      matches.start(split.text.text().substr(piece.begin, piece.end - piece.begin));
      uint32_t previous = piece.begin;
      while (const auto match = matches.next()) {
        const ByteRange found{piece.begin + match->begin, piece.begin + match->end};
        if (previous < found.begin) spans.push_back({{previous, found.begin}, invert_});
        spans.push_back({found, !invert_});
        previous = found.end;
      }
      if (previous < piece.end) spans.push_back({{previous, piece.end}, invert_});
      join_spans(spans, behavior_, pieces);
    }
    std::erase_if(pieces, [](ByteRange piece) { return piece.begin == piece.end; });
    split.pieces = std::move(pieces);
  }

 private:
  Regex pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// Inserts `prefix` before each piece for which `wanted(piece)` is true.
template <class Wanted>
void prefix_pieces(PreTokenized& split, std::string_view prefix, Wanted wanted) {
  TextRewriter rewriter(split.text);
  std::vector<ByteRange> pieces;
  for (const ByteRange piece : split.pieces) {
    const uint32_t begin = uint32_t(rewriter.size());
    if (wanted(piece)) rewriter.replace(piece.begin, piece.begin, prefix);
    rewriter.copy(piece.begin, piece.end);
    pieces.push_back({begin, uint32_t(rewriter.size())});
  }
  split.text = rewriter.finish();
  split.pieces = std::move(pieces);
}

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::unique_ptr<PreTokenizer> split)
      : add_prefix_space_(add_prefix_space), split_(std::move(split)) {}

  void apply(PreTokenized& split) const override {
    if (add_prefix_space_)
      prefix_pieces(split, " ", [&](ByteRange piece) { return split.text.text()[piece.begin] != ' '; });
    if (split_) split_->apply(split);
  }

 private:
  bool add_prefix_space_;
  std::unique_ptr<PreTokenizer> split_;
};

enum class PrependScheme { kAlways, kFirst, kNever };

/// SentencePiece's spaces: each becomes `mark`; the text may get a mark in front; pieces begin at marks.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string mark, PrependScheme scheme, std::unique_ptr<PreTokenizer> split)
      : mark_(std::move(mark)), scheme_(scheme), split_(std::move(split)) {}

  void apply(PreTokenized& split) const override {
    mark_spaces(split);
    prefix_pieces(split, mark_, [&](ByteRange piece) {
      if (split.text.text().substr(piece.begin).starts_with(mark_)) return false;
      return scheme_ == PrependScheme::kAlways ||
             (scheme_ == PrependScheme::kFirst && split.text.origin(piece.begin, piece.end).begin == 0);
    });
    if (split_) split_->apply(split);
  }

 private:
  void mark_spaces(PreTokenized& split) const {
    TextRewriter rewriter(split.text);
    const std::string_view source = split.text.text();
    std::vector<ByteRange> pieces;
    for (const ByteRange piece : split.pieces) {
      const uint32_t begin = uint32_t(rewriter.size());
      for (size_t i = piece.begin; i < piece.end; ++i) {
        if (source[i] == ' ') {
          rewriter.replace(i, i + 1, mark_);
        } else {
          rewriter.copy(i, i + 1);
        }
      }
      pieces.push_back({begin, uint32_t(rewriter.size())});
    }
    split.text = rewriter.finish();
    split.pieces = std::move(pieces);
  }

  std::string mark_;
  PrependScheme scheme_;
  std::unique_ptr<PreTokenizer> split_;
};

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}

  void apply(PreTokenized& split) const override {
    for (const auto& step : steps_) step->apply(split);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

SplitBehavior split_behavior(const JsonCursor& json) {
  const std::string& name = json.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  json.fail(fmt::format("unknown split behavior '{}'", name));
}

PrependScheme prepend_scheme(const JsonCursor& json) {
  const std::string& name = json.string();
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  json.fail(fmt::format("unknown prepend scheme '{}'", name));
}

std::unique_ptr<PreTokenizer> make_byte_level(const JsonCursor& json) {
  std::unique_ptr<PreTokenizer> split;
  if (json.boolean_or("use_regex", true))
    split = std::make_unique<SplitPreTokenizer>(Regex(kGpt2Pattern, json.where()), SplitBehavior::kIsolated, false);
  return std::make_unique<ByteLevelPreTokenizer>(json.at("add_prefix_space").boolean(), std::move(split));
}

std::unique_ptr<PreTokenizer> make_metaspace(const JsonCursor& json) {
  const JsonCursor mark = json.at("replacement");
  if (mark.string().empty()) mark.fail("the replacement is empty");
  const auto scheme = json.find("prepend_scheme");
  if (!json.boolean_or("add_prefix_space", true) && (!scheme || scheme->string() != "never"))
    json.at("add_prefix_space").fail("add_prefix_space does not match prepend_scheme");
  std::unique_ptr<PreTokenizer> split;
  if (json.boolean_or("split", true)) {
    const IndexedJson pattern{{"String", mark.string()}};
    split = std::make_unique<SplitPreTokenizer>(Regex::from_json(JsonCursor(pattern, json.where())),
                                                SplitBehavior::kMergedWithNext, false);
  }
  return std::make_unique<MetaspacePreTokenizer>(
      mark.string(), scheme ? prepend_scheme(*scheme) : PrependScheme::kAlways, std::move(split));
}

std::unique_ptr<PreTokenizer> make_step(const JsonCursor& json, PreTokenizerSpec& spec);

std::unique_ptr<PreTokenizer> make_sequence(const JsonCursor& json, PreTokenizerSpec& spec) {
  const JsonCursor list = json.at("pretokenizers");
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (size_t i = 0; i < list.array_size(); ++i) steps.push_back(make_step(list.element(i), spec));
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

std::unique_ptr<PreTokenizer> make_step(const JsonCursor& json, PreTokenizerSpec& spec) {
  spec.count.add(json);
  const std::string& type = json.type();
  if (type == "Sequence") return make_sequence(json, spec);
  if (spec.byte_level) json.fail("a step after ByteLevel is not supported");
  if (type == "Split")
    return std::make_unique<SplitPreTokenizer>(Regex::from_json(json.at("pattern")),
                                               split_behavior(json.at("behavior")), json.boolean_or("invert", false));
  if (type == "WhitespaceSplit")
    return std::make_unique<SplitPreTokenizer>(Regex("\\s+", json.where()), SplitBehavior::kRemoved, false);
  if (type == "Digits") {
    const bool individual = json.at("individual_digits").boolean();
    return std::make_unique<SplitPreTokenizer>(
        Regex("\\p{N}", json.where()), individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
  }
  if (type == "ByteLevel") {
    spec.byte_level = true;
    return make_byte_level(json);
  }
  if (type == "Metaspace") return make_metaspace(json);
  json.at("type").fail(fmt::format("pre-tokenizer '{}' is not supported", type),
                       "supported: Split, ByteLevel, Digits, Metaspace, WhitespaceSplit, Sequence");
}

}  // namespace

PreTokenized::PreTokenized(AlignedText source) : text(std::move(source)) {
  if (!text.text().empty()) pieces.push_back({0, uint32_t(text.text().size())});
}

PreTokenizerSpec make_pre_tokenizer(const std::optional<JsonCursor>& json) {
  PreTokenizerSpec spec;
  if (json) spec.steps = make_step(*json, spec);
  return spec;
}

}  // namespace hone
