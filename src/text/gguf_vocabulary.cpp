#include "text/gguf_vocabulary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "text/pre_tokenizer.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"

namespace hone {

namespace {

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigitsPattern = R"(\p{N}{1,3})";
constexpr std::string_view kChinesePattern = R"([一-龥぀-ゟ゠-ヿ]+)";
constexpr std::string_view kDeepseekPattern =
    R"R([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)R"
    R"R(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)R";

/// Splits before the bytes of pieces become characters: each pattern isolates its matches, in turn.
struct PreTokenizerRow {
  std::string_view name;
  std::vector<std::string_view> patterns;
  bool single_digits = false;                 ///< first, digits are isolated one by one
  bool ignores_merges = false;                ///< a piece that is a token is that token
  bool nfc = false;                           ///< read files get this normaliser; llama.cpp has none
  std::vector<std::string_view> others = {};  ///< other names of the same
};

const std::vector<PreTokenizerRow>& pre_tokenizer_rows() {
  static const std::vector<PreTokenizerRow> rows = {
      {.name = "qwen2",
       .patterns = {kQwen2Pattern},
       .nfc = true,
       .others = {"deepseek-r1-qwen", "megrez", "hunyuan", "solar-open"}},
      {.name = "qwen35", .patterns = {kQwen35Pattern}, .nfc = true},
      {.name = "llama-bpe",
       .patterns = {kLlama3Pattern},
       .ignores_merges = true,
       .others = {"llama3", "llama-v3", "glm4"}},
      {.name = "dbrx", .patterns = {kLlama3Pattern}, .others = {"smaug-bpe", "chatglm-bpe"}},
      {.name = "gpt-4o", .patterns = {kGpt4oPattern}, .others = {"llama4", "minimax-m2"}},
      {.name = "tekken", .patterns = {kTekkenPattern}, .ignores_merges = true},
      {.name = "kimi-k2", .patterns = {kMoonshotPattern}, .ignores_merges = true},
      {.name = "deepseek-v3", .patterns = {kDigitsPattern, kChinesePattern, kDeepseekPattern}},
      {.name = "smollm",
       .patterns = {kGpt2Pattern},
       .single_digits = true,
       .others = {"starcoder", "refact", "command-r", "codeshell"}},
      {.name = "gpt-2", .patterns = {kGpt2Pattern}, .others = {"phi-2", "mpt"}},
      {.name = "olmo", .patterns = {kGpt2Pattern}, .nfc = true},
  };
  return rows;
}

constexpr const char* kPlainWayOut = "export safetensors, for convert_hf_to_gguf.py of llama.cpp";
constexpr const char* kOtherWayOut = "use the model's safetensors (hone download ORG/NAME)";
constexpr std::string_view kUnderline = "\xE2\x96\x81";  // U+2581, SentencePiece's space

// tokenizer.json → GGUF

[[noreturn]] void cannot_say(const std::filesystem::path& folder, const std::string& what) {
  throw UserError("GGUF files cannot say " + what, (folder / "tokenizer.json").string(), kPlainWayOut);
}

/// The steps of a normaliser or a pre-tokenizer, without sequences.
std::vector<Json> steps_of(const Json& step) {
  if (!step.is_object()) return {};
  if (step.value("type", "") != "Sequence") return {step};
  std::vector<Json> steps;
  for (const char* key : {"normalizers", "pretokenizers"}) {
    if (!step.contains(key) || !step[key].is_array()) continue;
    for (const Json& inner : step[key]) {
      for (Json& one : steps_of(inner)) steps.push_back(std::move(one));
    }
  }
  return steps;
}

/// A pattern in one spelling: line ends and quotes escaped or not.
std::string spelling(std::string_view pattern) {
  std::string result;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\r') {
      result += "\\r";
    } else if (pattern[i] == '\n') {
      result += "\\n";
    } else if (pattern[i] == '\\' && i + 1 < pattern.size() && pattern[i + 1] == '\\') {
      result += pattern.substr(i++, 2);
    } else if (!(pattern[i] == '\\' && i + 1 < pattern.size() && pattern[i + 1] == '"')) {
      result += pattern[i];
    }
  }
  return result;
}

struct SplitSteps {
  std::vector<std::string> patterns;
  bool single_digits = false, byte_level = false;
};

