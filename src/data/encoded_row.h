// What encoding a row gives: the sample, and what is worth telling about it.
#pragma once

#include <string>
#include <vector>

#include "data/token_block.h"
#include "text/prompt_comparison.h"

namespace hone {

struct EncodedRow {
  Sample sample;
  /// Further samples of the row: answers that the template shows otherwise later (history_rewrites: expand).
  std::vector<Sample> expanded = {};
  SampleOrigin origin = {};
  uint64_t text_key = 0;                         ///< of its text (data/text_key.h)
  std::vector<std::string> unused_columns = {};  ///< columns of the data that nothing is read from
  /// Why nothing of it is learnt; empty if something is.
  std::string nothing_learnt = {};
  /// Nothing is learnt since the row itself says so (weights of 0).
  bool masked_by_data = false;
  /// What is wrong with the end of an answer; empty: nothing.
  std::string turn_end_problem = {};
  bool doubled_bos = false;        ///< the text begins with two bos tokens
  bool partly_shown = false;       ///< the template leaves out characters of a message that is learnt
  bool history_rewritten = false;  ///< the template shows an answer that is learnt otherwise once more follows
  int64_t answers = 0;             ///< that are learnt, and were compared with the prompt that asks for them
  std::vector<PromptDifference> prompt_differences = {};  ///< of those that are asked for otherwise
  bool other_roles_ask = false;                           ///< another role than assistant asks to be learnt, and is not
};

}  // namespace hone
