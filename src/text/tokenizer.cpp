#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/tiktoken.h"
#include "text/utf8.h"

namespace hone {
namespace {

constexpr size_t kMaxTokenizerBytes = 96 << 20;  // the largest published ones have 35 MB

/// `text` with ill-formed UTF-8 replaced by U+FFFD.
AlignedText well_formed(std::string_view text, LengthBudget& budget) {
  AlignedText original(text, 0, &budget);
  size_t bad = valid_utf8_prefix(text);
  if (bad == text.size()) return original;
  TextRewriter rewriter(original);
  rewriter.copy(0, bad);
  for (size_t position = bad; position < text.size();) {
    const Utf8Step step = utf8_step(text, position);
    if (step.valid) {
      rewriter.copy(position, position + step.length);
    } else {
      rewriter.replace(position, position + step.length, kReplacementUtf8);
    }
    position += step.length;
  }
  return rewriter.finish();
}

/// Collects the tokens of a text.
struct TokenCollector {
  const TokenModel& model;
  EncodeScratch& scratch;
  std::vector<int32_t>& ids;
  std::vector<ByteRange>* offsets;  // null: not wanted

  void add(int32_t id, ByteRange range) {
    ids.push_back(id);
    if (offsets) offsets->push_back(range);
  }

  void added_token(int32_t id, ByteRange range) { add(id, range); }

  void piece(const AlignedText& text, ByteRange piece) {
    scratch.symbols.clear();
    model.encode_piece(text.text().substr(piece.begin, piece.end - piece.begin), scratch.symbols, scratch);
    for (const Symbol& symbol : scratch.symbols)
      add(symbol.id, offsets ? text.origin(piece.begin + symbol.begin, piece.begin + symbol.end) : ByteRange{});
  }
};

struct PieceCollector {
  std::vector<std::string> pieces;

  void added_token(int32_t, ByteRange) {}
  void piece(const AlignedText& text, ByteRange piece) {
    pieces.emplace_back(text.text().substr(piece.begin, piece.end - piece.begin));
  }
};

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& directory_or_file) { return load(directory_or_file, {}); }

Tokenizer Tokenizer::load(const std::filesystem::path& directory_or_file, const NewTokens& more) {
  const bool is_directory = std::filesystem::is_directory(directory_or_file);
  const std::filesystem::path file = is_directory ? directory_or_file / "tokenizer.json" : directory_or_file;
  if (is_directory && !has_tokenizer(directory_or_file))
    throw UserError("the directory has no tokenizer.json", directory_or_file.string(),
                    "only fast tokenizers are read; save one with transformers' AutoTokenizer.save_pretrained");
  Tokenizer tokenizer;
  const bool of_tiktoken = is_directory && !std::filesystem::exists(file);
  const IndexedJson json = of_tiktoken ? parse_json(tokenizer_json_of_tiktoken(directory_or_file), file.string())
                                       : read_json_file(file, kMaxTokenizerBytes);
  TokenizerConfig config = is_directory ? read_tokenizer_config(directory_or_file) : TokenizerConfig();
  config.beside.new_plain = more.plain;
  config.beside.new_special = more.special;
  tokenizer.read(json, file.string(), config.beside);
  if (is_directory) tokenizer.apply_config(std::move(config), directory_or_file.string());
  return tokenizer;
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& file) {
  Tokenizer tokenizer;
  tokenizer.read(parse_json(json, file), file);
  return tokenizer;
}

void Tokenizer::read(const IndexedJson& json, const std::string& file, const TokensBeside& beside) {
  const JsonCursor root(json, file);
  if (const auto version = root.find("version"); version && version->string() != "1.0")
    version->fail(fmt::format("tokenizer version '{}' is not supported", version->string()));
  if (const auto normalizer = root.find("normalizer")) normalizer_ = make_normalizer(*normalizer);
  pre_tokenizer_ = make_pre_tokenizer(root.find("pre_tokenizer"));
  model_ = make_token_model(root.at("model"), pre_tokenizer_.byte_level);
  added_ = std::make_unique<AddedTokens>(root.find("added_tokens"), model_->vocabulary(), normalizer_.get(), beside);
  surrounding_ = read_post_processor(root.find("post_processor"));
  if (const auto decoder = root.find("decoder")) decoder_ = make_decoder(*decoder);
}

void Tokenizer::apply_config(TokenizerConfig config, const std::string& directory) {
  const auto id_of = [&](const std::optional<std::string>& token, const char* role) -> std::optional<int32_t> {
    if (!token) return std::nullopt;
    const auto id = token_to_id(*token);
    if (!id)
      throw UserError(fmt::format("{} '{}' of tokenizer_config.json is not in tokenizer.json", role, *token), directory,
                      "the two files belong to different models, or the token must be added to tokenizer.json");
    return id;
  };
  special_.bos = id_of(config.bos_token, "bos_token");
  special_.eos = id_of(config.eos_token, "eos_token");
  special_.pad = id_of(config.pad_token, "pad_token");
  special_.unk = id_of(config.unk_token, "unk_token");
  if (!special_.bos) special_.bos = config.generation_bos_id;
  if (!special_.pad) special_.pad = config.generation_pad_id;
  if (!special_.eos && !config.generation_eos_ids.empty()) special_.eos = config.generation_eos_ids.front();
  if (special_.eos) special_.stop.push_back(*special_.eos);
  for (const int32_t id : config.generation_eos_ids)
    if (std::find(special_.stop.begin(), special_.stop.end(), id) == special_.stop.end()) special_.stop.push_back(id);
  chat_templates_ = std::move(config.chat_templates);
}

void Tokenizer::choose(const TokenChoice& choice) {
  const auto id_of = [&](const std::string& token, const std::string& key) {
    const auto id = token_to_id(token);
    if (id) return *id;
    throw UserError(fmt::format("the tokenizer has no token '{}'", token), key,
                    "use a token of tokenizer.json, or add it: add_special_tokens");
  };
  const auto set = [&](std::optional<int32_t>& role, const std::optional<std::string>& token, const char* name) {
    if (token) role = id_of(*token, fmt::format("special_tokens.{}", name));
  };
  const auto stop_at = [&](int32_t id) {
    if (std::find(special_.stop.begin(), special_.stop.end(), id) == special_.stop.end()) special_.stop.push_back(id);
  };
  set(special_.bos, choice.bos, "bos_token");
  set(special_.eos, choice.eos, "eos_token");
  set(special_.pad, choice.pad, "pad_token");
  set(special_.unk, choice.unk, "unk_token");
  if (choice.eos) stop_at(*special_.eos);
  for (const std::string& token : choice.eot) stop_at(id_of(token, "eot_tokens"));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = surrounding_.before;
  const ScratchPool::Lease scratch = scratches_->take();
  TokenCollector collector{*model_, *scratch, ids, nullptr};
  walk(text, collector);
  if (add_special_tokens) ids.insert(ids.end(), surrounding_.after.begin(), surrounding_.after.end());
  return ids;
}

Encoding Tokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  return encode_with_offsets(text, add_special_tokens, {});
}