/// Nothing if there is a step of another kind.
std::optional<SplitSteps> split_steps(const Json& pre_tokenizer) {
  SplitSteps found;
  for (const Json& step : steps_of(pre_tokenizer)) {
    if (found.byte_level) return std::nullopt;
    const std::string type = step.value("type", "");
    if (type == "Split") {
      const Json& pattern = step.at("pattern");
      const bool plain = step.value("behavior", "") == "Isolated" && !step.value("invert", false);
      if (!plain || !pattern.is_object() || !pattern.contains("Regex")) return std::nullopt;
      found.patterns.push_back(spelling(pattern["Regex"].get<std::string>()));
    } else if (type == "Digits") {
      if (!step.value("individual_digits", false) || !found.patterns.empty()) return std::nullopt;
      found.single_digits = true;
    } else if (type == "ByteLevel") {
      if (step.value("add_prefix_space", true)) return std::nullopt;
      found.byte_level = true;
      if (step.value("use_regex", true)) found.patterns.push_back(spelling(kGpt2Pattern));
    } else {
      return std::nullopt;
    }
  }
  return found;
}

bool same_patterns(const std::vector<std::string>& found, const std::vector<std::string_view>& known) {
  return std::equal(found.begin(), found.end(), known.begin(), known.end(),
                    [](const std::string& a, std::string_view b) { return a == spelling(b); });
}

const PreTokenizerRow& row_of(const Json& json, bool ignores_merges, const std::filesystem::path& folder) {
  bool nfc = false;
  const std::vector<Json> normalisers = steps_of(json.value("normalizer", Json()));
  if (normalisers.size() == 1 && normalisers.front().value("type", "") == "NFC") {
    nfc = true;
  } else if (!normalisers.empty()) {
    cannot_say(folder, fmt::format("its normaliser {}", json["normalizer"].dump().substr(0, 200)));
  }
  const std::optional<SplitSteps> steps = split_steps(json.value("pre_tokenizer", Json()));
  const PreTokenizerRow* near = nullptr;
  for (const PreTokenizerRow& row : pre_tokenizer_rows()) {
    if (!steps || !steps->byte_level || row.ignores_merges != ignores_merges ||
        row.single_digits != steps->single_digits || !same_patterns(steps->patterns, row.patterns)) {
      continue;
    }
    if (row.nfc == nfc) return row;
    if (near == nullptr) near = &row;  // llama.cpp normalises for none of them
  }
  if (near != nullptr) return *near;
  std::vector<std::string_view> names;
  for (const PreTokenizerRow& row : pre_tokenizer_rows()) names.push_back(row.name);
  throw UserError(fmt::format("the pre-tokenizer is none that GGUF has a known name for ({})", fmt::join(names, ", ")),
                  (folder / "tokenizer.json").string(), kPlainWayOut);
}

/// Merges as "left right".
std::vector<std::pair<std::string, std::string>> merges_of(const Json& model) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const Json& merge : model.at("merges")) {
    if (merge.is_array()) {
      merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
    } else {
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ', 1);
      if (space == std::string::npos) return {};
      merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    }
  }
  return merges;
}

bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

/// Whether encoding begins with bos, and ends with eos; nothing else may be added. Where the files name no bos or eos,
/// the added token is it.
void set_surrounding(const Tokenizer& tokenizer, const std::filesystem::path& folder, GgufVocabulary& vocabulary) {
  const Encoding encoding = tokenizer.encode_with_offsets("a", true);
  std::vector<int32_t> before, after;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    if (encoding.offsets[i].begin != encoding.offsets[i].end) continue;
    (i < encoding.ids.size() - 1 && encoding.offsets[i].end == 0 ? before : after).push_back(encoding.ids[i]);
  }
  const auto set = [&](const std::vector<int32_t>& added, std::optional<int64_t>& token, std::optional<bool>& adds) {
    if (added.size() == 1 && !token) token = added.front();
    adds = !added.empty();
    if (added.size() > 1 || (*adds && token != added.front())) {
      cannot_say(folder, "that other tokens than bos_token and eos_token are added around a text");
    }
  };
  set(before, vocabulary.bos, vocabulary.add_bos);
  set(after, vocabulary.eos, vocabulary.add_eos);
}

