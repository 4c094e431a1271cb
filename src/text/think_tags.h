// What models write around their thoughts.
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace hone {

inline constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kThinkTags = {{
    {"<think>", "</think>"},
    {"<thinking>", "</thinking>"},
    {"<thought>", "</thought>"},
    {"<reasoning>", "</reasoning>"},
    {"<seed:think>", "</seed:think>"},
    {"[THINK]", "[/THINK]"},
    {"◁think▷", "◁/think▷"},
}};

}  // namespace hone
