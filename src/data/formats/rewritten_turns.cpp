#include "data/formats/rewritten_turns.h"

#include <algorithm>
#include <map>

namespace hone {
namespace {

size_t characters_shown(const RenderedMessage& message) {
  return message.content.rendered + message.reasoning.rendered + message.tool_calls.rendered;
}

}  // namespace

void for_rewritten_turns(
    const RenderedChat& whole, const std::vector<size_t>& learnt, const std::function<RenderedChat(size_t)>& render,
    const std::function<void(const RenderedChat& chat, const std::vector<size_t>& messages)>& found) {
  std::vector<size_t> open;  // may be rewritten, and no rendering that was found contains them
  for (const size_t message : learnt) {
    if (!whole.messages[message].shown_whole() && message + 1 < whole.messages.size()) open.push_back(message);
  }
  std::map<size_t, size_t> alone;  // characters of a message in the rendering that ends with it
  while (!open.empty()) {
    const size_t last = open.back();
    open.pop_back();
    const RenderedChat ending = render(last + 1);
    if (characters_shown(ending.messages[last]) <= characters_shown(whole.messages[last])) continue;
    // The rendering may contain earlier ones too: thinking between tool calls stays until the end of the turn.
    const auto contains = [&](size_t message) {
      const RenderedMessage& shown = ending.messages[message];
      if (shown.shown_whole()) return true;
      if (characters_shown(shown) <= characters_shown(whole.messages[message])) return false;
      const auto [known, is_new] = alone.try_emplace(message);
      if (is_new) known->second = characters_shown(render(message + 1).messages[message]);
      return characters_shown(shown) >= known->second;
    };
    const auto others = std::stable_partition(open.begin(), open.end(), [&](size_t m) { return !contains(m); });
    std::vector<size_t> messages(others, open.end());
    open.erase(others, open.end());
    messages.push_back(last);
    found(ending, messages);
  }
}

}  // namespace hone