/// Characters of a text as positions, its end included.
std::vector<size_t> character_starts(std::string_view text) {
  std::vector<size_t> starts;
  for (size_t at = 0; at < text.size(); at += utf8_step(text, at).length) starts.push_back(at);
  starts.push_back(text.size());
  return starts;
}

/// Scores with which SentencePiece merges as these merges do: it joins the neighbours whose joint token has the highest
/// score, whatever they are, so every way to make a token must be a merge, and a token's merges must follow one
/// another.
std::vector<double> scores_of(const std::vector<std::pair<std::string, std::string>>& merges,
                              const std::vector<std::string>& tokens, const std::vector<int64_t>& types,
                              const std::filesystem::path& folder) {
  constexpr const char* kNotItsMerges = "merges that SentencePiece would not make of scores";
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] == GgufVocabulary::kNormal) ids.emplace(tokens[i], i);
  }
  std::vector<double> scores(tokens.size(), 0.0);
  std::vector<size_t> ways(tokens.size(), 0);
  double rank = 0;
  std::string last;
  for (const auto& [left, right] : merges) {
    const std::string joint = left + right;
    const auto id = ids.find(joint);
    if (id == ids.end()) cannot_say(folder, kNotItsMerges);
    if (joint != last && ways[id->second] > 0) cannot_say(folder, kNotItsMerges);
    if (joint != last) rank -= 1;
    last = joint;
    scores[id->second] = rank;
    ++ways[id->second];
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] != GgufVocabulary::kNormal) continue;
    const std::string_view token = tokens[i];
    const std::vector<size_t> starts = character_starts(token);
    size_t possible = 0;
    for (size_t at = 1; at + 1 < starts.size(); ++at) {
      possible += ids.contains(token.substr(0, starts[at])) && ids.contains(token.substr(starts[at]));
    }
    if (possible != ways[i]) cannot_say(folder, kNotItsMerges);
    if (ways[i] == 0) scores[i] = rank - 1 - static_cast<double>(i);  // a character, which nothing is merged to
  }
  return scores;
}

/// Whether text gets a space before it; nothing if the normaliser and the pre-tokenizer are not SentencePiece's.
std::optional<bool> spaces_of_sentencepiece(const Json& json) {
  bool prefix = false, replaces = false;
  for (const Json& step : steps_of(json.value("normalizer", Json()))) {
    const std::string type = step.value("type", "");
    if (type == "Prepend" && step.value("prepend", "") == kUnderline && !replaces) {
      prefix = true;
    } else if (type == "Replace" && step.value("content", "") == kUnderline &&
               step.value("pattern", Json::object()).value("String", "") == " ") {
      replaces = true;
    } else {
      return std::nullopt;
    }
  }
  for (const Json& step : steps_of(json.value("pre_tokenizer", Json()))) {
    if (step.value("type", "") != "Metaspace" || step.value("replacement", "") != kUnderline ||
        step.value("split", true) || replaces) {
      return std::nullopt;
    }
    replaces = true;
    prefix = step.value("prepend_scheme", "always") != "never";
  }
  return replaces ? std::optional(prefix) : std::nullopt;
}

void require_plain_bpe(const Json& model, const std::filesystem::path& folder) {
  if (model.value("type", "BPE") != "BPE") {
    cannot_say(folder, fmt::format("the tokenizer's model {}", model.value("type", "")));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.contains(key) && model[key].is_string() && !model[key].get<std::string>().empty()) {
      cannot_say(folder, fmt::format("its {}", key));
    }
  }
  if (model.contains("dropout") && model["dropout"].is_number() && model["dropout"] != 0)
    cannot_say(folder, "its dropout");
}

}  // namespace