Encoding Tokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens, const IsText& is_text) const {
  Encoding encoding;
  const ScratchPool::Lease scratch = scratches_->take();
  TokenCollector collector{*model_, *scratch, encoding.ids, &encoding.offsets};
  const uint32_t end = uint32_t(text.size());
  if (add_special_tokens)
    for (const int32_t id : surrounding_.before) collector.add(id, {0, 0});
  walk(text, collector, is_text ? &is_text : nullptr);
  if (add_special_tokens)
    for (const int32_t id : surrounding_.after) collector.add(id, {end, end});
  return encoding;
}

std::vector<std::string> Tokenizer::pieces(std::string_view text) const {
  PieceCollector collector;
  walk(text, collector);
  return std::move(collector.pieces);
}

/// The sections of `of` with those tokens as text for which `is_text` holds.
std::vector<TextSection> Tokenizer::without_text(std::vector<TextSection> sections, const AlignedText& of,
                                                 const IsText* is_text) const {
  if (!is_text) return sections;
  std::vector<TextSection> joined;
  for (TextSection& section : sections) {
    const ByteRange range = section.range;
    if (section.token && (*is_text)(*added_->find(*section.token), of.origin(range.begin, range.end)))
      section.token.reset();
    if (!section.token && !joined.empty() && !joined.back().token) {
      joined.back().range.end = range.end;
    } else {
      joined.push_back(section);
    }
  }
  return joined;
}

template <class Visitor>
void Tokenizer::walk(std::string_view text, Visitor& visitor, const IsText* is_text) const {
  // Rewriting may lengthen a text (LengthBudget), so limit the text to keep ranges within 32 bits.
  constexpr size_t kMaxTextBytes = size_t{1} << 27;
  if (text.size() > kMaxTextBytes)
    throw UserError(
        fmt::format("a text of {} bytes is longer than the {} that can be encoded at once", text.size(), kMaxTextBytes),
        {}, "split the text");
  LengthBudget budget(text.size());
  const AlignedText whole = well_formed(text, budget);
  for (const TextSection& section : without_text(added_->split_original(whole.text()), whole, is_text)) {
    if (section.token) {
      visitor.added_token(*section.token, whole.origin(section.range.begin, section.range.end));
    } else {
      walk_section(whole.slice(section.range.begin, section.range.end), visitor, is_text);
    }
  }
}

