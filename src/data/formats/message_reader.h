// Reads the messages of a list in the data into a conversation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/formats/row_columns.h"
#include "data/formats/sample_format.h"

namespace hone {

// `train_detail` of a message: which characters of its content are supervised.

/// Reads [{"begin_offset": 0, "end_offset": 11, "train": true}, …]: characters (code points) begin_offset to end_offset
/// of `content`, inclusive, as in other tools; `weight` may replace `train`. The result is ascending, in bytes. Throws
/// UserError with `name` if it is not a list, for offsets outside the content or in the wrong order, and for ranges
/// that overlap.
std::vector<TrainDetail> train_detail_of(const Json& json, const std::string& content, const RowColumns& columns,
                                         const std::string& name);

/// Reads a loss weight: true or 1 is 1; false is 0; otherwise a number in [0, kMaxWeight]. Throws UserError with `name`
/// for anything else.
float loss_factor(const Json& value, const RowColumns& columns, const std::string& name);

/// The names of speakers in the data.
enum class Speakers {
  kRoles,     ///< as in the chat template
  kShareGpt,  ///< human, gpt, function_call, …: translated to roles
};

class MessageReader {
 public:
  MessageReader(const RowColumns& columns, Speakers speakers, Conversation& conversation);

  /// Adds the messages of `list`; errors contain `name`. Throws UserError if it is not a list or empty, and for a
  /// message without role or content, an unknown speaker, or contradicting weights.
  void read(const Json& list, const std::string& name);

 private:
  void add(const Json& message, const std::string& name);
  Json with_our_keys(const Json& message, const std::string& name) const;
  std::string key_name(std::string_view ours, const Json& message) const;
  std::string role_of(const Json& message, const std::string& name) const;
  void check_content(const Json& message, const std::string& name) const;
  Json calls_of(const Json& content, const std::string& name) const;
  void refuse_second(const Json& message, const std::string& key, const std::string& name) const;
  void read_parts(const Json& parts, const std::string& name, Json& message) const;
  std::vector<TrainDetail> details_of(Json& message, const std::string& name) const;
  std::optional<float> weight_of(const Json& message, const std::string& name) const;

  const RowColumns& columns_;
  Speakers speakers_;
  Conversation& conversation_;
};

}  // namespace hone