GgufVocabulary gguf_vocabulary(const std::filesystem::path& folder, int64_t rows, std::vector<std::string>& notes) {
  const std::filesystem::path path = folder / "tokenizer.json";
  const std::optional<std::string> text = read_whole_file_if_there(path);
  const Tokenizer tokenizer = Tokenizer::load(folder);  // validates the file
  const Json json = parse_json(text ? *text : tokenizer_json_of_tiktoken(folder));
  const Json& model = json.at("model");
  require_plain_bpe(model, folder);
  if (tokenizer.vocab_size() > rows) {
    throw UserError(fmt::format("the tokenizer has {} tokens, the embedding {} rows", tokenizer.vocab_size(), rows),
                    path.string(), "use the tokenizer that belongs to this model");
  }
  GgufVocabulary vocabulary;
  const bool bytes = model.value("byte_fallback", false);
  vocabulary.model = bytes ? "llama" : "gpt2";
  std::map<int32_t, AddedToken> added;
  bool takes_spaces = false;
  for (AddedToken& token : tokenizer.added_tokens()) {
    takes_spaces = takes_spaces || token.lstrip || token.rstrip || token.single_word;
    added.emplace(token.id, std::move(token));
  }
  if (takes_spaces) {
    notes.push_back("llama.cpp finds added tokens without their lstrip, rstrip and single_word");
  }
  const std::string unknown = model.contains("unk_token") && model["unk_token"].is_string()
                                  ? model["unk_token"].get<std::string>()
                                  : std::string();
  for (int32_t id = 0; id < rows; ++id) {
    const std::optional<std::string> token = tokenizer.id_to_token(id);
    const auto of_added = added.find(id);
    int64_t type = GgufVocabulary::kNormal;
    if (!token) {
      type = GgufVocabulary::kUnused;
    } else if (bytes && is_byte_token(*token)) {
      type = GgufVocabulary::kByte;
    } else if (bytes && *token == unknown) {
      type = GgufVocabulary::kUnknown;
    } else if (of_added != added.end()) {
      type = of_added->second.special ? GgufVocabulary::kControl : GgufVocabulary::kUserDefined;
    }
    vocabulary.tokens.push_back(token.value_or(fmt::format("[PAD{}]", id)));
    vocabulary.types.push_back(type);
  }
  if (std::set(vocabulary.tokens.begin(), vocabulary.tokens.end()).size() != vocabulary.tokens.size()) {
    cannot_say(folder, "a token twice");
  }
  const auto merges = merges_of(model);
  if (bytes) {
    const std::optional<bool> spaces = spaces_of_sentencepiece(json);
    if (!spaces) cannot_say(folder, "a normaliser or a pre-tokenizer beside byte_fallback that is not SentencePiece's");
    vocabulary.add_space_prefix = *spaces;
    vocabulary.scores = scores_of(merges, vocabulary.tokens, vocabulary.types, folder);
  } else {
    vocabulary.pre = row_of(json, model.value("ignore_merges", false), folder).name;
    for (const auto& [left, right] : merges) vocabulary.merges.push_back(left + " " + right);
  }
  const SpecialTokens& special = tokenizer.special_tokens();
  vocabulary.bos = special.bos, vocabulary.eos = special.eos, vocabulary.pad = special.pad,
  vocabulary.unk = special.unk;
  for (const int32_t stop : special.stop) {
    if (special.eos != stop && !vocabulary.eot) vocabulary.eot = stop;
  }
  set_surrounding(tokenizer, folder, vocabulary);
  vocabulary.chat_template = tokenizer.chat_template().value_or("");
  return vocabulary;
}

// GGUF → tokenizer.json