template <class Visitor>
void Tokenizer::walk_section(AlignedText section, Visitor& visitor, const IsText* is_text) const {
  if (normalizer_) normalizer_->apply(section);
  if (!added_->has_normalized()) {
    walk_pieces(std::move(section), visitor);
    return;
  }
  for (const TextSection& part : without_text(added_->split_normalized(section.text()), section, is_text)) {
    if (part.token) {
      visitor.added_token(*part.token, section.origin(part.range.begin, part.range.end));
    } else {
      walk_pieces(section.slice(part.range.begin, part.range.end), visitor);
    }
  }
}

template <class Visitor>
void Tokenizer::walk_pieces(AlignedText text, Visitor& visitor) const {
  PreTokenized split(std::move(text));
  if (pre_tokenizer_.steps) pre_tokenizer_.steps->apply(split);
  for (const ByteRange piece : split.pieces) visitor.piece(split.text, piece);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    const AddedToken* added = added_->find(id);
    const std::string* token = added ? &added->pattern : model_->vocabulary().token_of(id);
    if (token && !(skip_special_tokens && added_->is_special(*token))) tokens.push_back(*token);
  }
  if (decoder_) decoder_->apply(tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) text.append(i && !decoder_ ? " " : "").append(tokens[i]);
  return text;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  if (const AddedToken* added = added_->find(token)) return added->id;
  return model_->vocabulary().id_of(token);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  if (const AddedToken* added = added_->find(id)) return added->content;
  const std::string* token = model_->vocabulary().token_of(id);
  return token ? std::optional(*token) : std::nullopt;
}

bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* added = added_->find(id);
  return added && added_->is_special(added->content);
}

std::vector<AddedToken> Tokenizer::added_tokens() const {
  std::vector<AddedToken> tokens;
  for (const auto& [id, token] : added_->by_id()) tokens.push_back(token);
  std::sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return tokens;
}

std::optional<std::string> Tokenizer::chat_template(std::string_view name) const {
  for (const auto& [candidate, text] : chat_templates_)
    if (candidate == name) return text;
  return std::nullopt;
}

std::string StreamDecoder::take(const std::string& text) {
  std::string fresh = text.size() > context_text_.size() ? text.substr(context_text_.size()) : std::string();
  window_.erase(window_.begin(), window_.begin() + std::ptrdiff_t(context_));
  context_ = window_.size();
  context_text_ = tokenizer_.decode(window_, skip_special_tokens_);
  return fresh;
}

std::string StreamDecoder::push(int32_t id) {
  // Tokens that decode() leaves out would be held back for ever.
  const bool skipped =
      skip_special_tokens_ && tokenizer_.is_special(id) && tokenizer_.decode(std::span(&id, 1), true).empty();
  if (skipped || !tokenizer_.id_to_token(id)) return {};
  window_.push_back(id);
  const std::string text = tokenizer_.decode(window_, skip_special_tokens_);
  const bool grew = text.size() > context_text_.size() && text.starts_with(context_text_);
  if (grew && !text.ends_with(kReplacementUtf8)) return take(text);
  // A character has at most four bytes, hence tokens: more of them are U+FFFD itself.
  constexpr size_t kMostHeld = 16;
  const bool unsettled = text.size() <= context_text_.size() || window_.size() - context_ < kMostHeld;
  return unsettled ? std::string() : take_settled(text);
}

std::string StreamDecoder::take_settled(const std::string& text) {
  for (size_t kept = 8; kept > 4; --kept) {
    const std::vector<int32_t> last(window_.end() - std::ptrdiff_t(kept), window_.end());
    const std::string rest = tokenizer_.decode(last, skip_special_tokens_);
    if (!text.ends_with(rest) || text.size() - rest.size() < context_text_.size()) continue;
    std::string fresh = text.substr(context_text_.size(), text.size() - rest.size() - context_text_.size());
    window_ = last;
    context_ = 0;
    context_text_.clear();
    return fresh;
  }
  return take(text);
}

std::string StreamDecoder::finish() {
  return context_ < window_.size() ? take(tokenizer_.decode(window_, skip_special_tokens_)) : std::string();
}

}  // namespace hone
