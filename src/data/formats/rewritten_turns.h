// Answers that a chat template renders differently once more messages follow; most templates drop the thinking of
// earlier turns.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "text/chat_template.h"

namespace hone {

/// Calls `found` with the fewest renderings that together contain whole those of the messages `learnt` (ascending) of
/// which `whole`, the rendering of all messages, contains fewer characters than the rendering that ends with them: each
/// with those of `learnt` that are taken from it, ascending. The longest comes first.
/// Characters that the template never renders do not count, nor does template text that is added or removed around an
/// answer (empty think blocks). `render` renders the first n messages: once for each answer that `whole` does not
/// contain whole, which is nearly all of the time that a long chat takes.
void for_rewritten_turns(
    const RenderedChat& whole, const std::vector<size_t>& learnt, const std::function<RenderedChat(size_t)>& render,
    const std::function<void(const RenderedChat& chat, const std::vector<size_t>& messages)>& found);

}  // namespace hone