namespace {

Json byte_level(bool prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json pre_tokenizer_of(const PreTokenizerRow& row) {
  Json steps = Json::array();
  if (row.single_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  const bool usual = row.patterns.size() == 1 && row.patterns.front() == kGpt2Pattern;
  for (const std::string_view pattern : row.patterns) {
    if (usual) break;
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(byte_level(false, usual));
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

class VocabularyReader {
 public:
  VocabularyReader(const GgufVocabulary& vocabulary, const std::string& file) : v_(vocabulary), file_(file) {
    if (v_.types.size() != v_.tokens.size() && !v_.types.empty()) broken("token_type has another length than tokens");
    for (const std::string& token : v_.tokens) {
      if (valid_utf8_prefix(token) != token.size()) broken("a token is not UTF-8");
    }
    for (const auto& id : {v_.bos, v_.eos, v_.pad, v_.unk, v_.eot}) {
      if (id && (*id < 0 || *id >= static_cast<int64_t>(v_.tokens.size()))) broken("a special token is not in tokens");
    }
    size_ = v_.tokens.size();
    while (size_ > 0 && is_padding(size_ - 1)) --size_;
  }

  TokenizerFiles files(int64_t context_length) const {
    TokenizerFiles files;
    Json tokenizer = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added()}};
    if (v_.model == "gpt2") {
      add_byte_level(tokenizer);
    } else if (v_.model == "llama") {
      add_sentencepiece(tokenizer);
    } else {
      throw UserError(fmt::format("the tokenizer model '{}' is not read", v_.model), file_, kOtherWayOut);
    }
    files.tokenizer = std::move(tokenizer);
    files.config = config(context_length);
    files.generation = generation();
    files.chat_template = v_.chat_template;
    return files;
  }

 private:
  [[noreturn]] void broken(const std::string& what) const {
    throw UserError("the tokenizer of the GGUF file is damaged: " + what, file_, kOtherWayOut);
  }
  int64_t type(size_t id) const { return v_.types.empty() ? int64_t{GgufVocabulary::kNormal} : v_.types[id]; }
  bool is_padding(size_t id) const {
    return type(id) == GgufVocabulary::kUnused && v_.tokens[id] == fmt::format("[PAD{}]", id);
  }
  bool is_special(size_t id) const {
    return type(id) == GgufVocabulary::kControl || type(id) == GgufVocabulary::kUnknown;
  }

  Json added() const {
    Json list = Json::array();
    for (size_t id = 0; id < size_; ++id) {
      if (!is_special(id) && type(id) != GgufVocabulary::kUserDefined) continue;
      list.push_back({{"id", id},
                      {"content", v_.tokens[id]},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", is_special(id)}});
    }
    return list;
  }
  /// All tokens: added ones, too, may have ids among the others.
  Json ids() const {
    Json ids = Json::object();
    for (size_t id = 0; id < size_; ++id) {
      if (ids.contains(v_.tokens[id])) broken("'" + v_.tokens[id] + "' appears twice");
      ids[v_.tokens[id]] = id;
    }
    return ids;
  }

  Json post_processor(bool usually_bos) const {
    const bool before = v_.add_bos.value_or(usually_bos) && v_.bos, after = v_.add_eos.value_or(false) && v_.eos;
    if (!before && !after) return nullptr;
    Json single = Json::array(), pair = Json::array(), special = Json::object();
    const auto add = [&](const std::optional<int64_t>& id, Json& list, int text) {
      const std::string& token = v_.tokens[static_cast<size_t>(*id)];
      list.push_back({{"SpecialToken", {{"id", token}, {"type_id", text}}}});
      special[token] = {{"id", token}, {"ids", {*id}}, {"tokens", {token}}};
    };
    const auto wrap = [&](Json& list, const char* sequence, int text) {
      if (before) add(v_.bos, list, text);
      list.push_back({{"Sequence", {{"id", sequence}, {"type_id", text}}}});
      if (after) add(v_.eos, list, text);
    };
    wrap(single, "A", 0);
    wrap(pair, "A", 0);
    wrap(pair, "B", 1);
    return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
  }

  Json model(Json ids, Json merges, bool ignore_merges) const {
    const bool bytes = v_.model == "llama";
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", bytes && v_.unk ? Json(v_.tokens[static_cast<size_t>(*v_.unk)]) : Json()},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", bytes},
            {"byte_fallback", bytes},
            {"ignore_merges", ignore_merges},
            {"vocab", std::move(ids)},
            {"merges", std::move(merges)}};
  }

  void add_byte_level(Json& tokenizer) const {
    const auto& rows = pre_tokenizer_rows();
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const PreTokenizerRow& r) {
      return r.name == v_.pre || std::find(r.others.begin(), r.others.end(), v_.pre) != r.others.end();
    });
    if (row == rows.end()) {
      throw UserError(fmt::format("the pre-tokenizer '{}' is not known", v_.pre), file_, kOtherWayOut);
    }
    tokenizer["normalizer"] = row->nfc ? Json{{"type", "NFC"}} : Json();
    tokenizer["pre_tokenizer"] = pre_tokenizer_of(*row);
    tokenizer["post_processor"] = post_processor(row->name == "llama-bpe");
    tokenizer["decoder"] = byte_level(true, true);
    Json merges = Json::array(), known = ids();
    for (const std::string& merge : v_.merges) {
      const size_t space = merge.find(' ', 1);
      const std::string left = merge.substr(0, space),
                        right = space == std::string::npos ? "" : merge.substr(space + 1);
      if (!known.contains(left) || !known.contains(right) || !known.contains(left + right)) {
        broken("a merge is not of tokens");
      }
      merges.push_back({left, right});
    }
    tokenizer["model"] = model(std::move(known), std::move(merges), row->ignores_merges);
  }

  /// Every way to make a token of two others is a merge; merges of tokens with higher scores come first.
  Json merges_of_scores() const {
    struct Merge {
      double score;
      size_t left, right, split;
    };
    std::unordered_map<std::string_view, size_t> ids;
    for (size_t id = 0; id < size_; ++id) {
      if (type(id) == GgufVocabulary::kNormal) ids.emplace(v_.tokens[id], id);
    }
    std::vector<std::pair<Merge, size_t>> merges;
    for (size_t id = 0; id < size_; ++id) {
      if (type(id) != GgufVocabulary::kNormal) continue;
      const std::string_view token = v_.tokens[id];
      const std::vector<size_t> starts = character_starts(token);
      for (size_t at = 1; at + 1 < starts.size(); ++at) {
        const auto left = ids.find(token.substr(0, starts[at])), right = ids.find(token.substr(starts[at]));
        if (left == ids.end() || right == ids.end()) continue;
        merges.push_back({{v_.scores[id], left->second, right->second, starts[at]}, id});
      }
    }
    std::sort(merges.begin(), merges.end(), [](const auto& a, const auto& b) {
      return std::tuple(-a.first.score, a.second, a.first.left, a.first.right) <
             std::tuple(-b.first.score, b.second, b.first.left, b.first.right);
    });
    Json list = Json::array();
    for (const auto& [merge, id] : merges) {
      list.push_back({v_.tokens[id].substr(0, merge.split), v_.tokens[id].substr(merge.split)});
    }
    return list;
  }

  void add_sentencepiece(Json& tokenizer) const {
    constexpr size_t kLongestToken = 512;  // ways to split a token are tried one by one
    if (v_.scores.size() != v_.tokens.size()) broken("scores has another length than tokens");
    for (const std::string& token : v_.tokens) {
      if (token.size() > kLongestToken) broken("a token is too long");
    }
    if (!std::all_of(v_.scores.begin(), v_.scores.end(), [](double score) { return std::isfinite(score); })) {
      broken("a score is not finite");
    }
    const bool prefix = v_.add_space_prefix.value_or(true);
    Json steps = Json::array();
    if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kUnderline}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kUnderline}});
    Json decoders = Json::array();
    decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kUnderline}}}, {"content", " "}});
    decoders.push_back({{"type", "ByteFallback"}});
    decoders.push_back({{"type", "Fuse"}});
    if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    tokenizer["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    tokenizer["pre_tokenizer"] = nullptr;
    tokenizer["post_processor"] = post_processor(true);
    tokenizer["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    tokenizer["model"] = model(ids(), merges_of_scores(), false);
  }

  Json config(int64_t context_length) const {
    Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"clean_up_tokenization_spaces", false},
                   {"model_max_length", context_length}};
    const std::pair<const char*, std::optional<int64_t>> names[] = {
        {"bos_token", v_.bos}, {"eos_token", v_.eos}, {"pad_token", v_.pad}, {"unk_token", v_.unk}};
    for (const auto& [key, id] : names) config[key] = id ? Json(v_.tokens[static_cast<size_t>(*id)]) : Json();
    return config;
  }
  Json generation() const {
    Json config = Json::object();
    if (v_.bos) config["bos_token_id"] = *v_.bos;
    if (v_.pad) config["pad_token_id"] = *v_.pad;
    if (v_.eos && v_.eot && *v_.eot != *v_.eos) {
      config["eos_token_id"] = {*v_.eos, *v_.eot};
    } else if (v_.eos || v_.eot) {
      config["eos_token_id"] = v_.eos ? *v_.eos : *v_.eot;
    }
    return config;
  }

  const GgufVocabulary& v_;
  const std::string& file_;
  size_t size_ = 0;  // without padding
};

}  // namespace

TokenizerFiles tokenizer_of_gguf(const GgufVocabulary& vocabulary, int64_t context_length, const std::string& file) {
  return VocabularyReader(vocabulary, file).files(context_length);
}

}  // namespace hone
