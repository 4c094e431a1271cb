// Thoughts in chat templates: the switch that a template has for them, and whether a prompt asks for them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/json_fwd.h"
#include "text/chat_template.h"

namespace hone {

// What models write around their thoughts.

inline constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kThinkTags = {{
    {"<think>", "</think>"},
    {"<thinking>", "</thinking>"},
    {"<thought>", "</thought>"},
    {"<reasoning>", "</reasoning>"},
    {"<seed:think>", "</seed:think>"},
    {"[THINK]", "[/THINK]"},
    {"◁think▷", "◁/think▷"},
}};

/// The variable by which a template turns thoughts off: `enable_thinking` or `thinking`, the first of them of which
/// false and true give different prompts for a plain question. Nothing if it has none, or refuses the question.
/// `variables` as ChatInput has them.
std::optional<std::string> thinking_switch(const ChatTemplate& chat_template, const Json& variables);

/// Whether the prompt for a plain question leaves thoughts on: it is that of the switch turned on, or it opens a think
/// block and does not close it.
bool prompt_thinks(const ChatTemplate& chat_template, const Json& variables);

/// Whether a text of an assistant has thoughts: a think block that is not empty.
bool has_think_block(std::string_view text);

/// Whether a text is a think block with nothing in it, and white space.
bool is_empty_think_block(std::string_view text);

}  // namespace hone
