// One message after another from a list of the data into a conversation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/row_columns.h"
#include "data/sample_format.h"

namespace hone {

// `train_detail` of a message: which characters of its content are learnt.

/// Reads [{"begin_offset": 0, "end_offset": 11, "train": true}, …]: characters (code points) begin_offset to end_offset
/// of `content`, both included, as other tools have it; `weight` may stand for `train`. The result is ascending, in
/// bytes. Errors name `name`: no list, offsets outside of the content or the wrong way round, stretches that overlap.
std::vector<TrainDetail> train_detail_of(const Json& json, const std::string& content, const RowColumns& columns,
                                         const std::string& name);

/// true or 1: 1; false: 0; a number in [0, kMaxWeight]. Anything else is an error that names `name`.
float loss_factor(const Json& value, const RowColumns& columns, const std::string& name);

/// How speakers are named in the data.
enum class Speakers {
  kRoles,     ///< as the chat template has them
  kShareGpt,  ///< human, gpt, function_call, …: translated
};

class MessageReader {
 public:
  MessageReader(const RowColumns& columns, Speakers speakers, Conversation& conversation);

  /// Adds the messages of `list`, which errors call `name`. Throws UserError: not a list, empty, a message without
  /// role or content, an unknown speaker, weights that disagree.
  void read(const Json& list, const std::string& name);

 private:
  void add(const Json& message, const std::string& name);
  Json with_our_keys(const Json& message, const std::string& name) const;
  std::string key_name(std::string_view ours, const Json& message) const;
  std::string role_of(const Json& message, const std::string& name) const;
  void check_content(const Json& message, const std::string& name) const;
  Json calls_of(const Json& content, const std::string& name) const;
  std::string joined_parts(const Json& parts, const std::string& name) const;
  std::vector<TrainDetail> details_of(Json& message, const std::string& name) const;
  std::optional<float> weight_of(const Json& message, const std::string& name) const;

  const RowColumns& columns_;
  Speakers speakers_;
  Conversation& conversation_;
};

}  // namespace hone
