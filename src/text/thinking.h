// Thinking in chat templates: the switch that a template has for it, and whether a prompt leaves it on.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/text/json_fwd.h"
#include "text/chat_template.h"

namespace hone {

// The tags that models write around their thinking.

inline constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kThinkTags = {{
    {"<think>", "</think>"},
    {"<thinking>", "</thinking>"},
    {"<thought>", "</thought>"},
    {"<reasoning>", "</reasoning>"},
    {"<seed:think>", "</seed:think>"},
    {"[THINK]", "[/THINK]"},
    {"◁think▷", "◁/think▷"},
}};

/// The variable that turns thinking off in a template: the first of `enable_thinking` and `thinking` for which false
/// and true give different prompts for a plain question. Nothing if the template has neither or rejects the question.
/// `variables` as in ChatInput.
std::optional<std::string> thinking_switch(const ChatTemplate& chat_template, const Json& variables);

/// Whether the prompt for a plain question leaves thinking on: it equals the prompt with the switch on, or it opens a
/// think block without closing it.
bool prompt_thinks(const ChatTemplate& chat_template, const Json& variables);

/// The tag of a think block that a prompt opens at its end, without closing it; "" for none.
std::string open_think_tag(std::string_view prompt);

/// Whether a text of an assistant has a think block that is not empty.
bool has_think_block(std::string_view text);

/// Whether a text is only an empty think block and white space.
bool is_empty_think_block(std::string_view text);

}  // namespace hone
