// Answers that a chat template shows otherwise once the conversation goes on: most drop the thoughts of earlier turns.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace hone {

/// What becomes of them.
enum class HistoryRewrites {
  kExpand,  ///< each is learnt as the model writes it, in a sample that ends with it
  kMask,    ///< they are not learnt
  kError,   ///< the run stops
};

/// "expand", "mask" or "error"; anything else is a UserError.
HistoryRewrites history_rewrites_of(std::string_view name);

/// Answers that one beginning of the conversation shows as they were written: messages [0, end) do.
struct RewrittenTurns {
  size_t end = 0;
  std::vector<size_t> messages;  ///< ascending
};

/// Those of the messages `learnt` (ascending) of which `whole`, the rendering of all messages, shows fewer characters
/// than the rendering that ends with them; as few beginnings as show them all, ascending. `render` renders the first n
/// messages. What a template shows nowhere is not rewritten, nor is an answer that only gains or loses text of the
/// template (empty think blocks).
std::vector<RewrittenTurns> rewritten_turns(const RenderedChat& whole, const std::vector<size_t>& learnt,
                                            const std::function<RenderedChat(size_t)>& render);

}  // namespace hone
