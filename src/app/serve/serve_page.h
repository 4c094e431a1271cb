// The page of hone serve for a browser.
#pragma once

#include <string_view>

namespace hone {

/// A page in one piece, without any request but those to the server's own API: a chat with every model that is served,
/// side by side.
std::string_view serve_page();

}  // namespace hone
