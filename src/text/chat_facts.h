// What tokenizer and chat template have to agree on: the variables a template gets, how a text begins, how a turn ends.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "text/chat_mask.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hone {

/// bos_token, eos_token, pad_token and unk_token by name, as transformers hands them to a template; those that the
/// tokenizer has.
Json special_token_variables(const Tokenizer& tokenizer);

/// What supervised_ranges() needs to know of a tokenizer: which tokens end a turn.
MaskOptions mask_options(const Tokenizer& tokenizer, TrainOn train_on);

/// The text has a bos token of the template's and another one in front, which no model has seen.
bool begins_with_two_bos(std::span<const int32_t> ids, const SpecialTokens& special);

/// How an answer ends.
struct TurnEnd {
  std::string text;          ///< what closes it ("<|im_end|>"); empty: nothing does
  std::vector<int32_t> ids;  ///< its tokens
  bool learnt = false;       ///< the mask takes it for an end of turn, so stopping is learnt
  bool stops = false;        ///< generation stops there: eos_token, or in eos_token_id of generation_config.json

  /// What is wrong with it, as one sentence for the user; empty: nothing.
  std::string problem(const Tokenizer& tokenizer) const;
};

/// The end of the answer that `range` (of one message) supervises.
TurnEnd turn_end(const RenderedChat& chat, const SupervisedRange& range, const Tokenizer& tokenizer);

}  // namespace hone
