#include "text/chat_facts.h"

#include <fmt/format.h>

#include <algorithm>

namespace hone {

Json special_token_variables(const Tokenizer& tokenizer) {
  Json variables = Json::object();
  const SpecialTokens& special = tokenizer.special_tokens();
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    const auto token = id ? tokenizer.id_to_token(*id) : std::nullopt;
    if (token) variables[name] = *token;
  };
  add("bos_token", special.bos);
  add("eos_token", special.eos);
  add("pad_token", special.pad);
  add("unk_token", special.unk);
  return variables;
}

MaskOptions mask_options(const Tokenizer& tokenizer, TrainOn train_on) {
  MaskOptions options;
  options.train_on = train_on;
  for (const int32_t id : tokenizer.special_tokens().stop) {
    if (const auto token = tokenizer.id_to_token(id)) options.end_tokens.push_back(*token);
  }
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.special) options.special_tokens.push_back(token.content);
  }
  return options;
}

bool begins_with_two_bos(std::span<const int32_t> ids, const SpecialTokens& special) {
  return special.bos && ids.size() > 1 && ids[0] == *special.bos && ids[1] == *special.bos;
}

std::string TurnEnd::problem(const Tokenizer& tokenizer) const {
  if (text.empty()) return "the template ends an answer without an end-of-turn token, so stopping is not learnt";
  if (!learnt) {
    return fmt::format("the template ends an answer with '{}', which is {} tokens and not one of the tokenizer's own",
                       text, ids.size());
  }
  if (stops || ids.empty()) return {};
  return fmt::format(
      "answers end with '{}', which is neither eos_token nor in eos_token_id of generation_config.json, so "
      "generation will not stop there",
      tokenizer.id_to_token(ids.back()).value_or("?"));
}

TurnEnd turn_end(const RenderedChat& chat, const SupervisedRange& range, const Tokenizer& tokenizer) {
  TurnEnd end;
  end.text = chat.text.substr(range.turn_end_begin, range.end - range.turn_end_begin);
  end.ids = tokenizer.encode(end.text, false);
  end.learnt = range.ends_turn;
  const auto& stop = tokenizer.special_tokens().stop;
  end.stops = !end.ids.empty() && std::find(stop.begin(), stop.end(), end.ids.back()) != stop.end();
  return end;
}

}  // namespace hone
