// Reads calls of tools from what a model writes (text/call_forms.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"
#include "text/call_forms.h"

namespace hone {

/// A call that the model asks for.
struct ToolCall {
  std::string name, arguments;  ///< arguments: JSON
  std::string id = {};          ///< as the model has written it; "": it has not
};

/// What a text that may begin with calls is.
struct ReadCalls {
  bool more = false;  ///< not known before more text comes
  size_t size = 0;    ///< else: so many bytes are `calls` or, without any, text; more than 0
  std::vector<ToolCall> calls = {};
};

/// Reads `text`, which is not empty and begins as a call or a section of calls does. `last`: no text follows, and
/// nothing waits for more. `tools`: those of the request, whose schemas give the types of arguments that have no
/// quotes. Not for kChannels.
ReadCalls read_calls(const CallForm& form, std::string_view text, bool last, const Json& tools);

/// The header of a message (CallBody::kChannels), or with a function the whole message.
struct ReadMessage {
  bool more = false;
  size_t size = 0;  ///< the header's or the message's; 0: the text is no message
  bool thinks = false;
  std::vector<ToolCall> calls = {};
};

/// As read_calls(). Without `calls` a call is no message.
ReadMessage read_message(const CallForm& form, std::string_view text, bool last, bool calls);

}  // namespace hone
