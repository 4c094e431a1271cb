// The page of hone serve for a browser.
#pragma once

#include <span>
#include <string_view>

namespace hone {

struct ServedFile {
  std::string_view name, text;
};

/// One file, page.html: a chat with every model that is served, side by side. It asks for nothing but the server's own
/// API. From cmake/files_inside.cpp.in.
std::span<const ServedFile> serve_page_files();

}  // namespace hone
