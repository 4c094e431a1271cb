// What encoding a row gives: the sample, and what is worth telling about it.
#pragma once

#include <string>

#include "data/sample_store.h"

namespace hone {

struct EncodedRow {
  Sample sample;
  /// Why nothing of it is learnt; empty if something is.
  std::string nothing_learnt = {};
  /// Nothing is learnt since the row itself says so (weights of 0).
  bool masked_by_data = false;
  /// What is wrong with the end of an answer; empty: nothing.
  std::string turn_end_problem = {};
  bool doubled_bos = false;      ///< the text begins with two bos tokens
  bool partly_shown = false;     ///< the template leaves out characters of a message that is learnt
  bool other_roles_ask = false;  ///< another role than assistant asks to be learnt, and is not
};

}  // namespace hone
