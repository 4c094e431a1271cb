#include "data/rewritten_turns.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace hone {

namespace {

size_t characters_shown(const RenderedMessage& message) {
  return message.content.rendered + message.reasoning.rendered + message.tool_calls.rendered;
}

}  // namespace

HistoryRewrites history_rewrites_of(std::string_view name) {
  if (name == "expand") return HistoryRewrites::kExpand;
  if (name == "mask") return HistoryRewrites::kMask;
  if (name == "error") return HistoryRewrites::kError;
  throw UserError("history_rewrites is '" + std::string(name) + "'", "history_rewrites", "one of expand, mask, error");
}

std::vector<RewrittenTurns> rewritten_turns(const RenderedChat& whole, const std::vector<size_t>& learnt,
                                            const std::function<RenderedChat(size_t)>& render) {
  std::map<size_t, RenderedChat> own;  // renderings that end with a rewritten message, by its index
  for (const size_t message : learnt) {
    if (whole.messages[message].shown_whole() || message + 1 == whole.messages.size()) continue;
    RenderedChat ending = render(message + 1);
    if (characters_shown(ending.messages[message]) > characters_shown(whole.messages[message])) {
      own.emplace(message, std::move(ending));
    }
  }
  std::vector<RewrittenTurns> result;
  while (!own.empty()) {
    // The last one's ending may show the ones before it as well: thoughts between tool calls stay to the turn's end.
    const auto& [last, ending] = *own.rbegin();
    RewrittenTurns turns{last + 1, {}};
    for (const auto& [message, alone] : own) {
      if (characters_shown(ending.messages[message]) >= characters_shown(alone.messages[message])) {
        turns.messages.push_back(message);
      }
    }
    for (const size_t message : turns.messages) own.erase(message);
    result.push_back(std::move(turns));
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace hone
