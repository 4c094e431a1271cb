// The card of a model, README.md: written beside weights, unless the folder has one that a user wrote. It is not in the
// manifest, so that it may be edited.
#pragma once

#include <filesystem>
#include <string_view>

namespace hone {

inline constexpr const char* kCardName = "README.md";
/// The line by which a card is known as Hone's, in its first 16 KiB.
inline constexpr std::string_view kCardMarker =
    "<!-- Written by Hone, and again with each save. Remove this line to keep a text of your own. -->";

/// Whether the folder has a card that Hone wrote and may replace or remove; never for a link.
bool has_own_card(const std::filesystem::path& directory);

/// Copies the card that Hone wrote, if there is one.
void copy_own_card(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hone
